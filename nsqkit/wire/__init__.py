"""The NSQ protocol as values and bytes: it knows no role, no socket and no time.

The rule it guards: a direction is a module. What a broker says to a client is in ``frames``, what a client
says to a broker in ``commands``; both modules encode and decode, so that nothing is written twice and each round
trip is a property that a test holds.

Read ``messages`` (the record inside a message frame), then ``frames``, then ``commands``.
"""
