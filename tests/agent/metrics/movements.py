"""Observation of changes of an agent's metrics, also of gauges that change for a moment only."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry


def family_values(registry: CollectorRegistry) -> dict[str, object]:
    """Return all samples by the name of their metric, as the reference page has it."""
    while True:
        try:
            return {
                f"{family.name}_total" if family.type == "counter" else family.name: [
                    (sample.name, sorted(sample.labels.items()), sample.value) for sample in family.samples
                ]
                for family in registry.collect()
            }
        except RuntimeError:  # a label appeared meanwhile
            continue


class Movements:
    """Names of the metrics that have changed since the start, sampled all the time by a thread."""

    def __init__(self) -> None:
        self.moved: set[str] = set()
        self._stop = threading.Event()

    @contextmanager
    def watching(self, registry: CollectorRegistry) -> Iterator[None]:
        """Watch a registry within the block."""
        thread = threading.Thread(target=self._watch, args=(registry, family_values(registry)))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self, registry: CollectorRegistry, before: dict[str, object]) -> None:
        while not self._stop.wait(0.001):
            now = family_values(registry)
            self.moved |= {name for name, values in now.items() if values != before.get(name)}

    def until(self, names: set[str], action: Callable[[], object] = lambda: None) -> None:
        """Repeat `action` until these metrics have moved."""

        def reached() -> bool:
            if names <= self.moved:
                return True
            action()
            return False

        try:
            until(reached)
        except AssertionError:
            raise AssertionError(f"not moved: {sorted(names - self.moved)}") from None
