"""The client of nsqd's HTTP routes, except those that publish, which a producer has.

One method for each operation, named after the route.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from nsqkit.admin.daemon import DaemonAdmin, channel_params, topic_params
from nsqkit.admin.documents import read
from nsqkit.admin.stats import NsqdInfo, NsqdStats
from nsqkit.errors import OptionError
from nsqkit.wire.names import encode_channel, encode_topic


class NsqdAdmin(DaemonAdmin):
    """Operates one nsqd over HTTP, on asyncio and trio; see ``DaemonAdmin`` for the arguments.

    All methods raise ``RequestRefused`` for a refusal (its ``message`` is that of nsqd, such as ``TOPIC_NOT_FOUND``),
    ``RequestFailed`` without a usable answer, and ``OptionError`` for an invalid name.
    """

    async def info(self) -> NsqdInfo:
        """Return the identity and some limits of the nsqd."""
        return await self._get("/info", None, partial(read, NsqdInfo))

    async def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
    ) -> NsqdStats:
        """Return the state of topics, channels and clients.

        Args:
            topic: only this topic; empty for all. With an unknown topic the list is empty.
            channel: only channels of this name, and topics that have one; empty for all.
            include_clients: include each client, which is most of the work.
            include_mem: include memory statistics, for which Go's nsqd stops for a moment.
        """
        for name, flag in (("include_clients", include_clients), ("include_mem", include_mem)):
            if not isinstance(flag, bool):
                raise OptionError(f"{name} is {flag!r}; allowed is True or False")
        params = {
            "format": "json",
            "include_clients": str(include_clients).lower(),
            "include_mem": str(include_mem).lower(),
        }
        if topic:
            params["topic"] = encode_topic(topic).decode()
        if channel:
            params["channel"] = encode_channel(channel).decode()
        return await self._get("/stats", params, partial(read, NsqdStats))

    async def create_topic(self, topic: str) -> None:
        """Create a topic unless it exists."""
        await self._post("/topic/create", topic_params(topic))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and messages."""
        await self._post("/topic/delete", topic_params(topic))

    async def empty_topic(self, topic: str) -> None:
        """Delete the messages that are queued in a topic."""
        await self._post("/topic/empty", topic_params(topic))

    async def pause_topic(self, topic: str) -> None:
        """Stop the flow of messages from a topic to its channels."""
        await self._post("/topic/pause", topic_params(topic))

    async def unpause_topic(self, topic: str) -> None:
        """Resume the flow of messages from a topic to its channels."""
        await self._post("/topic/unpause", topic_params(topic))

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel of an existing topic unless it exists."""
        await self._post("/channel/create", channel_params(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages; its consumers are disconnected."""
        await self._post("/channel/delete", channel_params(topic, channel))

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Delete the messages of a channel, including those in flight."""
        await self._post("/channel/empty", channel_params(topic, channel))

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Stop deliveries from a channel."""
        await self._post("/channel/pause", channel_params(topic, channel))

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Resume deliveries from a channel."""
        await self._post("/channel/unpause", channel_params(topic, channel))

    async def get_config(self, option: str) -> Any:
        """Return the value of an option, under its name in the configuration file: ``mem_queue_size``.

        Durations are in nanoseconds. nsqd sends texts without quotes, so a text that is valid JSON is decoded as JSON.
        """
        return _read_value(await self._daemon.request("GET", _config_path(option)))

    async def put_config(self, option: str, value: Any) -> Any:
        """Change an option while nsqd runs, and return its value as ``get_config`` does.

        Args:
            option: ``nsqlookupd_tcp_addresses`` or ``log_level``; nsqd refuses others.
            value: a text, or anything that JSON can represent.
        """
        try:
            body = value if isinstance(value, str) else json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"value is {value!r:.100}; allowed is a text, or what JSON can carry") from error
        return _read_value(await self._daemon.request("PUT", _config_path(option), body=body.encode()))


def _config_path(option: str) -> str:
    if not isinstance(option, str) or not option.isidentifier() or not option.isascii():
        raise OptionError(f"option name {option!r} is not one; allowed is a word such as 'log_level'")
    return f"/config/{option}"


def _read_value(answer: bytes) -> Any:
    text = answer.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
