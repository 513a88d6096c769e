"""What producer and consumer share: one connection to one nsqd.

Read ``option``, ``options``, ``settings``; ``greeting``, ``session``; ``tls``, ``dialler``, ``reconnect``,
``connection``, ``background``.
"""
