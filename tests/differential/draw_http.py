"""Draws requests to nsqd's HTTP server: good and bad ones, of every route."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.differential.words import BAD_DELAYS, BAD_NAMES

_ACTIONS: Final = ("create", "delete", "empty", "pause", "unpause")
_CONFIGURED: Final = (
    *("nsqlookupd_tcp_addresses", "log_level", "mem_queue_size", "id", "tcp_address_x", "max_msg_size", "msg_timeout"),
    *(
        "max_req_timeout",
        "sync_every",
        "tls_required",
        "e2e_processing_latency_percentiles",
        "Max_Msg_Size",
        "max-msg-size",
    ),
    *(
        "statsd_prefix",
        "auth_http_addresses",
        "deflate_enabled",
        "max_deflate_level",
        "log_prefix",
        "",
        "min_output_buffer_timeout",
    ),
)
_SETTINGS: Final = (
    *(("log_level", text) for text in ("info", "error", "warn", "loud", "", "INFO", '"info"', "9", "info\n")),
    *(("nsqlookupd_tcp_addresses", text) for text in ("[]", "[", "", "x", "null", "{}", "[1]")),
    *(("mem_queue_size", "5"), ("nothing", "1"), ("max_msg_size", "100")),
)


def request(
    random: Random, topics: list[str], channels: list[str], body: Callable[[], str], *, mild: bool
) -> dict[str, Any]:
    """Return the values of a step with one request.

    Args:
        random: the source of all choices.
        topics: references to topics.
        channels: names of channels.
        body: returns the next body.
        mild: only publishes and actions that are accepted.
    """
    topic, channel = random.choice(topics), random.choice(channels)
    choice = random.random()
    if choice < 0.25:
        return _publish(random, topic, body, mild=mild)
    if choice < 0.55 or mild:
        return _action(random, topic, channel)
    if choice < 0.7:
        return _bad_action(random, topic, channel)
    if choice < 0.88:
        return _read(random, topic, channel)
    return _odd(random, topic)


def quoted(name: str) -> str:
    """Return a name as a part of a query; only references and ASCII letters stay."""
    return "".join(
        char if (char.isascii() and char.isalnum()) or char in "<>._-" else f"%{ord(char):02X}" for char in name
    )


def _publish(random: Random, topic: str, body: Callable[[], str], *, mild: bool) -> dict[str, Any]:
    where, choice = quoted(topic), random.random()
    if choice < 0.4:
        delay = random.choice(("", "", "&defer=0", "&defer=1800000"))
        return _post(f"/pub?topic={where}{delay}", body())
    if choice < 0.6:
        lines = [body() for _ in range(random.randint(1, 4))]
        lines[1:1] = random.choice(([], [], [""], ["", ""]))
        return _post(f"/mpub?topic={where}", "\n".join(lines) + random.choice(("", "\n")))
    bodies = [body() for _ in range(random.randint(1, 4))]
    packed = struct.pack(">i", len(bodies)) + b"".join(
        struct.pack(">i", len(one)) + one.encode("latin-1") for one in bodies
    )
    if choice < 0.8 or mild:
        return _post(f"/mpub?topic={where}&binary=true", packed.decode("latin-1"))
    text = packed.decode("latin-1")
    return random.choice(
        (
            _post(f"/pub?topic={where}&defer={quoted(random.choice(BAD_DELAYS))}", body()),
            _post(f"/pub?topic={quoted(random.choice(BAD_NAMES))}", body()),
            _post(f"/pub?topic={where}", ""),
            _post("/pub", body()),
            _post(f"/pub?topic={where}", "m" * random.choice((64, 65, 300, 301))),
            _post(f"/mpub?topic={where}", "\n".join("m" * size for size in (3, random.choice((64, 65)), 9))),
            _post(f"/mpub?topic={where}", "m" * random.choice((299, 300, 301, 2000))),
            _post(f"/mpub?topic={where}", random.choice(("", "\n", "\n\n"))),
            _post(f"/mpub?topic={where}&binary={random.choice(('', '0', '1', 'false', 'no', 'TRUE', 'F'))}", text),
            _post(f"/mpub?topic={where}&binary=true", text[: random.randint(0, len(text))]),
            _post(f"/mpub?topic={where}&binary=true", text + "x"),
            _post(
                f"/mpub?topic={where}&binary=true", random.choice(("\xff" * 4, "\0\0\0\1\0\0\0\0", "\0\0\0\0", "\0"))
            ),
            {"method": "POST", "path": f"/pub?topic={where}"},
            {"method": "GET", "path": f"/pub?topic={where}"},
        )
    )


def _post(path: str, body: str = "") -> dict[str, Any]:
    return {"method": "POST", "path": path, "body": body}


def _action(random: Random, topic: str, channel: str) -> dict[str, Any]:
    action = random.choice(_ACTIONS)
    if random.random() < 0.4:
        return _post(f"/topic/{action}?topic={quoted(topic)}")
    return _post(f"/channel/{action}?topic={quoted(topic)}&channel={quoted(channel)}")


def _bad_action(random: Random, topic: str, channel: str) -> dict[str, Any]:
    action, name = random.choice(_ACTIONS), quoted(random.choice(BAD_NAMES))
    query = random.choice(
        (
            *("", "?", f"?topic={name}", f"?topic={quoted(topic)}", f"?topic={quoted(topic)}&channel={name}"),
            *(f"?topic={name}&channel={channel}", f"?channel={quoted(channel)}", "?topic=unknown&channel=unknown"),
            *(f"?topic={quoted(topic)}&channel=unknown", f"?topic={quoted(topic)};channel=x", "?topic=%zz", "?a=%"),
            *(f"?topic={quoted(topic)}&topic=other&channel={quoted(channel)}&x", f"?Topic={quoted(topic)}"),
        )
    )
    method = random.choice(("POST", "POST", "POST", "GET", "PUT", "HEAD", "DELETE", "OPTIONS"))
    return {"method": method, "path": f"/{random.choice(('topic', 'channel'))}/{action}{query}"} | (
        {"body": ""} if method in {"POST", "PUT"} else {}
    )


def _read(random: Random, topic: str, channel: str) -> dict[str, Any]:
    where = random.choice(("", f"&topic={quoted(topic)}", f"&topic={quoted(topic)}&channel={quoted(channel)}"))
    where = random.choice((where, where, "&topic=unknown", f"&topic={quoted(topic)}&channel=unknown", "&channel=c0"))
    extra = random.choice(
        ("", "", "&include_clients=false", "&include_mem=false", "&include_clients=x", "&include_mem=0")
    )
    extra += random.choice(("", "", "&include_clients=true", "&a=%zz"))
    if random.random() < 0.7:
        # Without a topic, the text also has the topics of other sequences.
        kind = random.choice(("json", "json", "text", "", "JSON"))
        return {"method": "GET", "path": f"/stats?format={kind}{where}{extra}"}
    return {"method": "GET", "path": random.choice(("/ping", "/info", *(f"/config/{name}" for name in _CONFIGURED)))}


def _odd(random: Random, topic: str) -> dict[str, Any]:
    choice = random.random()
    if choice < 0.4:
        name, value = random.choice(_SETTINGS)
        return {"method": random.choice(("PUT", "PUT", "POST")), "path": f"/config/{name}", "body": value}
    path = random.choice(
        (
            *(
                "/",
                "/nope",
                "/pub/",
                "/PUB",
                "//ping",
                "/stats/",
                "/topic",
                "/topic/create/",
                "/channel",
                "/ping?x=%zz",
            ),
            *(
                "/ping/",
                "/./ping",
                "/a/../ping",
                "/config",
                "/config/a/b",
                "/put",
                "/info/",
                "/Stats",
                "/ping#x",
                "/p%69ng",
            ),
        )
    )
    method = random.choice(("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE"))
    return {"method": method, "path": path} | ({"body": "x"} if method in {"POST", "PUT"} else {})
