"""Transfers messages into a broker and out of it, for some seconds, by separate client programs.

Both brokers of a run get the same clients: nsqd's own ``bench_writer`` and ``bench_reader`` if
``--nsq-bench-directory`` names their directory, else the raw client. Both use two connections; the writer has one
command outstanding on each. The raw client does the rest, single PUBs and layers, for either broker.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.harness import PROGRAM_TIMEOUT, ROOT, RunFailed


@attrs.frozen
class Flow:
    """The messages of one direction.

    Attributes:
        count: messages.
        seconds: their duration.
    """

    count: float
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds


class Program:
    """A started client.

    Args:
        command: its command line.
        directory: where its modules are.
    """

    def __init__(self, command: list[str], directory: Path) -> None:
        self._name = command[0]
        self._process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait(self) -> Flow:
        """Return its figures.

        Raises:
            RunFailed: it took too long, or ended with an error.
        """
        try:
            output, _ = self._process.communicate(timeout=PROGRAM_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise RunFailed(f"{self._name} took more than {PROGRAM_TIMEOUT:g} seconds") from error
        flow = _parse(output) if self._process.returncode == 0 else None
        if flow is None:
            raise RunFailed(f"{self._name} ended with code {self._process.returncode}: {output[-500:]}")
        return flow


def _parse(output: str) -> Flow | None:
    if output.startswith("{"):
        return Flow(**json.loads(output))
    found = re.search(r"duration: ([\d.]+)(m?s) .* ([\d.]+)ops/s", output)
    if found is None:
        return None
    seconds = float(found[1]) / {"s": 1, "ms": 1000}[found[2]]
    return Flow(float(found[3]) * seconds, seconds)


@attrs.frozen
class Traffic:
    """Starts clients of one broker.

    Attributes:
        address: the broker's.
        layer: the layer between client and broker.
        directory: where nsqd's own clients are; None selects the raw client.
    """

    address: str
    layer: str = ""
    directory: str | None = None

    def publish(self, seconds: float, *, batch: int = raw_client.BATCH) -> Program:
        """Start to publish MPUBs of ``batch`` messages."""
        if self.directory is None or self.layer:
            return self._raw("publish", seconds, batch)
        return self._own("bench_writer", seconds, f"-batch-size={batch}")

    def publish_singly(self, seconds: float) -> Program:
        """Start to publish PUBs, which nsqd's own clients do not support."""
        return self._raw("publish", seconds, 1)

    def consume(self, seconds: float) -> Program:
        """Start to consume with RDY 2500."""
        if self.directory is None or self.layer:
            return self._raw("consume", seconds, raw_client.RDY)
        return self._own("bench_reader", seconds, f"-rdy={raw_client.RDY}", "-channel=channel")

    def _raw(self, verb: str, seconds: float, count: int) -> Program:
        words = [verb, self.address, f"{seconds:g}", str(count), *([self.layer] if self.layer else [])]
        return Program([sys.executable, "-m", "tests.benchmarks.raw_client", *words], ROOT)

    def _own(self, name: str, seconds: float, *flags: str) -> Program:
        command = [str(Path(self.directory or ".").resolve() / name), f"-nsqd-tcp-address={self.address}"]
        return Program([*command, f"-runfor={seconds:g}s", f"-topic={raw_client.TOPIC}", *flags], ROOT)
