"""Mutants of the streams of asyncio and of the pump."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "bytes that were received count as waiting",
        "on asyncio, a connection over HTTP is not read any more once 256 KiB have come",
        "transport/asyncio_stream.py",
        "        self._waiting_size -= len(chunk)\n        if self._waiting_size < READ_AHEAD_MAX:\n",
        "        if self._waiting_size < READ_AHEAD_MAX:\n",
        size="driver",
        plan="small-reads-of-http",
    ),
    Mutant(
        "bytes that arrive before their receiver are not passed on",
        "on asyncio, a broker that is busy does not answer a new client",
        "transport/asyncio_stream.py",
        "        self.resume_reading()\n        self._pass_on()\n",
        "        self.resume_reading()\n",
        size="driver",
        breaks=(34,),
    ),
    Mutant(
        "a sender does not learn that its peer has read",
        "on asyncio, a connection on which much was sent at once stays silent",
        "transport/asyncio_stream.py",
        "        self.is_writable = not self._closed\n        self._wake_writers()",
        "        self.is_writable = not self._closed",
        size="driver",
        breaks=(11,),
    ),
    Mutant(
        "a full read is not followed by another one",
        "on asyncio, a connection with much input is not read any more",
        "transport/pump.py",
        "                    self._reading_paused = True\n                    self._schedule_turn()",
        "                    self._reading_paused = True",
        size="driver",
        breaks=(28,),
    ),
    Mutant(
        "the output for input that has waited is not sent before the end",
        "on asyncio, a client that sends commands and ends its stream lacks the last answers if the broker was busy",
        "transport/pump.py",
        "                    await self._send_output()  # for input",
        "                    # for input",
        size="driver",
        plan="output-for-input-that-waited",
        breaks=(25,),
    ),
)
