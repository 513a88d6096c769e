"""Topics and channels, their queues, and the consumers that share them."""
