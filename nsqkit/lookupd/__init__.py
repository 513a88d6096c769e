"""nsqlookupd: the directory of nsqds, with their topics and channels."""
