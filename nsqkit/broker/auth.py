"""Requests to auth servers: what a client may do.

The servers are tried from a random one on until one gives a usable answer (nsqd, internal/auth/authorizations.go); if
none does, the error lists the failure of each.
"""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import anyio.to_thread

from nsqkit.broker.core.session.auth import AuthState, decode_auth_state
from nsqkit.clock import NS_PER_S
from nsqkit.errors import NSQError, OptionError, RequestFailed
from nsqkit.transport.address import shown_url

if TYPE_CHECKING:
    from random import Random

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock

ANSWER_SIZE_MAX: Final = 1024 * 1024
"""Bytes of an auth server's answer; nsqd has no limit."""


def check_library() -> None:
    """Raise OptionError, with the command that installs it, if google-re2 is missing; it compiles the patterns."""
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
    clock: Clock,
    random: Random,
) -> AuthState:
    """Return the permissions that an auth server grants to a client.

    The remote IP is empty for a Unix socket, and the common name without a certificate.

    Raises:
        RequestFailed: no server gave a usable answer; the text has a reason for each. It is for the log: the client
            gets only ``E_AUTH_FAILED``.
    """
    fields = {
        "common_name": common_name,
        "remote_ip": remote_ip,
        "secret": secret.decode("utf-8", "surrogateescape"),
        "tls": "true" if tls else "false",
    }
    addresses = options.auth_http_addresses
    first = random.randrange(len(addresses))
    failures = []
    for address in addresses[first:] + addresses[:first]:
        try:
            body = await _fetch(address, options, fields, clock)
            # In a thread, since compiling many patterns would hold up the event loop.
            return await anyio.to_thread.run_sync(decode_auth_state, body, clock.now_ns())
        except NSQError as error:
            failures.append(f"failed to auth against {shown_url(address)} - {error}")
    raise RequestFailed("; ".join(failures))


async def _fetch(address: str, options: BrokerOptions, fields: dict[str, str], clock: Clock) -> bytes:
    # Imported here, since the start does not need h11.
    from nsqkit.http.client import fetch_v1
    from nsqkit.http.messages import encode_json

    url = address if "://" in address else f"http://{address}/auth"
    document = None
    if options.auth_http_request_method == "post":
        document = encode_json({name: [value] for name, value in fields.items()})
    else:
        # As in nsqd, a question mark is added even to a URL that has one.
        url = f"{url}?{urlencode(fields, errors='surrogateescape')}"
    # In a thread, since it reads certificates from the disk.
    tls = await anyio.to_thread.run_sync(_tls_context, options) if url.startswith("https:") else None
    return await fetch_v1(
        url,
        document=document,
        clock=clock,
        # As in Go, 0 means no limit.
        connect_timeout=options.http_client_connect_timeout_ns / NS_PER_S or None,
        request_timeout=options.http_client_request_timeout_ns / NS_PER_S or None,
        body_max=ANSWER_SIZE_MAX,
        tls=tls,
    )


def _tls_context(options: BrokerOptions) -> ssl.SSLContext:
    """Return the TLS settings for auth servers: the CA of the options, or those of the system."""
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    except OSError as error:
        raise RequestFailed(f"option tls_root_ca_file {options.tls_root_ca_file!r}: {error}") from error
    # The other values are at most the default minimum of the library.
    if options.tls_min_version == "tls1.3":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
