"""Which topics there are whose names match a pattern, followed over time.

The rule it guards: that of ``Discovery``. A topic is there from the first answer that lists it until every nsqlookupd
that has listed it answers without it; failures take none away.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqkit.lookup.lookupd_client import compile_pattern, fetch_topics
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.poller import LookupdPoller

if TYPE_CHECKING:
    from random import Random

    from nsqkit.clock import Clock

__all__ = ["TopicDiscovery"]

logger = logging.getLogger("nsqkit.lookup")


class TopicDiscovery(LookupdPoller[str]):
    """The topics whose names match a pattern, as all nsqlookupds together know them, for as long as ``run`` runs.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd; more can be added later.
        pattern: a regular expression that is looked for anywhere in a name; ``^`` and ``$`` stand for its ends.
        on_change: called in the event loop with the topics that have come and with those that have gone.
        options: how nsqlookupds are asked.
        clock: the time; by default the real one.
        random: chance; by default seeded by the system.

    Attributes:
        topics: those that were found last, sorted.

    Raises:
        OptionError: a pattern or an address that cannot be one.
    """

    def __init__(
        self,
        lookupd_http_addresses: Sequence[str],
        *,
        pattern: str | re.Pattern[str],
        on_change: Callable[[list[str], list[str]], None],
        options: LookupOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        compiled = compile_pattern(pattern)
        super().__init__(
            lookupd_http_addresses,
            ask=lambda daemon: fetch_topics(daemon, compiled),
            on_listed=self._listed,
            options=options,
            clock=clock,
            random=random,
        )
        self.topics: list[str] = []
        self._on_change = on_change

    def _listed(self, names: dict[str, str]) -> None:
        came = sorted(names.keys() - set(self.topics))
        gone = sorted(set(self.topics) - names.keys())
        if came or gone:
            self.topics = sorted(names)
            logger.info("found topics %s, lost topics %s", came, gone)
            self._on_change(came, gone)
