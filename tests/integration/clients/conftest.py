"""Leaves the tests of other clients to the environment that has those clients: ``tox -e clients``."""

from __future__ import annotations

import importlib.util

NEEDED = ["nsq", "ansq", "gnsq", "trustme"]
collect_ignore = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_clients.py"]
