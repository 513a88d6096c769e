"""The nsqds that have a topic, polled from nsqlookupds.

An nsqd stays in the set until every nsqlookupd that listed it has responded without it (``nsqkit.lookup.merge``);
failures, also those of a user's filter or address map, leave the set unchanged. The set only says where to connect: a
connection to an nsqd that has left the set continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqkit.lookup.lookupd_client import fetch_nsqds
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.poller import LookupdPoller
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from random import Random

    from nsqkit.clock import Clock
    from nsqkit.errors import NSQError
    from nsqkit.wire.lookup import Node

logger = logging.getLogger("nsqkit.lookup")


class Discovery(LookupdPoller["Node"]):
    """The nsqds that have a topic according to any nsqlookupd, polled for as long as ``run`` runs.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd; more can be added later.
        topic: the topic; None for the nsqds of all topics.
        on_change: called in the event loop with the added and the removed addresses.
        on_failure: called in the event loop with each permanent error; None to ignore them.
        options: see ``LookupOptions``.
        clock: the time; by default the real time.
        random: draws the jitter; by default seeded by the system.
        log: the logger.

    Attributes:
        addresses: the addresses that were found last.

    Raises:
        OptionError: the topic or an address is invalid.
    """

    def __init__(
        self,
        lookupd_http_addresses: Sequence[str],
        *,
        topic: str | None,
        on_change: Callable[[list[str], list[str]], None],
        on_failure: Callable[[NSQError], None] | None = None,
        options: LookupOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] = logger,
    ) -> None:
        if topic is not None:
            encode_topic(topic)
        super().__init__(
            lookupd_http_addresses,
            query=lambda daemon: fetch_nsqds(daemon, topic),
            on_merged=self._select,
            on_failure=on_failure,
            options=options,
            clock=clock,
            random=random,
            log=log,
        )
        self.addresses: list[str] = []
        self._topic = topic
        self._on_change = on_change

    def forget(self, address: str) -> None:
        """Forget an address; if it is still listed, the next response adds it."""
        self.addresses = [each for each in self.addresses if each != address]

    def _select(self, nodes: dict[str, Node]) -> None:
        try:
            selected = self.options.select(nodes.values())
        except Exception:
            self._log.exception("topic %s: discovery_filter or address_map has failed; the nsqds stay", self._topic)
            return
        known, wanted = set(self.addresses), set(selected)
        came = [address for address in selected if address not in known]
        gone = [address for address in self.addresses if address not in wanted]
        if came or gone:
            self.addresses = selected
            extra = {"topic": self._topic}
            self._log.info("topic %s: found nsqds %s, lost nsqds %s", self._topic, came, gone, extra=extra)
            self._on_change(came, gone)
