"""The NSQ protocol as values and bytes, without roles, sockets and time.

Each direction is one module that encodes and decodes: ``frames`` for the bytes from a broker to a client, ``commands``
for those from a client to a broker. ``messages`` has the record inside a message frame.
"""
