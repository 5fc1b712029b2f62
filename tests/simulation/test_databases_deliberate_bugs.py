"""Bugs put into a Replicated database on purpose: the simulation's checks catch each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engine.databases import comparison, entries, recovery
from engine.databases.cluster import is_there
from engine.databases.entries import EntryExecutor
from engine.databases.schema import LocalSchema
from engine.env import Env
from engine.keeper.base import Keeper
from engine.testing.simulation import UnhandledInBackground, run_simulation
from tests.simulation.databases_model import ModelSchema
from tests.simulation.databases_run import simulate
from tests.simulation.deliberate_bugs import Bugs

pytestmark = pytest.mark.slow

BUGS = Bugs()


@BUGS.add("B1")
def entries_count_that_nobody_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def always(keeper: Keeper, path: str) -> bytes | None:
        found = await is_there(keeper, path)
        return found or (b"somebody" if path.endswith("/committed") else None)

    monkeypatch.setattr(entries, "is_there", always)


@BUGS.add("the committed entries")
def an_entry_is_passed_over_while_its_initiator_is_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def returns(self: Any, keeper: Keeper, number: int) -> None:
        return None

    monkeypatch.setattr(EntryExecutor, "_wait_for_initiator", returns)


@BUGS.add("B1")
def a_session_begins_without_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "fits", lambda schema, digest, known: True)


@BUGS.add("B3", first=26)
def what_was_put_away_goes_before_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    record_what_is_done = EntryExecutor.record_what_is_done

    async def settles_first(self: EntryExecutor, keeper: Keeper) -> None:
        await self._replica.schema.settle()
        await record_what_is_done(self, keeper)

    monkeypatch.setattr(EntryExecutor, "record_what_is_done", settles_first)


@BUGS.add("B3", first=31)
def what_was_put_away_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(self: ModelSchema, name: str, text: str) -> None:
        await self.settle()
        self._write({**self._disk.texts, name: text})

    monkeypatch.setattr(ModelSchema, "create", create)


@BUGS.add("B3")
def what_differs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drop(env: Env, schema: LocalSchema, name: str, text: str, max_log_ptr: int) -> None:
        await schema.drop(name)

    monkeypatch.setattr(recovery, "_put_aside", drop)


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.patch(monkeypatch)
    seen: Mapping[str, int] = {}
    for seed in (*range(bug.first, bug.seeds), *range(bug.first)):
        try:
            run_simulation(seed, lambda env, seed=seed: simulate(env, seed))  # type: ignore[misc]
        except AssertionError as error:
            seen = {**seen, str(error)[:100]: seed}
            if bug.promise in str(error):
                print(f"{name}: seed {seed}")
                return
        except UnhandledInBackground as error:
            seen = {**seen, repr(error)[:100]: seed}
    pytest.fail(f"{bug.promise} was not broken within {bug.seeds} seeds: {seen}")
