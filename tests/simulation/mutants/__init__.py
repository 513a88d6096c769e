"""Mutants: faults that are planted in nsqkit one at a time, each of which the worlds have to notice.

``python -m tests.simulation.mutants`` copies nsqkit, changes a few lines of the copy, and runs worlds with it until one
fails. A mutant that survives its budget of worlds, and one whose lines are not there any more, is a failure. A bug of
nsqkit that was mended is planted again here.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import (
    auth,
    auth_tasks,
    broker,
    clients,
    disk,
    driver,
    lookup,
    publishes,
    rules,
    spark,
    streams,
    threads,
)

MUTANTS: Final = (
    *(*broker.MUTANTS, *disk.MUTANTS, *clients.MUTANTS, *driver.MUTANTS, *lookup.MUTANTS, *rules.MUTANTS),
    *(*spark.MUTANTS, *auth.MUTANTS, *auth_tasks.MUTANTS, *publishes.MUTANTS, *threads.MUTANTS),
    *streams.MUTANTS,
)
