"""Files that are damaged while a broker runs, and the messages that this may cost.

Those are the messages in the damaged files, also those that are put there later: until the damage is found. All others
are as safe as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.data_path import RECORDS
from tests.simulation.promises import CHANNELS, TOPIC, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.broker.core.disk.disks import Content
    from tests.simulation.by_hand import Disk

SIZES: Final = (1, 4, 30, 500)


def _last_record(data: bytes | bytearray) -> int:
    """Return where the last message begins, which has perhaps not been read."""
    begin = end = 0
    while end + 4 <= len(data):
        begin, end = end, end + 4 + int.from_bytes(data[end : end + 4], "big")
    return begin


class Damages:
    """The damaged files of one broker.

    Args:
        ledger: the messages that it owes.
        note: called with a text for each damage.
    """

    def __init__(self, ledger: Ledger, note: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._note = note
        # With the rest that was set aside, and where the first damage begins.
        self._damaged: dict[str, tuple[Content, Content | None, int]] = {}

    def add(self, disk: Disk, random: Random) -> None:
        """Change some bytes of a file with messages, in the page cache and on the disk."""
        files = {name: content for name, content in disk.contents.items() if RECORDS.fullmatch(name) and content.data}
        if not files:
            return
        # The newest file of a queue is the last of its names.
        newest = {name.partition(".diskqueue.")[0]: name for name in sorted(files)}
        name = random.choice(random.choice((sorted(files), sorted(newest.values()))))
        content, size = files[name], random.choice(SIZES)
        position = random.choice((random.randrange(len(content.data)), _last_record(content.data)))
        new = bytes(random.randrange(0x21, 0x100) for _ in range(size))  # a client cannot answer an id with a space
        new = random.choice((bytes(size), new))[: len(content.data) - position]
        self._forget(name, content.data)
        content.data[position : position + size] = new
        synced = bytearray(content.synced)
        synced[position : position + size] = new[: max(len(synced) - position, 0)]
        content.synced = bytes(synced)
        self._note(f"{size} bytes at {position} of {name} are damaged")
        if name in self._damaged:
            position = min(position, self._damaged[name][2])
        self._damaged[name] = content, disk.contents.get(f"{name}.bad"), position

    def _forget(self, name: str, data: bytes | bytearray) -> None:
        """Do not demand the messages any more whose bodies are in the data of a file."""
        found = RECORDS.fullmatch(name)
        assert found is not None
        topic, _, channel = found[1].encode().partition(b":")
        places = {channel, TOPIC} if channel else {*CHANNELS, TOPIC}  # those of the topic may be in any channel
        for place in places:
            owed = self._ledger.owed.get((topic, place), {})
            for body in [body for body in owed if body in data]:
                del owed[body]
        for publish in self._ledger.unanswered:
            if publish.topic == topic and any(body in data for body in publish.bodies):
                publish.places -= places

    def update(self, disk: Disk) -> None:
        """Forget the messages in damaged files that are not used any more, or whose rest was set aside."""
        for name, (content, rest, position) in list(self._damaged.items()):
            new_rest = disk.contents.get(f"{name}.bad")
            if (disk.contents.get(name), new_rest) != (content, rest):
                self._forget_all(name, disk)
                # The rest may begin behind the damage, if the messages there were read before it.
                if disk.contents.get(name) == content and len(content.data) > position:
                    self._damaged[name] = content, new_rest, position
                else:
                    del self._damaged[name]

    def _forget_all(self, name: str, disk: Disk) -> None:
        content, before, _ = self._damaged[name]
        self._forget(name, before.data if before else b"")
        rest = disk.contents.get(f"{name}.bad")
        self._forget(name, content.data + (rest.data if rest else b""))  # a message may be partly in the rest

    def started(self, disk: Disk) -> None:
        """Forget those that a start has moved from a topic to a damaged file of a channel, and set aside there."""
        for name in self._damaged:
            for each in (name, f"{name}.bad"):
                if each in disk.contents:
                    self._forget(name, disk.contents[each].data)

    def restart(self, before: Disk, disk: Disk) -> None:
        """Forget those in all damaged files: the next start may not read them to their end."""
        for name in list(self._damaged):
            self._forget_all(name, before)
            if name in disk.contents:
                self._damaged[name] = disk.contents[name], disk.contents.get(f"{name}.bad"), self._damaged[name][2]
            else:
                del self._damaged[name]
