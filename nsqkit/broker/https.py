"""HTTPS: the HTTP routes, through TLS.

A client with which TLS fails gets an answer that it understands, as from Go's server: one that sends plain HTTP gets an
answer in plain HTTP, every other one a TLS alert.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, aclose_forcefully

from nsqkit.errors import ProtocolError
from nsqkit.transport.tls import TLS
from nsqkit.transport.tls_stream import TLSStream

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.broker.http_api import HTTPApi
    from nsqkit.transport.tls import Context

logger = logging.getLogger("nsqkit.broker")

HTTP_HEADS: Final = frozenset((b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"))
"""The first bytes of plain HTTP requests that Go's server recognizes (net/http, tlsRecordHeaderLooksLikeHTTP)."""

PLAIN_ANSWER: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


async def serve_https(api: HTTPApi, context: Context, stream: ByteStream, remote_address: str) -> None:
    """Answer the requests of one connection until it ends, then close the stream."""
    tls = TLS(context)
    secure = TLSStream(stream, tls)
    try:
        await secure.handshake()
    except (ProtocolError, EndOfStream, BrokenResourceError, ClosedResourceError) as error:
        reason = str(error) if isinstance(error, ProtocolError) else "EOF"
        logger.warning("http: TLS handshake error from %s: %s", remote_address, reason)
        if tls.head in HTTP_HEADS:
            # trio's send_eof raises an OSError.
            with suppress(BrokenResourceError, ClosedResourceError, OSError):
                await stream.send(PLAIN_ANSWER)
                await stream.send_eof()
        await aclose_forcefully(stream)
    else:
        await api.serve(secure, remote_address, secure=True)
