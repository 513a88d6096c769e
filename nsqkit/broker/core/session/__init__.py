"""One client of the broker: its commands, its state and what is sent to it."""
