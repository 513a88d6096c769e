"""Fuzz nsqkit: ``python -m tests.fuzz broker_session --minutes 10``, or all targets without a name.

Each target runs in a process of its own, one for each core at a time. The working files are under ``.fuzz/``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

from tests.fuzz.corpus import NAMES, CorpusError, load_target, minimised, store_inputs, stored_inputs
from tests.fuzz.harness import Target, check

WORK: Final = Path(".fuzz")
INPUT_SIZE_MAX: Final = 4096
INPUT_SECONDS_MAX: Final = 25
_RUNS: Final = re.compile(r"number_of_executed_units: (\d+)")
_ARTIFACT: Final = re.compile(r"Test unit written to (\S+)")


@attrs.frozen
class Result:
    """The result of fuzzing one target; ``crashes`` are files with inputs."""

    name: str
    inputs: int
    cpu_seconds: float
    corpus_size: int
    crashes: list[str]
    status: int

    def __str__(self) -> str:
        rate = self.inputs / self.cpu_seconds if self.cpu_seconds else 0
        figures = f"{self.inputs} inputs, {rate:.0f} a second of CPU, {self.corpus_size} in the corpus"
        lines = [f"{self.name}: {figures}, {len(self.crashes)} crashes"]
        lines += [f"  python -m tests.fuzz {self.name} --replay {path}" for path in self.crashes]
        if self.status and not self.crashes:
            lines.append(f"  it ended with status {self.status}; see {WORK / self.name}.log")
        return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 after a crash, 2 if the command cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"targets: {', '.join(NAMES)}; by default all")
    parser.add_argument("--hours", type=float, default=0, help="how long each target runs")
    parser.add_argument("--minutes", type=float, default=0, help="the same; by default 1")
    parser.add_argument("--inputs", type=int, default=0, help="how many inputs each target runs, if time allows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time; by default the cores")
    parser.add_argument("--replay", metavar="FILE", help="run a target on the input in a file")
    parser.add_argument("--add", metavar="FILE", help="add the input in a file to the stored inputs of a target")
    parser.add_argument("--minimise", action="store_true", help="store the found inputs that reach more of nsqkit")
    options = parser.parse_args(words)
    try:
        targets = {name: load_target(name) for name in options.names or NAMES}
        return _run(options, targets)
    except (CorpusError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, targets: dict[str, Target]) -> int:
    if options.replay or options.add:
        if len(options.names) != 1:
            raise CorpusError("--replay and --add need the name of one target")
        ((name, target),) = targets.items()
        if options.add:
            store_inputs(name, [*stored_inputs(name), Path(options.add).read_bytes()])
        else:
            check(target, Path(options.replay).read_bytes())
            print("no failure")
        return 0
    if options.minimise:
        for name, target in targets.items():
            kept = minimised(target, [*target.SEEDS, *stored_inputs(name), *_found_inputs(name)])
            store_inputs(name, kept)
            print(f"{name}: {len(kept)} inputs")
        return 0
    if min(options.hours, options.minutes, options.inputs, options.jobs - 1) < 0:
        raise CorpusError("a limit is a number above 0, and at least one target runs at a time")
    if find_spec("atheris") is None:
        raise CorpusError("atheris is not installed: use tox run -e fuzz, or pip install atheris")
    seconds = round(options.hours * 3600 + options.minutes * 60)
    limits = [f"-max_total_time={seconds or (0 if options.inputs else 60)}"]
    if options.inputs:
        limits.append(f"-runs={options.inputs}")
    status = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda name: _fuzz(name, targets[name], limits), targets):
            print(result, flush=True)
            status = status or int(bool(result.status))
    return status


def _found_inputs(name: str) -> list[bytes]:
    return [path.read_bytes() for path in (WORK / "corpus" / name).glob("*")]


def _fuzz(name: str, target: Target, limits: list[str]) -> Result:
    corpus = WORK / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for data in [*target.SEEDS, *stored_inputs(name)]:
        (corpus / sha1(data).hexdigest()).write_bytes(data)
    dictionary, log = WORK / f"{name}.dict", WORK / f"{name}.log"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.WORDS)
    dictionary.write_text("".join(f'"{word}"\n' for word in escaped), encoding="ascii")
    arguments = [
        *(f"-max_len={INPUT_SIZE_MAX}", f"-timeout={INPUT_SECONDS_MAX}", "-rss_limit_mb=2048", "-print_final_stats=1"),
        *(f"-dict={dictionary}", f"-artifact_prefix={WORK / name}-", *limits, str(corpus)),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child", name, *arguments], stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(encoding="utf-8", errors="replace")
    inputs = sum(map(int, _RUNS.findall(text)))
    crashes = _ARTIFACT.findall(text)
    return Result(name, inputs, usage.ru_utime, len(_found_inputs(name)), crashes, process.returncode)


if __name__ == "__main__":
    sys.exit(main())
