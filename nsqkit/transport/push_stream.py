"""The interface of a byte stream that passes data to a receiver, without a task that waits for it.

``nsqkit.transport.pump`` uses it where a stream offers it; ``nsqkit.transport.asyncio_stream`` implements it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from anyio.abc import ByteStream


class PushStream(ByteStream):
    """A byte stream with a receiver and with writes that do not wait.

    Attributes:
        is_writable: True while the stream is open and the kernel has taken all that was sent.
        send_nowait: sends bytes and returns at once; to be called only while the stream is writable.
        call_soon: has the event loop call a function in its next turn.
    """

    is_writable: bool
    send_nowait: Callable[[bytes], None]
    call_soon: Callable[[Callable[[], None]], object]

    @abstractmethod
    def set_receiver(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Pass all data to ``on_data`` from now on, those that wait included, and call ``on_end`` once after it.

        The event loop calls both outside of any task; they must not raise.
        """

    @abstractmethod
    def pause_reading(self) -> None:
        """Read nothing from the socket, and pass nothing to the receiver."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Read again after ``pause_reading``."""

    @property
    @abstractmethod
    def unsent_size(self) -> int:
        """Bytes that were sent and that the kernel has not taken."""

    @abstractmethod
    def detach(self) -> int | None:
        """Stop reading until ``resume_reading``, and return the file descriptor of the socket for the caller's use.

        None, and nothing has changed, if bytes wait in either direction, or if there is no such descriptor.
        """

    @abstractmethod
    def abort(self) -> None:
        """Close at once, without sending what the kernel has not taken."""
