"""The client of nsqd's HTTP routes, except those that publish, which a producer has.

The rule it guards: a method for each thing an operator does, named as nsqd names the route; the answer is a value.
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

__all__ = ["NsqdAdmin"]


class NsqdAdmin(DaemonAdmin):
    """Operates one nsqd over HTTP, on asyncio and trio; see ``DaemonAdmin`` for the arguments.

    All methods raise ``RequestRefused`` when nsqd says no (its ``message`` is nsqd's word, such as
    ``TOPIC_NOT_FOUND``), ``RequestFailed`` when it gives no answer that can be used, and ``OptionError`` for a name
    that cannot be one.
    """

    async def info(self) -> NsqdInfo:
        """Return who the nsqd is."""
        return await self._get("/info", None, partial(read, NsqdInfo))

    async def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
    ) -> NsqdStats:
        """Return the state of topics, channels and clients.

        Args:
            topic: only of this topic; empty for all. Of one that does not exist there is nothing to tell.
            channel: only of channels of this name, and topics that have one; empty for all.
            include_clients: tell of each client, too, which is most of the work.
            include_mem: tell of the memory, too, for which a real nsqd stops for a moment.
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

    # ---- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str) -> None:
        """Make a topic, unless there is one."""
        await self._post("/topic/create", topic_params(topic))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and messages."""
        await self._post("/topic/delete", topic_params(topic))

    async def empty_topic(self, topic: str) -> None:
        """Delete the messages that wait in a topic for a channel."""
        await self._post("/topic/empty", topic_params(topic))

    async def pause_topic(self, topic: str) -> None:
        """Keep what is published to a topic from its channels."""
        await self._post("/topic/pause", topic_params(topic))

    async def unpause_topic(self, topic: str) -> None:
        """Give the channels what has waited, and what comes."""
        await self._post("/topic/unpause", topic_params(topic))

    # ---- channels ------------------------------------------------------------------------------------------------

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel of a topic that there is, unless it has one."""
        await self._post("/channel/create", channel_params(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages; its consumers are disconnected."""
        await self._post("/channel/delete", channel_params(topic, channel))

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Delete the messages of a channel, also those that consumers have."""
        await self._post("/channel/empty", channel_params(topic, channel))

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Deliver nothing from a channel."""
        await self._post("/channel/pause", channel_params(topic, channel))

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Deliver from a channel again."""
        await self._post("/channel/unpause", channel_params(topic, channel))

    # ---- options -------------------------------------------------------------------------------------------------

    async def get_config(self, option: str) -> Any:
        """Return the value of an option, under its name in the configuration file: ``mem_queue_size``.

        nsqd tells durations as nanoseconds, and texts without quotes: one that looks like JSON is taken for JSON.
        """
        return _read_value(await self._daemon.ask("GET", _config_path(option)))

    async def put_config(self, option: str, value: Any) -> Any:
        """Change an option while nsqd runs, and return its value as ``get_config`` does.

        Args:
            option: ``nsqlookupd_tcp_addresses`` or ``log_level``; nsqd refuses others.
            value: a text, or anything that JSON can say.
        """
        try:
            body = value if isinstance(value, str) else json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(
                f"value is {value!r:.100}; allowed is a text, or what JSON can carry"
            ) from error
        return _read_value(await self._daemon.ask("PUT", _config_path(option), body=body.encode()))


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
