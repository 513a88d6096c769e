"""nsqd: the engine in ``core``, and what joins it to sockets, HTTP and the command line."""
