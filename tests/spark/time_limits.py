"""Limits for tests with real connections."""

from __future__ import annotations

FIRST_DELIVERY_MAX = 1.5
"""Seconds that a busy machine may take to deliver the first message to a new connection."""
