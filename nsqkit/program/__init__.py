"""The parts of the programs nsqd and nsqlookupd: command line, log, start and stop."""
