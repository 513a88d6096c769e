"""Requests to nsqlookupds for nsqds and topics.

``fetch_nsqds`` and ``fetch_topics`` send a request to one nsqlookupd; ``lookup_nsqds`` and ``lookup_topics`` send it
to several and merge the responses. The answer TOPIC_NOT_FOUND is an empty list, since a topic exists only after its
first message. Everything else that is no list raises ``RequestFailed``.
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
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.http.daemon import Daemon
    from nsqkit.wire.lookup import Node

logger = logging.getLogger("nsqkit.lookup")

T = TypeVar("T")
Query = Callable[["Daemon"], Awaitable[Mapping[str, T]]]
"""Sends a request to one nsqlookupd; raises RequestFailed if there is no valid response."""

TOPIC_NOT_FOUND: Final = "TOPIC_NOT_FOUND"


async def fetch_nsqds(daemon: Daemon, topic: str | None) -> dict[str, Node]:
    """Return the nsqds that one nsqlookupd lists for a topic, by ``tcp_address``; for None, those of all topics."""
    try:
        if topic is None:
            document = await daemon.request_document("GET", "/nodes")
            nodes = [entry.node for entry in _decode(daemon, decode_registered_nodes, document)]
        else:
            document = await daemon.request_document("GET", "/lookup", {"topic": topic})
            nodes = _decode(daemon, decode_nodes, document)
    except RequestRefused as refusal:
        if refusal.message != TOPIC_NOT_FOUND:
            raise
        nodes = []
    return {tcp_address(node): node for node in nodes}


async def fetch_topics(daemon: Daemon, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the topics of one nsqlookupd in which ``pattern`` is found, each by its own name."""
    document = await daemon.request_document("GET", "/topics")
    names = _decode(daemon, lambda document: decode_names(document, "topics"), document)
    return {name: name for name in names if pattern.search(name)}


def _decode(daemon: Daemon, decode: Callable[[Mapping[str, Any]], list[T]], document: Mapping[str, Any]) -> list[T]:
    try:
        return decode(document)
    except ValueError as error:
        raise RequestFailed(f"{daemon}: {error}") from error


# ---- several nsqlookupds --------------------------------------------------------------------------------------


async def lookup_nsqds(
    lookupd_http_addresses: Sequence[str], topic: str | None, *, options: LookupOptions | None = None
) -> list[str]:
    """Return the addresses of the nsqds that have a topic according to any nsqlookupd.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        topic: the topic; None for the nsqds of all topics.
        options: see ``LookupOptions``.

    Raises:
        OptionError: the topic or an address is invalid.
        RequestFailed: no nsqlookupd responded; the text has the reason for each.
    """
    options = options or LookupOptions()
    if topic is not None:
        encode_topic(topic)
    daemons = options.daemons(lookupd_http_addresses)
    nodes = await _query_all(daemons, lambda daemon: fetch_nsqds(daemon, topic))
    return options.select(nodes.values())


async def lookup_topics(
    lookupd_http_addresses: Sequence[str],
    pattern: str | re.Pattern[str] = "",
    *,
    options: LookupOptions | None = None,
) -> list[str]:
    """Return the topics that any nsqlookupd lists, sorted.

    Args:
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd.
        pattern: a regular expression, searched anywhere in a name; by default it matches all names.
        options: see ``LookupOptions``.

    Raises:
        OptionError: the pattern or an address is invalid.
        RequestFailed: no nsqlookupd responded; the text has the reason for each.
    """
    options = options or LookupOptions()
    compiled = compile_pattern(pattern)
    daemons = options.daemons(lookupd_http_addresses)
    return sorted(await _query_all(daemons, lambda daemon: fetch_topics(daemon, compiled)))


def compile_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern, compiled; raise OptionError if it is no regular expression."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise OptionError(f"pattern {pattern!r} is no regular expression: {error}") from error


async def _query_all(daemons: Mapping[str, Daemon], query: Query[T]) -> dict[str, T]:
    """Return the merged responses; log the failures, and raise RequestFailed if there is no response."""
    responses: MergedResponses[T] = MergedResponses()
    await query_daemons(daemons, query, responses)
    return responses.merged()


async def query_daemons(daemons: Mapping[str, Daemon], query: Query[T], responses: MergedResponses[T]) -> None:
    """Query several nsqlookupds at a time, record their responses, and log their failures.

    Args:
        daemons: the nsqlookupds by their ``key``.
        query: sends the request to one of them.
        responses: earlier responses; those of an nsqlookupd that fails stay.

    Raises:
        RequestFailed: no nsqlookupd responded; the text has the reason for each.
    """
    answered: list[Daemon] = []
    failures: list[str] = []

    async def query_one(key: str, daemon: Daemon) -> None:
        try:
            responses.record(key, await query(daemon))
            answered.append(daemon)
        except RequestFailed as error:
            failures.append(str(error))
            logger.warning("nsqlookupd %s: %s", daemon, error, extra={"lookupd": daemon.name})

    async with anyio.create_task_group() as tasks:
        for key, daemon in daemons.items():
            tasks.start_soon(query_one, key, daemon)
    if not answered:
        raise RequestFailed("; ".join(failures) or "there is no nsqlookupd to ask")
