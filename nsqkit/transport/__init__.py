"""Byte streams, and the pump that drives a machine over one of them."""
