"""Runs the tests of this project ten times in parallel processes, and then once for each planted fault.

The tests must pass each time, and must fail for each fault with a message that names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNS = 10

# The planted fault, and a part of the message that names it.
MESSAGES = {
    "late_finish": "expected a delivery of body b'one' by channel 'orders/billing' once, but the journal has 2",
    "double_finish": "was answered before",
    "lost_cancellation": "the handler did not end when it was cancelled",
    "unbounded_retry": "expected a publish of body b'one' to topic 'orders.dead' once",
    "early_finish": "expected FIN of body b'one' never",
    "swallowed_error": "expected REQ of body b'one' with a delay of 30 s",
    "retry_without_delay": "expected REQ of body b'one' with a delay of 30 s",
    "forgotten_answer": "in flight 1, delivered 1, finished 0",
    "greedy": "expected no RDY above 10",
    "double_billing": "an order was billed again after its message was delivered again",
    "open_connection": "is still connected: close it",
    "ends_with_broker": "the service ended with the broker",
}


def pytest(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-n", "4", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)


def main() -> int:
    failures = 0
    for number in range(1, RUNS + 1):
        result = pytest()
        failures += result.returncode != 0
        print(f"run {number}: {' '.join(result.stdout.splitlines()[-1:])}", flush=True)
        if result.returncode:
            print(result.stdout, result.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # some wait for time limits
        results = pool.map(lambda fault: pytest(f"--planted={fault}"), MESSAGES)
    for (fault, message), result in zip(MESSAGES.items(), results, strict=True):
        lines = [line for line in result.stdout.splitlines() if message in line]
        is_named = result.returncode == 1 and bool(lines)
        failures += not is_named
        print(f"{fault}: {lines[0].strip(' |E') if is_named else 'NOT NAMED'}", flush=True)
        if not is_named:
            print(result.stdout, result.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main())
