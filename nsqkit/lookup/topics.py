"""The topics whose names match a pattern, polled from nsqlookupds.

As in ``nsqkit.lookup.discovery``, a topic stays in the set until every nsqlookupd that listed it has responded without
it.
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

logger = logging.getLogger("nsqkit.lookup")


class TopicDiscovery(LookupdPoller[str]):
    """The topics that match a pattern according to any nsqlookupd, polled for as long as ``run`` runs.

    Args:
        lookupd_http_addresses, options, clock, random: as for ``Discovery``.
        pattern: a regular expression, searched anywhere in a name; ``^`` and ``$`` match its ends.
        on_change: called in the event loop with the added and the removed topics.

    Attributes:
        topics: the topics that were found last, sorted.

    Raises:
        OptionError: the pattern or an address is invalid.
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
            query=lambda daemon: fetch_topics(daemon, compiled),
            on_merged=self._compare,
            options=options,
            clock=clock,
            random=random,
        )
        self.topics: list[str] = []
        self._on_change = on_change

    def _compare(self, names: dict[str, str]) -> None:
        came = sorted(names.keys() - set(self.topics))
        gone = sorted(set(self.topics) - names.keys())
        if came or gone:
            self.topics = sorted(names)
            logger.info("found topics %s, lost topics %s", came, gone)
            self._on_change(came, gone)
