from __future__ import annotations

import pytest

from nsqkit.errors import ProtocolError
from nsqkit.testing.link.actions import Change, Garbage, Oversize, WrongLength, WrongType
from nsqkit.testing.link.items import Item
from nsqkit.wire.commands import encode_publish
from nsqkit.wire.frames import OK_FRAME, FrameDecoder

PUB = Item("PUB", encode_publish(b"t", b"body"))


@pytest.mark.parametrize(
    ("action", "item", "data"),
    [
        (Garbage(b"\xff"), Item("OK", OK_FRAME), b"\xff"),
        (WrongLength(7), Item("OK", OK_FRAME), b"\0\0\0\7\0\0\0\0OK"),
        (WrongLength(-1), PUB, b"PUB t\n\xff\xff\xff\xffbody"),
        (WrongType(9), Item("OK", OK_FRAME), b"\0\0\0\6\0\0\0\x09OK"),
        (Oversize(8), Item("OK", OK_FRAME), b"\0\0\0\x08\0\0\0\0OK\0\0"),
        (Oversize(6), PUB, b"PUB t\n\0\0\0\6body\0\0"),
        (Oversize(2), PUB, PUB.data),
    ],
    ids=["garbage", "length", "length of body", "type", "size", "size of body", "smaller size"],
)
def test_bytes_are_changed(action: Change, item: Item, data: bytes) -> None:
    assert action.change(item) == data


@pytest.mark.parametrize("action", [WrongType(3), WrongLength(3), Oversize(1001)], ids=["type", "length", "size"])
def test_changed_frame_is_refused_by_a_decoder(action: Change) -> None:
    decoder = FrameDecoder(frame_size_max=1000)
    with pytest.raises(ProtocolError):
        decoder.feed(action.change(Item("OK", OK_FRAME)))
