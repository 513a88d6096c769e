"""Mutants of the broker's files: syncs, positions, restarts, stops."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

CHANNEL: Final = "broker/core/topics/channel.py"
SESSION: Final = "broker/core/session/session.py"
SYNC: Final = "broker/core/disk/sync.py"
DURABLE: Final = "broker/core/disk/durable_queue.py"

MUTANTS: Final = (
    Mutant(
        "deferred messages are lost at a stop",
        "delayed messages vanish with each upgrade",
        CHANNEL,
        "for frame in in_flight], self.deferred.remove_everything())",
        "for frame in in_flight], [])",
        breaks=(15, 16, 17),
    ),
    Mutant(
        "fsync: DPUB is answered before its commit",
        "acknowledged messages are lost in a power cut",
        SESSION,
        "        if group_commit is not None:  # the answer waits",
        "        if group_commit is not None and not delay_ns:  # the answer waits",
        4_000,
        breaks=(15,),
    ),
    Mutant(
        "fsync: the directory is not synced",
        "acknowledged messages in a new file are lost in a power cut",
        SYNC,
        "                    raise plan.error\n            self._store.sync()",
        "                    raise plan.error",
        4_000,
        breaks=(15,),
    ),
    Mutant(
        "data is not synced before its positions",
        "messages that were synced are lost in a power cut",
        SYNC,
        "        for plan in self.plans:\n            plan.sync_data()\n",
        "",
        4_000,
        breaks=(15,),
    ),
    Mutant(
        "fsync: positions pass unfinished messages",
        "acknowledged messages are lost when the broker is killed",
        DURABLE,
        "            return number, Position(file, offset)\n",
        "            return self._taken, attrs.evolve(self._read)\n",
        2_500,
        breaks=(15,),
    ),
    Mutant(
        "fsync: deferred messages alone are never dropped",
        "files and memory grow, and all deferred messages come once more after a restart (found by a world)",
        DURABLE,
        "        return self._depth == len(self._aside) and self._has_finished_aside\n",
        "        return False\n",
        4_000,
        breaks=(23,),
    ),
    Mutant(
        "fsync: a deferred message with a damaged id still counts as in the file",
        "another acknowledged message, behind it, is not delivered, and lost at a stop (found by a world)",
        DURABLE,
        "        for message_id, _ in list(passed):\n            del self._aside[message_id]\n",
        "        list(passed)\n",
        1,
        "power",
        breaks=(15,),
        seed=15_133_226,
    ),
    Mutant(
        "files without positions stay where they are",
        "after a power cut, finished messages come back when their queue has come to their file (found by a world)",
        "broker/core/disk/storage.py",
        "        set_aside_unknown(self._files, self)\n",
        "",
        plan="files-without-positions",
        breaks=(9,),
    ),
    Mutant(
        "files behind a gap stay where they are",
        "after a power cut and a kill, finished messages come back among newer ones (found by a world)",
        "broker/core/disk/recovery.py",
        "    return [number for number in numbers if number > end]\n",
        "    return []\n",
        1,
        "power",
        breaks=(9,),
        seed=52_036_135,
    ),
    Mutant(
        "memory keeps the first messages of a publish that the disk refuses",
        "a publish that failed, and is sent again, is delivered in part, and then whole (found by a world)",
        "broker/core/disk/queue.py",
        """        in_backend = self.backend.put(frames[room:])  # first: if it fails, memory has none of them
        self._memory.extend(frames[:room])
""",
        """        self._memory.extend(frames[:room])
        in_backend = self.backend.put(frames[room:])
""",
        1_500,
        "power",
        breaks=(2,),
        seed=15_280_000,
    ),
    Mutant(
        "messages that were not counted are subtracted from those that were put later",
        "with a deferred message, a queue counts as empty although it has acknowledged messages",
        "broker/core/disk/disk_queue.py",
        """        found = self._depth - self._put_count
        if self._read < self._found_end:
            self._depth += max(1 - found, 0)
""",
        """        found = self._depth
        if self._read < self._write:
            self._depth = max(found, 1)
