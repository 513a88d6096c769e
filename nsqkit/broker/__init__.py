"""nsqd: the engine in ``core``, and its connections to sockets, disk, HTTP and the command line."""
