"""What producer and consumer share: one connection to one nsqd.

Read ``options``, ``session``, ``reconnect``, ``connection``, ``background``.
"""