""",
        size="driver",
        plan="messages-that-were-not-counted",
        breaks=(1,),
    ),
    Mutant(
        "ids begin anew after a restart",
        "with a clock that was set back, two messages have one id, and a FIN drops the wrong one",
        "broker/core/disk/storage.py",
        "        used_tick = self.guids.used_tick = read_used_tick(self._files, self.reports)",
        "        used_tick = self.guids.used_tick = -1",
        plan="ids-after-a-clock-step",
        breaks=(4,),
    ),
    Mutant(
        "ids that begin ahead of the clock are not reserved at the start",
        "after two quick kills two messages have one id, and a FIN drops the wrong one",
        "broker/core/disk/storage.py",
        "        if used_tick < now_ns >> 20:",
        "        if used_tick < 1 << 62:",
        plan="ids-after-two-kills",
        breaks=(4,),
    ),
    Mutant(
        "positions that cannot be read are renamed before there are others",
        "acknowledged messages of a channel are lost when a full disk also has read errors at a start",
        "broker/core/disk/positions.py",
        "    try:\n        files.replace(name, meta)\n    except IsADirectoryError:\n",
        "    if damaged is None:\n",
        plan="positions-that-cannot-be-read",
        breaks=(1,),
    ),
    Mutant(
        "an error of a commit ends the broker",
        "a file that cannot be synced for a moment ends all connections",
        "broker/persistence.py",
        "            except OSError as error:\n                self.storage.record_write(error)",
        "            except FileExistsError as error:\n                self.storage.record_write(error)",
        breaks=(25,),
    ),
    Mutant(
        "pauses are forgotten at a restart",
        "a channel that an operator has paused delivers after an upgrade",
        "broker/core/metadata.py",
        '{"name": channel.name.decode(), "paused": channel.paused}',
        '{"name": channel.name.decode(), "paused": False}',
        breaks=(14,),
    ),
    Mutant(
        "times of --keep-deferred are lost at the second stop",
        "delayed messages come early after two restarts",
        "broker/core/disk/deferred_times.py",
        "        times = {**self.by_id, **times}",
        "        times = dict(times)",
        4_000,
        breaks=(16,),
    ),
    Mutant(
        "files that a killed process had read are not removed",
        "the space of up to all files of a queue is lost at each crash, and the files stay when a topic is deleted",
        "broker/core/disk/recovery.py",
        "    while number and files.exists(",
        "    while not number and files.exists(",
        plan="files-left-by-a-kill",
        breaks=(17,),
    ),
    Mutant(
        "a refused publish stays in other channels",
        "with a full disk, a publish that was refused is delivered, and comes twice when it is published again",
        "broker/core/topics/topic.py",
        "                        earlier.undo_put(frames)\n",
        "                        pass\n",
        3_000,
        size="power",
        breaks=(2,),
    ),
    Mutant(
        "the messages of a refused batch that are in memory stay in other channels",
        "with a full disk, a part of a batch that was refused is delivered, and comes twice when it is published again",
        "broker/core/disk/queue.py",
        "            count -= 1  # this one is in the backend\n",
        "            return 0\n",
        2_000,
        size="power",
        breaks=(2,),
        seed=50_010_000,
    ),
    Mutant(
        "fsync: a topic lets messages go that a channel could not store",
        "with a full disk, acknowledged messages that waited in a topic are lost when the broker is killed",
        "broker/core/topics/topic.py",
        "        if all(are_safe):\n",
        "        if are_safe:\n",
        4_000,
        size="power",
        breaks=(15,),
    ),
    Mutant(
        "fsync: messages that a sample leaves out are not finished",
        "they stay on the disk for ever, and come back after each restart",
        CHANNEL,
        "                    queue.finish(dropped)\n",
        "",
        1_000,
        size="power",
        breaks=(9,),
    ),
    Mutant(
        "fsync: a stop without names lets messages of unnamed channels go",
        "with a full disk at a stop, acknowledged messages are not found at the next start",
        "broker/persistence.py",
        "            names_are_saved = self._saved_revision == broker.changes.revision\n",
        "            names_are_saved = True\n",
        6_000,
        "power",
        breaks=(15,),
    ),
    Mutant(
        "fsync: a DPUB that the disk refused stays a message that is held elsewhere",
        "the depth is too low, and the last messages of the channel are not delivered",
        "broker/core/disk/durable_queue.py",
        "        self.put(frames)\n        end = attrs.evolve(self._write)\n",
        """        end = Position(1 << 60)
        self._aside.update((id_of(frame), _Aside(begin, end)) for frame in frames)
        self.put(frames)
        end = attrs.evolve(self._write)
""",
        4_000,
        "power",
        breaks=(26,),
    ),
    Mutant(
        "a stop leaves the temporary files of a sync",
        "each stop of a busy broker may leave files that nothing removes",
        "broker/core/disk/sync.py",
        """            plan.close()
            if plan.temporary:
                with suppress(OSError):
                    self._store.remove(plan.temporary)
""",
        "            plan.close()\n",
        size="power",
        breaks=(17,),
    ),
    Mutant(
        "fsync: a message counts as held elsewhere because one that was put aside later has its id",
        "after an id was given twice, as a disk failed and a clock was set back, a message is never delivered",
        "broker/core/disk/durable_queue.py",
        "            if aside is None or Position(file, offset) < aside.begin:\n",
        "            if aside is None:\n",
        1,
        "power",
        breaks=(15,),
        seed=15_034_173,
    ),
    Mutant(
        "fsync: the new id of a message may be that of another one",
        "after ids were given twice, a FIN drops the wrong message",
        "broker/core/disk/durable_queue.py",
        "        while id_of(frame) in self._unfinished or id_of(frame) in self._aside:\n",
        "        if id_of(frame) in self._unfinished or id_of(frame) in self._aside:\n",
        1,
        "power",
        breaks=(15,),
        seed=15_022_313,
    ),
    Mutant(
        "a queue whose files were all removed waits for them",
        "its depth stays, and messages behind it wait until the positions are written again (found by a world)",
        "broker/core/disk/disk_queue.py",
        '        if is_missing and not self._files.names(""):\n',
        "        if is_missing and not self._files.exists(self._meta_name):\n",
        plan="all-files-of-a-queue-removed",
        breaks=(26,),
    ),
    Mutant(
        "names that could not be written wait for the next change",
        "topics and channels that were created while the disk failed are gone after a kill",
        "broker/persistence.py",
        """                await clock.wait_until(clock.now_ns() + SAVE_PAUSE_NS)
                self._changed.set()
""",
        "                await clock.wait_until(clock.now_ns() + SAVE_PAUSE_NS)\n",
        size="driver",
        breaks=(17,),
    ),
    Mutant(
        "the rest of a failed write stays in a complete file",
        "a message that was refused is delivered, and an acknowledged one is not (found by a world)",
        "broker/core/disk/disk_queue.py",
        "        if self._has_rest:  # in a complete file it would be read\n",
        "        if False:\n",
        size="driver",
        plan="rest-of-a-failed-write",
        breaks=(1,),
    ),
    Mutant(
        "names that are written while a commit syncs count for it",
        "with --durability=fsync, a power cut loses a new topic with messages that were acknowledged",
        "broker/persistence.py",
        "            if not await self.save(broker):",
        "            await self.save(broker)\n            if False:",
        size="driver",
        plan="names-that-are-written-during-a-commit",
        breaks=(15,),
    ),
)
