"""The engine of nsqd: pure, deterministic, told the time.

Read ``agenda``, ``queue``, ``in_flight``, ``channel``, ``topic``, ``session``, ``broker``, in this order.
"""
