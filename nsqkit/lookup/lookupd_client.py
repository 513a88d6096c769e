"""What nsqlookupds are asked, each on its own or all of them once.

The rule it guards: a topic that an nsqlookupd has never heard of is no failure: nobody has published to it yet, and
the answer is that nobody has it. Everything else that is not a list is a failure, with one exception for the caller.

``fetch_nsqds`` and ``fetch_topics`` send a request to one nsqlookupd; ``lookup_nsqds`` and ``lookup_topics`` send it
to all of them and merge the responses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.lookup.merge import MergedResponses
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.responses import decode_names, decode_nodes, decode_registered_nodes, tcp_address
from nsqkit.lookup.selection import select
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.http.daemon import Daemon
    from nsqkit.wire.lookup import Node

__all__ = ["Ask", "fetch_nsqds", "fetch_topics", "lookup_nsqds", "lookup_topics"]

logger = logging.getLogger("nsqkit.lookup")

T = TypeVar("T")
Ask = Callable[["Daemon"], Awaitable[Mapping[str, T]]]
"""Asks one nsqlookupd; raises RequestFailed when there is no good answer."""

TOPIC_NOT_FOUND: Final = "TOPIC_NOT_FOUND"


async def fetch_nsqds(daemon: Daemon, topic: str | None) -> dict[str, Node]:
    """Return the nsqds that one nsqlookupd lists for a topic, or all that it knows, by ``broadcast_address:tcp_port``.

    Raises:
        RequestFailed: it gives no answer that can be used.
    """
    try:
        if topic is None:
            document = await daemon.ask_document("GET", "/nodes")
            nodes = [entry.node for entry in _decode(daemon, decode_registered_nodes, document)]
        else:
            document = await daemon.ask_document("GET", "/lookup", {"topic": topic})
            nodes = _decode(daemon, decode_nodes, document)
    except RequestRefused as refusal:
        if refusal.message != TOPIC_NOT_FOUND:
            raise
        nodes = []
    return {tcp_address(node): node for node in nodes}


async def fetch_topics(daemon: Daemon, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the topics that one nsqlookupd knows and in which ``pattern`` is found, each under its own name.

    Raises:
        RequestFailed: it gives no answer that can be used.
    """
    document = await daemon.ask_document("GET", "/topics")
    names = _decode(daemon, lambda document: decode_names(document, "topics"), document)
    return {name: name for name in names if pattern.search(name)}


def _decode(
    daemon: Daemon, decode: Callable[[Mapping[str, Any]], list[T]], document: Mapping[str, Any]
) -> list[T]:
    try:
        return decode(document)
    except ValueError as error:
        raise RequestFailed(f"{daemon}: {error}") from error


# ---- all of them, once ----------------------------------------------------------------------------------------


async def lookup_nsqds(
    lookupd_http_addresses: Sequence[str], topic: str | None, *, options: LookupOptions | None = None
) -> list[str]:
    """Return the addresses of the nsqds that have a topic, as all nsqlookupds together know them now.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        topic: the topic; None for the nsqds of all topics.
        options: see ``LookupOptions``.

    Raises:
        OptionError: a name or an address that cannot be one.
        RequestFailed: no nsqlookupd has answered; the text has a reason for each.
    """
    options = options or LookupOptions()
    if topic is not None:
        encode_topic(topic)
    nodes = await _ask_all(options.daemons(lookupd_http_addresses), lambda daemon: fetch_nsqds(daemon, topic))
    return select(nodes.values(), discovery_filter=options.discovery_filter, address_map=options.address_map)


async def lookup_topics(
    lookupd_http_addresses: Sequence[str],
    pattern: str | re.Pattern[str] = "",
    *,
    options: LookupOptions | None = None,
) -> list[str]:
    """Return the topics that all nsqlookupds together know now, sorted.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        pattern: a regular expression that is looked for anywhere in a name; by default all names have it.
        options: see ``LookupOptions``.

    Raises:
        OptionError: a pattern or an address that cannot be one.
        RequestFailed: no nsqlookupd has answered; the text has a reason for each.
    """
    options = options or LookupOptions()
    compiled = compile_pattern(pattern)
    return sorted(
        await _ask_all(options.daemons(lookupd_http_addresses), lambda daemon: fetch_topics(daemon, compiled))
    )


def compile_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a regular expression, compiled.

    Raises:
        OptionError: it is none.
    """
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise OptionError(f"pattern {pattern!r} is no regular expression: {error}") from error


async def _ask_all(daemons: Mapping[str, Daemon], ask: Ask[T]) -> dict[str, T]:
    """Return what the nsqlookupds list together; who fails is named in the log, as long as anybody answers."""
    responses: MergedResponses[T] = MergedResponses()
    answered: list[Daemon] = []
    failures: list[str] = []

    async def ask_one(key: str, daemon: Daemon) -> None:
        try:
            responses.record(key, await ask(daemon))
            answered.append(daemon)
        except RequestFailed as error:
            failures.append(str(error))
            logger.warning("nsqlookupd %s: %s", daemon, error, extra={"lookupd": daemon.name})

    async with anyio.create_task_group() as tasks:
        for key, daemon in daemons.items():
            tasks.start_soon(ask_one, key, daemon)
    if not answered:
        raise RequestFailed("; ".join(failures) or "there is no nsqlookupd to ask")
    return responses.merged()
