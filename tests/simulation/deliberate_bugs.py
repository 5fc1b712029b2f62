"""Bugs put in on purpose, and the search for a seed on which the checker that is there for one catches it.

BUGS = Bugs()

@BUGS.add("D2", kill_initiator_at=None, statements=4)
def the_entry_is_created_and_then_the_token(monkeypatch: pytest.MonkeyPatch) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine.testing.simulation import UnhandledInBackground
from engine.testing.simulation_report import Report

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Bug:
    """A patch of the real code that breaks `promise`. `changes` turn every seed's scenario into one in which
    it matters. The search goes through seeds 0 to `seeds` - 1, from `first` on and round: a little before the
    one that catches it today."""

    promise: str
    patch: Patch
    changes: Mapping[str, Any]
    seeds: int
    first: int = 0


class Bugs(dict[str, Bug]):
    """Bugs by their names."""

    def add(
        self, promise: str, *, seeds: int = 150, first: int = 0, **changes: Any
    ) -> Callable[[Patch], Patch]:
        """Registers a patch."""

        def register(patch: Patch) -> Patch:
            self[patch.__name__] = Bug(promise, patch, changes, seeds, first)
            return patch

        return register


def search(
    bug: Bug,
    simulate: Callable[[int, Any], Report[Any, Any]],
    scenario_of_seed: Callable[[int], Any],
    *,
    symptoms: Mapping[type[Exception], str],
) -> None:
    """Run seeds until the bug's promise is broken; not finding it is the failure. `symptoms` says which
    promise is broken when a run ends with an exception."""
    seen: set[str] = set()
    for number in range(bug.seeds):
        seed = (bug.first + number) % bug.seeds
        try:
            report = simulate(seed, replace(scenario_of_seed(seed), **bug.changes))
        except (*symptoms, UnhandledInBackground) as error:
            shown = error.__cause__ if isinstance(error, UnhandledInBackground) else error
            promises = [promise for kind, promise in symptoms.items() if isinstance(shown, kind)]
            if not promises:
                raise
            seen.add(promises[0])
        else:
            seen |= {violation.promise for violation in report.violations}
        if bug.promise in seen:
            print(f"{bug.promise} is broken on seed {seed}, after {number} seeds on which it held")
            return
    pytest.fail(f"{bug.promise} held on {bug.seeds} seeds; broken were {sorted(seen) or 'none'}")
