"""What nsqd and nsqlookupd have in common as programs: the command line, the log, the run from start to signal."""
