"""One client of the broker: its commands, its state and its output."""
