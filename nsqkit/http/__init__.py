"""Just enough HTTP/1.1 for nsqd and nsqlookupd: messages as values, a table of routes, one connection served."""
