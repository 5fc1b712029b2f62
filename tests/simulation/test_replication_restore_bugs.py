"""Bugs put on purpose into what happens after Keeper has lost data, and into the rarer commands.

Some are caught by a checker on some seed, as in `test_replication_deliberate_bugs`; those that only a rare
race shows are each caught by the test that plays this race, on every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from engine.errors import OnclusterError
from engine.keeper.base import Keeper, Op
from engine.replication.block_id import BlockId
from engine.replication.commands import drop, restore
from engine.replication.part_name import PartName
from engine.replication.part_store import DetachedPart, Fate
from engine.replication.replica import background, term
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.merging.mutation_book import MutationBook, MutationState
from engine.replication.table_definition import TableDefinition
from engine.testing.replication.simulation import Scenario, simulate
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation_loop import SimulationStuck
from tests.simulation.deliberate_bugs import Bugs, Patch, search
from tests.unit.replication import test_drop as dropping
from tests.unit.replication import test_restore as restoring

BUGS = Bugs()


@BUGS.add(
    "R5",
    first=6,
    has_rare_commands=True,
    has_mutations=True,
    fault_rate=0.0,
    kill_gates=(),
    partitions=1,
    steps=24,
    seeds=60,
)
def a_column_is_not_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = MutationBook.commands

    def left(state: MutationState) -> MutationState:
        if not state.entry.commands.startswith("CLEAR COLUMN"):
            return state
        return replace(state, entry=replace(state.entry, commands="CLEAR INDEX i"))

    def without(self: MutationBook, source: PartName, target_version: int) -> Sequence[MutationState]:
        return [left(state) for state in commands(self, source, target_version)]

    monkeypatch.setattr(MutationBook, "commands", without)


_SEEN_LATE = "a_fetched_part_is_attached_under_its_own_name"


@BUGS.add("R3", first=2, has_rare_commands=True, steps=14, seeds=300)
def a_fetched_part_is_attached_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a part of the table already, and its blocks with it."""
    stage = MemoryPartStore.stage_detached

    async def own_name(self: MemoryPartStore, directory: str, result: PartName) -> Any:
        return await stage(self, directory, PartName.try_parse(directory) or result)

    monkeypatch.setattr(MemoryPartStore, "stage_detached", own_name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # It is seen by a run that never becomes quiet, which takes its time.
        pytest.param(name, marks=[pytest.mark.slow] if name == _SEEN_LATE else [])
        for name in sorted(BUGS)
    ],
)
def test_this_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name].patch(monkeypatch)
    symptoms: dict[type[Exception], str] = {
        SimulationStuck: "R7",  # it runs on and on and never becomes quiet
        KeyError: "crash",
    }
    search(BUGS[name], simulate, Scenario.of_seed, symptoms=symptoms)


# --- caught by the test that plays the race ---------------------------------------------------------------


PLAYED: dict[str, tuple[Patch, Sequence[Callable[[], None]]]] = {}


def played(*stories: Callable[[], None]) -> Callable[[Patch], Patch]:
    """Registers a patch that one of these tests, at the least, does not survive."""

    def register(patch: Patch) -> Patch:
        PLAYED[patch.__name__] = (patch, stories)
        return patch

    return register


@played(
    *(
        partial(restoring.test_a_restore_that_is_killed_is_finished_by_the_next_start, seed)
        for seed in range(12)
    )
)
def a_part_is_attached_again_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESTORE was killed between the transaction and the removal of the directory. Two things keep it from
    that: what the store has noted, and the block id; here neither is there."""

    monkeypatch.setattr(MemoryPartStore, "attaching", property(lambda self: {}))
    identity, count = restore._identity, itertools.count()

    def another(name: PartName, detached: DetachedPart) -> BlockId:
        return identity(name, replace(detached, directory=f"{detached.directory} {next(count)}"))

    monkeypatch.setattr(restore, "_identity", another)


@played(restoring.test_rows_come_back_also_where_the_table_is_left_in_keeper_without_any_replica)
def parts_that_nobody_is_left_to_send_stay_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas were lost and the table's node was not: what is put aside has no mark, and stays there."""
    remove = MemoryPartStore.remove

    async def unmarked(
        self: MemoryPartStore, names: Sequence[PartName], *, fate: Fate = Fate.DROP, prefix: str = ""
    ) -> None:
        await remove(self, names, fate=fate, prefix="" if prefix == restore.RESTORING else prefix)

    monkeypatch.setattr(MemoryPartStore, "remove", unmarked)


@played(restoring.test_what_a_joining_replica_has_put_aside_is_not_attached_when_it_makes_the_table_later)
def what_a_joining_replica_put_aside_is_kept_for_the_next_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(ctx: ReplicaContext, keeper: Keeper) -> None:
        return None

    monkeypatch.setattr(term, "give_up_restoring", keep)


@played(restoring.test_a_replica_takes_over_the_alter_that_it_missed_while_keeper_did_not_have_it)
def a_restored_replica_does_not_take_over_the_alter_that_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def own(ctx: ReplicaContext, keeper: Keeper, definition: TableDefinition) -> TableDefinition:
        return definition

    monkeypatch.setattr(restore, "_adopted", own)


@played(
    *(
        partial(dropping.test_whoever_drops_a_table_leaves_one_alone_that_was_made_at_its_path_since, at)
        for at in range(1, 24)
    )
)
def who_drops_a_table_removes_one_that_was_made_since(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = drop.remove_recursive

    async def unfenced(keeper: Keeper, path: str, *, fence: Sequence[Op] = ()) -> bool:
        return await remove(keeper, path)

    monkeypatch.setattr(drop, "remove_recursive", unfenced)


@played(restoring.test_a_term_ends_although_its_loop_gets_an_error_at_the_moment_of_its_cancellation)
def a_loop_goes_on_after_its_term_because_an_error_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "end_if_cancelled", lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLAYED))
def test_this_bug_does_not_survive_its_race(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, stories = PLAYED[name]
    patch(monkeypatch)
    for story in stories:
        try:
            story()
        except (AssertionError, OnclusterError):
            return
    pytest.fail(f"{len(stories)} tests did not notice that {name.replace('_', ' ')}")
