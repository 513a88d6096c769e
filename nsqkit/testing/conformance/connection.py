"""One connection of the suite to a broker: blocking, with a limit of time for each answer, and a transcript."""

from __future__ import annotations

import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, Self

from nsqkit.errors import ProtocolError
from nsqkit.testing.conformance.received import END, NOTHING, Message, Mismatch, Received, show, split_frame
from nsqkit.transport.address import split_address
from nsqkit.wire.compression import Deflate, Snappy

if TYPE_CHECKING:
    from types import TracebackType

MAGIC: Final = b"  V2"
QUIET_S: Final = 0.5
"""Seconds without a frame that count as nothing; nsqd may hold a message for 250 ms in its output buffer."""

READ_SIZE: Final = 65536


class Connection:
    """A connection to the TCP port of a broker; the magic is sent at once.

    Args:
        address: ``host:port``.
        transcript: gets a line for everything that is sent or received.
        name: begins each of those lines.
        timeout: seconds for each answer.
        magic: the first bytes.

    Raises:
        OSError: the broker cannot be reached.
    """

    def __init__(self, address: str, transcript: list[str], *, name: str, timeout: float, magic: bytes = MAGIC) -> None:
        self._transcript = transcript
        self._name = name
        self._timeout = timeout
        self._socket = socket.create_connection(split_address(address), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._layer: Deflate | Snappy | None = None
        self._data = b""
        if magic:
            self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._socket.close()

    # ---- bytes ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            Mismatch: the broker does not accept them.
        """
        self._log(f"sent {show(data)}")
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(self._layer.encode(data) if self._layer else data)
        except OSError as error:
            raise Mismatch("a connection that accepts bytes", f"{error}") from error

    def receive(self, seconds: float | None = None) -> Received:
        """Return the next frame, END, or NOTHING after ``seconds``, by default the limit of an answer."""
        received = self._receive(self._timeout if seconds is None else seconds)
        self._log(f"received {received}")
        return received

    def _receive(self, seconds: float) -> Received:
        deadline = time.monotonic() + seconds
        while True:
            frame, self._data = split_frame(self._data)
            if frame is not None:
                return frame
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return Received(NOTHING)
            self._socket.settimeout(remaining)
            try:
                data = self._socket.recv(READ_SIZE)
            except TimeoutError:
                return Received(NOTHING)
            except OSError:  # a reset is an end too: bytes that the broker has not read cause it
                return Received(END)
            if not data:
                return Received(END)
            self._data += self._decode(data)

    def _decode(self, data: bytes) -> bytes:
        if self._layer is None:
            return data
        try:
            return b"".join(self._layer.decode(data))
        except ProtocolError as error:
            raise Mismatch("a compressed stream", str(error)) from error

    def _log(self, line: str) -> None:
        self._transcript.append(f"{self._name} {line}")

    # ---- upgrades ---------------------------------------------------------------------------------------------

    def start_tls(self) -> None:
        """Continue in TLS; any certificate is accepted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._log("starts TLS")
        try:
            self._socket.settimeout(self._timeout)
            self._socket = context.wrap_socket(self._socket)
        except OSError as error:
            raise Mismatch("a handshake of TLS", str(error)) from error

    def start_compression(self, layer: Deflate | Snappy) -> None:
        """Continue compressed."""
        self._log(f"starts {type(layer).__name__.lower()}")
        self._layer = layer
        self._data = self._decode(self._data)

    # ---- expectations: each raises Mismatch ---------------------------------------------------------------------

    def expect(self, expected: Received, seconds: float | None = None) -> None:
        """Receive one item and compare it."""
        received = self.receive(seconds)
        if received != expected:
            raise Mismatch(str(expected), str(received))

    def expect_response(self, payload: bytes = b"OK") -> None:
        """Receive a response."""
        self.expect(Received("response", payload))

    def expect_error(self, text: bytes, *, ends: bool) -> None:
        """Receive an error, and then the end of the connection if ``ends``."""
        self.expect(Received("error", text))
        if ends:
            self.expect(Received(END))

    def expect_end(self, seconds: float | None = None) -> None:
        """Wait for the end of the connection."""
        self.expect(Received(END), seconds)

    def expect_nothing(self, seconds: float = QUIET_S) -> None:
        """Receive nothing for a while."""
        self.expect(Received(NOTHING), seconds)

    def expect_message(
        self, body: bytes | None = None, *, attempts: int | None = None, seconds: float | None = None
    ) -> Message:
        """Receive a message, and compare its body and its attempts where they are given."""
        received = self.receive(seconds)
        message = received.message()
        if (body is not None and message.body != body) or (attempts is not None and message.attempts != attempts):
            parts = [f"the body {show(body)}"] if body is not None else []
            parts += [f"attempt {attempts}"] if attempts is not None else []
            raise Mismatch(f"a message with {' and '.join(parts)}", str(received))
        return message

    # ---- commands ---------------------------------------------------------------------------------------------

    def identify(self, **fields: Any) -> dict[str, Any]:
        """Send IDENTIFY with ``feature_negotiation``, and return the object that the broker answers."""
        self.send(encode_identify({"feature_negotiation": True, **fields}))
        received = self.receive()
        try:
            answer = json.loads(received.payload) if received.kind == "response" else None
        except (ValueError, RecursionError):  # no JSON, or nested too deeply for Python
            answer = None
        if not isinstance(answer, dict):
            raise Mismatch("a response with a JSON object", str(received))
        return answer

    def publish(self, topic: bytes, *bodies: bytes) -> None:
        """Send a PUB for each body, and wait for each answer."""
        for body in bodies:
            self.send(encode_pub(topic, body))
            self.expect_response()

    def subscribe(self, topic: bytes, channel: bytes, *, ready: int | None = None) -> None:
        """Send SUB and wait for the answer; then send RDY if ``ready`` is given."""
        self.send(b"SUB %b %b\n" % (topic, channel))
        self.expect_response()
        if ready is not None:
            self.send(b"RDY %d\n" % ready)


def sized(body: bytes) -> bytes:
    """Return a body after its size in four bytes."""
    return len(body).to_bytes(4, "big", signed=True) + body


def encode_pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB " + topic + b"\n" + sized(body)


def encode_mpub(topic: bytes, *bodies: bytes) -> bytes:
    return b"MPUB " + topic + b"\n" + sized(encode_messages(*bodies))


def encode_messages(*bodies: bytes) -> bytes:
    """Return the body of an MPUB: the count, and each message after its size."""
    return len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))


def encode_identify(document: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(document).encode())
