"""Mutants: faults that are planted in nsqkit one at a time, each of which the worlds have to notice.

``python -m tests.simulation.mutants`` copies nsqkit, changes a few lines of the copy, and runs worlds with it until one
fails. A mutant that survives its budget of worlds, and one whose lines are not there any more, is a failure. A bug of
nsqkit that was mended is planted again here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
REGRESSIONS: Final = Path(__file__).parent / "regressions"
FIRST_SEED: Final = 100_000
SECONDS_MAX: Final = 180


@attrs.frozen
class Mutant:
    """One fault.

    Attributes:
        name: for the report.
        story: the harm that it does to a user.
        file: the module, below ``nsqkit/``.
        old: a piece of it, which occurs once.
        new: the piece with the fault.
        worlds: the most worlds that may pass.
        plan: a plan in ``regressions/`` that is run instead, for a fault that few worlds show.
    """

    name: str
    story: str
    file: str
    old: str
    new: str
    worlds: int = 1_000
    plan: str = ""


CHANNEL: Final = "broker/core/topics/channel.py"
TOPIC: Final = "broker/core/topics/topic.py"
SUBSCRIPTION: Final = "broker/core/topics/subscription.py"
SESSION: Final = "broker/core/session/session.py"
SYNC: Final = "broker/core/disk/sync.py"
DURABLE: Final = "broker/core/disk/durable_queue.py"
SLOT_LOG: Final = "spark/slots/slot_log.py"

MUTANTS: Final = (
    Mutant(
        "touched messages of a lost connection",
        "they never come back: lost until the broker restarts",
        CHANNEL,
        "        if subscription.in_flight:\n            self._abandoned[subscription] = timer",
        "        if subscription.in_flight.untouched:\n            self._abandoned[subscription] = timer",
        2_500,
    ),
    Mutant(
        "sets of lost connections stay",
        "the memory of the broker grows with each reconnect",
        CHANNEL,
        "                self._abandoned.pop(subscription, None)",
        "                pass",
    ),
    Mutant(
        "sets of lost connections forget their deadline",
        "messages of a consumer that has died never come back",
        CHANNEL,
        "            self._abandoned[subscription] = timer\n",
        "            self._abandoned[subscription] = timer\n            self._timers.cancel(timer)\n",
    ),
    Mutant(
        "attempts do not rise at a timeout",
        "max_attempts never applies to a handler that hangs",
        CHANNEL,
        "            self._put_back([for_redelivery(frame) for frame in frames])\n            self.update_ready",
        "            self._put_back(frames)\n            self.update_ready",
    ),
    Mutant(
        "unpaused channels wait for another message",
        "messages are stuck in a channel that was paused",
        CHANNEL,
        "        self.paused = False\n        self._changes.raise_revision()\n"
        "        self._changes.channels[self] = None",
        "        self.paused = False\n        self._changes.raise_revision()",
    ),
    Mutant(
        "delays of REQ are ignored",
        "a message that is requeued for an hour comes back at once, in a loop",
        CHANNEL,
        "        if due_ns is None:\n            self._put_back((frame,))",
        "        if True:\n            self._put_back((frame,))",
    ),
    Mutant(
        "deferred messages are lost at a stop",
        "delayed messages vanish with each upgrade",
        CHANNEL,
        "for frame in in_flight], self.deferred.remove_everything())",
        "for frame in in_flight], [])",
    ),
    Mutant(
        "a topic forgets that its last channel is gone",
        "messages that are published until the next channel exists are lost",
        TOPIC,
        "        self._flows = self._flows and bool(self.channels)\n",
        "",
    ),
    Mutant(
        "a waiting DPUB loses its delay",
        "delayed messages to a paused topic come at once",
        TOPIC,
        "            self.waiting_delays_ns.update(dict.fromkeys(map(id_of, kept), delay_ns))",
        "            pass",
    ),
    Mutant(
        "waiting messages go to one channel",
        "all other channels of the topic lose them",
        TOPIC,
        "for channel in self.channels.values()]\n        if all(are_safe)",
        "for channel in [*self.channels.values()][:1]]\n        if all(are_safe)",
    ),
    Mutant(
        "TOUCH has no limit",
        "a handler that hangs keeps its message for ever",
        SUBSCRIPTION,
        "min(now_ns + timeout_ns, delivered_ns + max_timeout_ns)",
        "now_ns + timeout_ns",
        2_500,
    ),
    Mutant(
        "RDY counts deliveries of the moment alone",
        "a consumer is flooded with all messages of its channel",
        SUBSCRIPTION,
        "        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)",
        "        return self.rdy_count - len(in_flight.touched)",
    ),
    Mutant(
        "RDY does not count touched messages",
        "a consumer that touches gets more than it asked for",
        SUBSCRIPTION,
        "        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)",
        "        return self.rdy_count - len(in_flight.untouched)",
    ),
    Mutant(
        "fsync: DPUB is answered before its commit",
        "acknowledged messages are lost in a power cut",
        SESSION,
        "        if group_commit is not None:  # the answer waits",
        "        if group_commit is not None and not delay_ns:  # the answer waits",
        4_000,
    ),
    Mutant(
        "fsync: the directory is not synced",
        "acknowledged messages in a new file are lost in a power cut",
        SYNC,
        "                    raise plan.error\n            self._store.sync()",
        "                    raise plan.error",
        4_000,
    ),
    Mutant(
        "data is not synced before its positions",
        "messages that were synced are lost in a power cut",
        SYNC,
        "        for plan in self.plans:\n            plan.sync_data()\n",
        "",
        4_000,
    ),
    Mutant(
        "fsync: positions pass unfinished messages",
        "acknowledged messages are lost when the broker is killed",
        DURABLE,
        "            return number, Position(file, offset)\n",
        "            return self._taken, attrs.evolve(self._read)\n",
        2_500,
    ),
    Mutant(
        "fsync: deferred messages alone are never dropped",
        "files and memory grow, and all deferred messages come once more after a restart (found by a world)",
        DURABLE,
        "        if self._depth != len(self._aside) or not any(self._aside.values()):\n",
        "        if self._depth >= 0:\n",
        4_000,
    ),
    Mutant(
        "ids begin anew after a restart",
        "with a clock that was set back, two messages have one id, and a FIN drops the wrong one",
        "broker/core/disk/storage.py",
        "        self.guids.used_tick = read_used_tick(self._files, self.reports)",
        "        self.guids.used_tick = -1",
        plan="ids-after-a-clock-step",
    ),
    Mutant(
        "an error of a commit ends the broker",
        "a file that cannot be synced for a moment ends all connections",
        "broker/persistence.py",
        "            except OSError as error:\n                self.storage.record_write(error)",
        "            except FileExistsError as error:\n                self.storage.record_write(error)",
    ),
    Mutant(
        "pauses are forgotten at a restart",
        "a channel that an operator has paused delivers after an upgrade",
        "broker/core/metadata.py",
        '{"name": channel.name.decode(), "paused": channel.paused}',
        '{"name": channel.name.decode(), "paused": False}',
    ),
    Mutant(
        "times of --keep-deferred are lost at the second stop",
        "delayed messages come early after two restarts",
        "broker/core/disk/deferred_times.py",
        "        times = {**self.by_id, **times}",
        "        times = dict(times)",
        4_000,
    ),
    Mutant(
        "RDY of a lost connection stays claimed",
        "after some reconnects a consumer gets nothing any more",
        "consumer/flow.py",
        "        self._claimed -= window.claim\n        return self._reshare(now_ns)",
        "        return self._reshare(now_ns)",
    ),
    Mutant(
        "a cut connection confirms its publishes",
        "the program believes that lost messages are safe",
        "producer/session.py",
        "            self._fail(_tokens(sent), lost_batch if isinstance(sent, Batch) else lost)",
        "            self._ok.extend(_tokens(sent))",
    ),
    Mutant(
        "the session of a client that has vanished stays",
        "its messages are delivered to it again and again",
        "broker/core/session/heartbeat.py",
        "        if self._silence_ns and now_ns >= self.received_ns + self._silence_ns:",
        "        if self._silence_ns < 0:",
    ),
    Mutant(
        "Spark: a chunk is finished before it is stored",
        "rows are lost when the executor dies in between",
        SLOT_LOG,
        "        self.phase = Phase.SLOT\n        return [PutSlot(self._next_number, self._chunk)]",
        "        self.phase = Phase.SLOT\n"
        "        return [FinishDuplicates(self._chunk), PutSlot(self._next_number, self._chunk)]",
    ),
    Mutant(
        "Spark: messages are not looked up",
        "rows come twice after a task was tried again",
        SLOT_LOG,
        "        if keys := tuple(key for key in self._chunk if key in self._redelivered):",
        "        if keys := ():",
        4_000,
    ),
    Mutant(
        "Spark: a put that was lost counts as stored",
        "a stopped owner finishes messages whose rows nothing reads",
        SLOT_LOG,
        "        if stored:\n            self.phase = Phase.FINISH",
        "        if True:\n            self.phase = Phase.FINISH",
        4_000,
    ),
    Mutant(
        "Spark: slots without an outcome are not replayed",
        "rows whose messages are finished are lost when an executor dies",
        SLOT_LOG,
        "        if len(decided) == len(data):",
        "        if True:",
        4_000,
    ),
    Mutant(
        "Spark: an unknown FIN counts as refused",
        "rows whose messages are finished are lost with a connection",
        "consumer/confirmation.py",
        "                unknown += messages",
        "                failed += messages",
        4_000,
    ),
)


@attrs.frozen
class Result:
    """The fate of a mutant: how many worlds it took, or why it was not noticed."""

    mutant: Mutant
    is_caught: bool
    text: str


def run(mutant: Mutant, python_path: str = "") -> Result:
    """Plant a mutant in a copy of nsqkit, and run worlds with it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "nsqkit", Path(folder, "nsqkit"), ignore=shutil.ignore_patterns("__pycache__"))
        path = Path(folder, "nsqkit", mutant.file)
        source = path.read_text(encoding="utf-8")
        if source.count(mutant.old) != 1:
            return Result(mutant, False, f"its lines occur {source.count(mutant.old)} times in {mutant.file}")
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        words = ["-m", "tests.simulation", str(FIRST_SEED), "--worlds", str(mutant.worlds), "--until-failure"]
        if mutant.plan:
            words = ["-m", "tests.simulation", "--plan", str(REGRESSIONS / f"{mutant.plan}.json")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(ROOT), python_path))}
        try:
            ran = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(mutant, False, f"no verdict in {SECONDS_MAX} s")
    lines = (ran.stdout or ran.stderr).strip().splitlines() or ["no output"]
    return Result(mutant, ran.returncode == 1 and " failed" in lines[0], "; ".join(lines[:2]))


def main() -> int:
    """Run all mutants; return 1 if one is not noticed."""
    begin = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(run, MUTANTS))
    for result in results:
        print("caught  " if result.is_caught else "SURVIVED", result.mutant.name, "|", result.text)
    caught_count = sum(result.is_caught for result in results)
    print(f"{caught_count} of {len(results)} mutants in {time.monotonic() - begin:.0f} s")
    return 0 if caught_count == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
