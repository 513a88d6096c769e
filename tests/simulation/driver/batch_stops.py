"""A broker that stops while a batch is put: behind one of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import attrs

from nsqkit.broker.core.topics.batch import Batch

if TYPE_CHECKING:
    from tests.simulation.driver.node import Broker
    from tests.simulation.plan import Step


class BatchStops:
    """The stops that wait for a batch.

    Args:
        nodes: the brokers, by name.
    """

    def __init__(self, nodes: Mapping[str, Broker]) -> None:
        self._nodes = nodes
        self._waiting: dict[str, Step] = {}  # by the name of the broker

    def add(self, step: Step) -> None:
        """Have the broker of a step do it after ``in_batch`` more parts."""
        self._waiting[step.who] = step

    def cancel(self, name: str) -> None:
        """Have the broker of this name go on."""
        self._waiting.pop(name, None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See each part that has been put, and is not the last one."""
        put_part = Batch.put_part

        def watched(batch: Batch, now_ns: int) -> bool:
            is_more = put_part(batch, now_ns)
            if is_more and self._waiting:
                self._see(batch)
            return is_more

        with mock.patch.object(Batch, "put_part", watched):
            yield

    def _see(self, batch: Batch) -> None:
        for name, step in list(self._waiting.items()):
            nsqd = self._nodes[name].nsqd
            if nsqd is not None and nsqd.broker.topics is batch._topics:
                count = step.values["in_batch"] - 1
                self._waiting[name] = attrs.evolve(step, values={**step.values, "in_batch": count})
                if not count:
                    self._nodes[name].act(self._waiting.pop(name))
