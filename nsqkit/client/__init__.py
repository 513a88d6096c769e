"""The connection of a producer or a consumer to one nsqd.

Reading order: ``handshake``, ``session``, ``dialler``, ``connection``.
"""
