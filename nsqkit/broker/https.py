"""HTTPS: the routes of HTTP, through TLS.

The rule it guards: a client that cannot be spoken with over TLS is told so in a way that it understands, as by Go's
server: one that speaks HTTP without TLS gets an answer in HTTP, and all others an alert.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, aclose_forcefully

from nsqkit.broker.http_api import serve_http
from nsqkit.errors import ProtocolError
from nsqkit.transport.tls import TLS
from nsqkit.transport.tls_stream import TLSStream

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.broker.server import Nsqd
    from nsqkit.transport.tls import Context

__all__ = ["serve_https"]

logger = logging.getLogger("nsqkit.broker")

HTTP_HEADS: Final = frozenset((b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"))
"""How a request begins that came without TLS; those that Go's server knows."""

PLAIN_ANSWER: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


async def serve_https(nsqd: Nsqd, context: Context, stream: ByteStream, remote_address: str) -> None:
    """Answer the requests of one connection until it ends; the stream is closed then.

    Args:
        nsqd: the broker that they are for.
        context: the rules of TLS.
        stream: where the client is.
        remote_address: ``host:port`` of the client, for the log.
    """
    tls = TLS(context)
    secure = TLSStream(stream, tls)
    try:
        await secure.handshake()
    except (ProtocolError, EndOfStream, BrokenResourceError, ClosedResourceError) as error:
        reason = str(error) if isinstance(error, ProtocolError) else "EOF"
        logger.warning("http: TLS handshake error from %s: %s", remote_address, reason)
        if tls.head in HTTP_HEADS:
            await _answer_plain(stream)
        await aclose_forcefully(stream)
    else:
        await serve_http(nsqd, secure, remote_address, secure=True)


async def _answer_plain(stream: ByteStream) -> None:
    try:
        await stream.send(PLAIN_ANSWER)
        await stream.send_eof()
    except (BrokenResourceError, ClosedResourceError, OSError):  # an OSError comes from trio's send_eof
        return
