"""The part of HTTP/1.1 that nsqd and nsqlookupd need: messages, a router, a server and a client."""
