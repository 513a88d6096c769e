"""The only place where machines meet sockets: the pump, the alarm, and how to reach a peer."""
