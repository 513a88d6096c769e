"""A conformance suite: it compares a broker that speaks nsqd's protocol with nsqd 1.3.0, from outside."""
