"""The broker's messages on disk: nsqd's files, their recovery after a crash, and the ids of messages.

The engine above this package sees ``storage.Storage``. The modules here reach the disk through ``file_store.FileStore``
only, so that a test can replace it; ``nsqkit.broker.file_store`` implements it with the operating system.
"""
