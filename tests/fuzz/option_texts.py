"""Texts that users write: durations, flags, configuration files, environment variables, addresses, queries, patterns.

The mode selects one. A text is read or refused with an ``OptionError``.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

from nsqkit import ConsumerOptions, ProducerOptions
from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.broker.core.report.statsd import resolve_prefix
from nsqkit.errors import OptionError
from nsqkit.http.messages import HTTPError, Query, Request, parse_integer
from nsqkit.lookup.lookupd_client import compile_pattern
from nsqkit.lookupd.options import OPTIONS as LOOKUPD_OPTIONS
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.options.checks import check_addresses
from nsqkit.options.durations import DURATION_NS_MAX, format_duration, parse_duration
from nsqkit.options.flags import check_limits, parse_document, parse_flags
from nsqkit.options.settings import PREFIX, load_settings
from nsqkit.transport.address import port_of
from nsqkit.wire.names import is_ephemeral, is_valid_name, quote
from tests.fuzz.harness import pack


def _durations(text: str) -> None:
    for each in text.split():
        duration_ns = parse_duration(each)
        assert parse_duration(format_duration(duration_ns)) == duration_ns
    format_duration(-DURATION_NS_MAX)


def _make(cls: Any, options: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        check_limits(options[name], value, name)
    made = cls(**values)
    if isinstance(made, BrokerOptions):
        resolve_prefix(made.statsd_prefix, made.broadcast_address, 4151)


def _flags(text: str) -> None:
    _make(BrokerOptions, OPTIONS, parse_flags(text.split("\n"), OPTIONS))


def _lookupd_flags(text: str) -> None:
    _make(LookupdOptions, LOOKUPD_OPTIONS, parse_flags(text.split("\n"), LOOKUPD_OPTIONS))


def _file(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    _make(BrokerOptions, OPTIONS, parse_document(document, OPTIONS))


def _environment(text: str) -> None:
    environ = {PREFIX + name: value for name, _, value in (line.partition("=") for line in text.split("\n"))}
    load_settings(ConsumerOptions, environ=environ, beside=[ProducerOptions])


def _addresses(text: str) -> None:
    check_addresses(text.split(), "addresses", or_url=True)
    for each in text.split():
        port_of(each)


def _query(text: str) -> None:
    try:
        query = Query(Request.of("GET", text))
        name = query.name("topic")
    except (HTTPError, ValueError):
        return
    assert quote(name)
    assert is_valid_name(name) or not is_valid_name(name[: -len(b"#ephemeral")]) or not is_ephemeral(name)
    try:
        assert -(1 << 63) <= parse_integer(query.get("defer")) < 1 << 63
    except ValueError:
        pass


def _pattern(text: str) -> None:
    compile_pattern(text)


KINDS: Final = (_durations, _flags, _lookupd_flags, _file, _environment, _addresses, _query, _pattern)
_TEXTS: Final = (
    *(b"1h30m -1.5s 300ms 0 0.3333333333333333333h 9223372036.854775807s +1us", b"--mem-queue-size=0x2a\n-verbose"),
    *(b"-http-address\n:4161", b'mem_queue_size = 5\nmsg_timeout = "1m"\ne2e_processing_latency_percentiles = [0.5]'),
    *(
        b"MAX_IN_FLIGHT=200\nMSG_TIMEOUT=1m30s\nNSQD_TCP_ADDRESSES=h:1,[::1]:2",
        b"h:4150 [::1]:0 /run/a @b http://h/ h:70000",
    ),
    *(b"/lookup?topic=t%23ephemeral&defer=-9223372036854775808&x", b"^orders\\.(a|b){2,3}$"),
)
SEEDS: Final = [
    *(pack(text, mode=mode) for mode, text in enumerate(_TEXTS)),
    *(pack(pattern, mode=7) for pattern in (b"a{99999999999999999999}", b"(" * 5000)),
    pack(b"h:" + b"1" * 5000, mode=5),
    *(pack(f"-{option.flag}\n1".encode(), mode=1) for option in OPTIONS.values()),
    *(pack(f"{option.config_name} = 1".encode(), mode=3) for option in OPTIONS.values()),
]
WORDS: Final = [
    *(option.flag.encode() for option in OPTIONS.values()),
    b"1h",
    b"_ns",
    b"\xc2\xb5s",
    b"0o7",
    b"0x",
    b"-9",
    b"{9999999999}",
]
CALLS_PER_UNIT: Final = 100


def run(data: bytes) -> int:
    mode, content = data[3:4], data[5:]
    try:
        KINDS[mode[0] % len(KINDS) if mode else 0](content.decode("utf-8", "surrogateescape"))
    except OptionError:
        pass
    return len(content)
