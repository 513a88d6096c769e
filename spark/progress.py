"""Progress: bars in one line on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import shutil
import sys
import time

import anyio


class Progress:
    """Shows the progress of counts.

    Args:
        total: the end of each count.
        counts: functions that return the counts, by name.

    Attributes:
        stage: a function that returns the name of a stage without count.
    """

    def __init__(self, total, counts):
        self._total = total
        self._counts = counts
        self._is_terminal = sys.stderr.isatty()
        self._start = time.monotonic()
        self._shown = ""
        self.stage = str

    async def run(self):
        """Show the counts until cancelled, and once more at the end."""
        try:
            while True:
                self._show()
                await anyio.sleep(0.1 if self._is_terminal else 5.0)
        finally:
            self._show()
            if self._is_terminal:
                self._write("\n")

    def _show(self):
        columns = shutil.get_terminal_size().columns if self._is_terminal else 0
        numbers = {name: count() for name, count in self._counts.items()}
        line = "   ".join(f"{name} {self._bar(number, columns)}{number:>9,}" for name, number in numbers.items())
        line = f"{line}   {self.stage()}".rstrip()
        timed = f"{time.monotonic() - self._start:4.0f} s  {line}"
        if self._is_terminal:
            self._write(f"\r\x1b[K{timed[: columns - 1]}")
        elif line != self._shown:
            self._write(f"{timed}\n")
        self._shown = line

    def _bar(self, number, columns):
        width = min(30, max(8, (columns - 64) // 2)) if columns else 0
        done = width * min(number, self._total) // self._total
        return "█" * done + "░" * (width - done)

    def _write(self, text):
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            pass  # The terminal was closed; the work continues.
