from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from nsqkit.program.service import GARBAGE_THRESHOLD, IGNORED_SIGNALS

PROGRAM = """
import logging, sys
from contextlib import asynccontextmanager
from nsqkit.errors import OptionError
from nsqkit.program import service

@asynccontextmanager
async def serve():
    if sys.argv[1:]:
        raise OptionError("no such place")
    logger.info("it runs")
    yield
    logger.info("it has ended")

logger = logging.getLogger("nsqkit.test")
service.start_log("[p] ", lambda: "info")
sys.exit(service.run(serve(), logger))
"""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_the_first_signal_ends_the_service(signal):
    import signal as signals

    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("INFO: it runs\n")
        process.send_signal(signals.Signals[signal])
        rest = process.stderr.read()
    assert process.returncode == 0
    assert [line.partition("INFO: ")[2] for line in rest.splitlines()] == [
        f"stopping on {signal}",
        "it has ended",
    ]


def test_signals_that_a_go_program_survives_are_ignored():
    import signal as signals

    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("INFO: it runs\n")
        for each in IGNORED_SIGNALS:
            process.send_signal(each)
        process.terminate()
        assert "stopping on SIGTERM" in process.stderr.read()
    assert process.returncode == 0
    assert {signals.SIGUSR1, signals.SIGUSR2} < {*IGNORED_SIGNALS}


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"], ids=["stderr", "all"])
def test_a_service_without_standard_descriptors_ends_with_exit_code_0(closed):
    program = PROGRAM.replace('logger.info("it runs")', "os.kill(os.getpid(), signal.SIGTERM)")
    program = program.replace("import logging", "import logging, os, signal")
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    assert subprocess.run(words, check=False).returncode == 0


def test_a_failed_start_is_one_line_and_exit_code_1():
    words = [sys.executable, "-c", PROGRAM, "fail"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[p] ")
    assert done.stderr.endswith("FATAL: no such place\n")
    assert done.stderr.count("\n") == 1


def test_the_garbage_collector_runs_seldom():
    program = PROGRAM.replace('logger.info("it runs")', "logger.info(str(gc.get_threshold()[0]))")
    program = program.replace("import logging", "import gc, logging").replace(
        "sys.exit(service.run(serve(), logger))", "service.run(serve(), logger); print(gc.get_threshold())"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        running = process.stderr.readline()
        process.terminate()
        afterwards, _ = process.communicate()
    assert running.endswith(f"INFO: {GARBAGE_THRESHOLD}\n")
    assert afterwards == f"{gc.get_threshold()}\n"
