"""The engine of nsqd, without I/O: bytes and time come in, bytes and events go out.

Read ``timers``, ``changes``, ``disk.queue``, ``topics.subscription``, ``topics.channel``, ``topics.topic``,
``topics.registry``, ``session.session`` and ``broker``, in this order.
"""
