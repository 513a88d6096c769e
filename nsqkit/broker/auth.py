"""Asking the auth servers what a client may do.

The rule it guards: the first usable answer counts. Where one server is asked is left to chance, and whatever is wrong
with it, the next one is asked (nsqd, internal/auth/authorizations.go); what each of them did wrong is told together.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import anyio.to_thread

from nsqkit.broker.core.session.auth import AuthState, decode_auth_state
from nsqkit.errors import NSQError, OptionError, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from ssl import SSLContext

    from nsqkit.broker.core.options import BrokerOptions

__all__ = ["check_library", "query_auth_servers"]

ANSWER_SIZE_MAX: Final = 1024 * 1024
"""Bytes of an auth server's answer; nsqd has no limit."""

_NS_PER_S: Final = 1_000_000_000
_USER: Final = re.compile("//[^/]*@")


def check_library() -> None:
    """Check that the patterns of auth servers can be compiled.

    Raises:
        OptionError: the package is missing; the text has the command that installs it.
    """
    if find_spec("re2") is None:
        raise OptionError(
            "option auth_http_addresses is set, and the package google-re2, which the patterns of auth servers need, "
            "is not installed: pip install 'nsqkit[server]'"
        )


async def query_auth_servers(
    options: BrokerOptions,
    *,
    secret: bytes,
    remote_ip: str,
    tls: bool,
    common_name: str,
    now_ns: Callable[[], int],
    random: Random,
) -> AuthState:
    """Return what an auth server grants to a client.

    Args:
        options: say whom to ask (``auth_http_addresses``, at least one), how, and how long to wait.
        secret: what the client has sent with AUTH.
        remote_ip: the client's address without its port; empty for a Unix socket.
        tls: whether the client's connection is encrypted.
        common_name: of the client's certificate; empty without one.
        now_ns: tells the time; asked when the answer has come.
        random: chooses whom to ask first.

    Raises:
        RequestFailed: no server gave an answer that can be used; the text has a reason for each. It is for the log:
            the client is only told that it failed.
    """
    fields: dict[str, str | bytes] = {
        "common_name": common_name,
        "remote_ip": remote_ip,
        "secret": secret,
        "tls": "true" if tls else "false",
    }
    addresses = options.auth_http_addresses
    first = random.randrange(len(addresses))
    failures = []
    for address in addresses[first:] + addresses[:first]:
        try:
            body = await _ask(address, options, fields)
            # In a thread, since many patterns take many times as long as a turn of the event loop may.
            return await anyio.to_thread.run_sync(decode_auth_state, body, now_ns())
        except NSQError as error:
            # A URL may hold a password and, in its query, a secret.
            shown = _USER.sub("//", address.partition("?")[0])
            failures.append(f"failed to auth against {shown} - {error}")
    raise RequestFailed("; ".join(failures))


async def _ask(address: str, options: BrokerOptions, fields: dict[str, str | bytes]) -> bytes:
    # h11 is imported when there is something to ask, so that a start does not wait for it.
    from nsqkit.http.client import fetch_v1
    from nsqkit.http.messages import encode_json

    url = address if "://" in address else f"http://{address}/auth"
    document = None
    if options.auth_http_request_method == "post":
        document = encode_json({name: [_text(value)] for name, value in fields.items()})
    else:
        # The question mark is nsqd's, even after a URL that has one already.
        url = f"{url}?{urlencode(fields, errors='surrogateescape')}"
    return await fetch_v1(
        url,
        document=document,
        connect_timeout=_seconds(options.http_client_connect_timeout_ns),
        request_timeout=_seconds(options.http_client_request_timeout_ns),
        body_max=ANSWER_SIZE_MAX,
        tls=_tls_context(options) if url.startswith("https:") else None,
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _seconds(duration_ns: int) -> float | None:
    """Return a timeout in seconds; 0 means none, as in Go."""
    return duration_ns / _NS_PER_S or None


def _tls_context(options: BrokerOptions) -> SSLContext:
    """Return what an auth server's certificate is held against: the CA of the options, or those of the system."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    except OSError as error:
        raise RequestFailed(f"option tls_root_ca_file {options.tls_root_ca_file!r}: {error}") from error
    # What else the option can say is at most the libraries' own minimum.
    if options.tls_min_version == "tls1.3":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
