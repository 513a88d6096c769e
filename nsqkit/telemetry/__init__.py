"""Telemetry: ``opentelemetry`` for traces and metrics, ``prometheus`` for scraped figures.

A program without telemetry pays nothing for it: everything here wraps a producer or a handler, or reads ``stats()`` at
a scrape, and ``import nsqkit`` loads none of it. Users import ``opentelemetry`` and ``prometheus``, each with the extra
of that name.
"""

from __future__ import annotations
