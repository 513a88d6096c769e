"""What observers plug in: ``opentelemetry`` for traces and metrics, ``prometheus`` for figures that are scraped.

The rule it guards: who does not observe does not pay. Everything here is around a producer or a handler, or reads
``stats()`` when it is asked; nothing in the clients knows of it, and importing nsqkit loads none of it.

How to read it: ``opentelemetry`` and ``prometheus`` are what users import, each with the extra of that name;
``instruments`` times one operation, ``attributes`` and ``envelope`` are pure.
"""

from __future__ import annotations
