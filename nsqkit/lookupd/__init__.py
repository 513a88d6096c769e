"""nsqlookupd: which nsqd has which topic."""
