"""What the seeded simulations have in common: how a run is reported, and how what it went through is counted.

with counting_events("engine.ddl") as reached:
    history = run_simulation(seed, main)
report = Report(scenario, violations(history), reached, history)
assert not report.violations, report
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.testing.simulated_process import is_of_dead_process


class Seeded(Protocol):
    """A scenario: what one seed stands for."""

    @property
    def seed(self) -> int: ...


ScenarioT = TypeVar("ScenarioT", bound=Seeded)
HistoryT = TypeVar("HistoryT")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


@dataclass(slots=True)
class Report(Generic[ScenarioT, HistoryT]):
    """What came of a run. `reached` counts the interesting states that it went through."""

    scenario: ScenarioT
    violations: list[Violation]
    reached: Counter[str]
    history: HistoryT

    def __str__(self) -> str:
        lines = [f"seed {self.scenario.seed}: {self.scenario}"]
        return "\n".join(lines + [f"  {violation}" for violation in self.violations])


class _EventCounter(logging.Handler):
    """Counts log events by their id; those in `detailed` by their last argument, too.

    What ends in a process that was killed ends in ways that a real one has no time for: that is not counted.
    """

    def __init__(self, reached: Counter[str], detailed: Collection[str]) -> None:
        super().__init__()
        self._reached = reached
        self._detailed = detailed

    def emit(self, record: logging.LogRecord) -> None:
        if is_of_dead_process():
            return
        event = record.msg.split(" ", 1)[0]
        self._reached[event] += 1
        if event in self._detailed and isinstance(record.args, tuple):
            self._reached[f"{event} {record.args[-1]}"] += 1


_NOT_COUNTED = {"_srcfile": None, "logThreads": False, "logProcesses": False, "logMultiprocessing": False}
"""What `logging` need not find out for each event; these are its own switches for that."""


@contextmanager
def counting_events(package: str, *, detailed: Collection[str] = ()) -> Iterator[Counter[str]]:
    """What the code of `package` says in its log, counted; nothing is printed."""
    reached: Counter[str] = Counter()
    logger = logging.getLogger(package)
    handler = _EventCounter(reached, detailed)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    quiet = logging.getLogger("engine.keeper")
    quiet_level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    switches = {name: getattr(logging, name) for name in _NOT_COUNTED}
    vars(logging).update(_NOT_COUNTED)
    try:
        yield reached
    finally:
        vars(logging).update(switches)
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        quiet.setLevel(quiet_level)
