"""Bugs in ALTER and in what becomes of a replica without Keeper, put in on purpose: each must be caught by
the checker that is there for it (see `test_replication_deliberate_bugs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import OnclusterError
from engine.keeper.base import ANY_VERSION, SetData
from engine.replication.commands import alter
from engine.replication.commands.insert import Inserted, Inserter, InsertOptions
from engine.replication.log_actions import AlterMetadata
from engine.replication.part_name import PartName
from engine.replication.part_store import NewPart
from engine.replication.replica import term
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.execution import merge as execute_merge
from engine.replication.replica.execution import mutate as execute_mutate
from engine.replication.replica.execution import runner
from engine.replication.replica.queue import rules as queue_rules
from engine.replication.replica.queue.queue import QueuedEntry
from engine.replication.replica.queue.rules import Surroundings
from engine.testing.replication.simulation import Scenario, simulate
from tests.simulation.deliberate_bugs import Bugs, search

BUGS = Bugs()


# --- ALTER ------------------------------------------------------------------------------------------------


@BUGS.add("R8", first=7, has_alters=True, fault_rate=0.0, steps=14)
def an_alter_overwrites_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(path: str, data: bytes, version: int = ANY_VERSION) -> SetData:
        return SetData(path, data)

    monkeypatch.setattr(alter, "SetData", unfenced)


@BUGS.add("R8", first=10, has_alters=True, has_merges=True, fault_rate=0.0, steps=20, seeds=300)
def data_is_rewritten_before_the_metadata_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others than the one that was asked for the ALTER apply it later."""
    reason = queue_rules._reason_against_merging

    def hasty(queued: QueuedEntry, around: Surroundings) -> str:
        return reason(queued, replace(around, alters=()))

    monkeypatch.setattr(queue_rules, "_reason_against_merging", hasty)
    _slow_down_alters(monkeypatch, 5.0)


@BUGS.add("R8", first=5, has_alters=True, steps=14, kill_gates=(150, 190, 230, 270, 310, 350), seeds=300)
def an_alter_counts_as_applied_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = runner.execute_alter

    async def early(ctx: ReplicaContext, queued: QueuedEntry) -> None:
        action = queued.entry.action
        assert isinstance(action, AlterMetadata)
        if action.alter_version > ctx.metadata_version:
            await ctx.session().set(ctx.me.metadata_version, str(action.alter_version).encode())
        await execute(ctx, queued)

    monkeypatch.setattr(runner, "execute_alter", early)


@BUGS.add("R8", has_alters=True, has_merges=True, fault_rate=0.0, steps=14)
def parts_lose_the_columns_of_an_alter_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others than the one that was asked for the ALTER apply it later."""

    async def never(ctx: ReplicaContext, sources: Sequence[PartName]) -> str:
        return ""

    for executor in (execute_merge, execute_mutate):
        monkeypatch.setattr(executor, "why_too_early", never)
    _slow_down_alters(monkeypatch, 20.0)


def _slow_down_alters(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    execute = runner.execute_alter

    async def slow(ctx: ReplicaContext, queued: QueuedEntry) -> None:
        if queued.entry.source_replica != ctx.replica:
            await ctx.env.sleep(by_s)
        await execute(ctx, queued)

    monkeypatch.setattr(runner, "execute_alter", slow)


# --- without Keeper ---------------------------------------------------------------------------------------


@BUGS.add("R6", is_partitioned=True)
def an_insert_is_acknowledged_although_keeper_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Inserter.commit

    async def hopeful(self: Inserter, parts: Sequence[NewPart], options: InsertOptions) -> Sequence[Inserted]:
        try:
            return await commit(self, parts, options)
        except OnclusterError:
            return [Inserted(new, PartName(new.partition_id, 0, 0, 0), False) for new in parts]

    monkeypatch.setattr(Inserter, "commit", hopeful)


@BUGS.add("R6", is_expired=True)
def a_replica_does_not_come_back_after_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    run_term = term._run_term

    async def only_one(ctx: ReplicaContext, *args: Any) -> None:
        await run_term(ctx, *args)
        await ctx.env.sleep(1_000_000)

    monkeypatch.setattr(term, "_run_term", only_one)


@BUGS.add("R6", first=7, is_keeper_restarted=True, is_expired=True)
def a_replica_gives_up_after_a_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    activate, failures = term.activate, dict[int, int]()

    async def patient(ctx: ReplicaContext, *args: Any) -> None:
        if failures.get(id(ctx), 0) > 3:
            await ctx.env.sleep(1_000_000)
        try:
            await activate(ctx, *args)
        except OnclusterError:
            failures[id(ctx)] = failures.get(id(ctx), 0) + 1
            raise

    monkeypatch.setattr(term, "activate", patient)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUGS))
def test_this_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name].patch(monkeypatch)
    search(BUGS[name], simulate, _scenario_of_seed, symptoms={})


def _scenario_of_seed(seed: int) -> Scenario:
    """Without what has bugs of its own, and would cost time here."""
    scenario = Scenario.of_seed(seed)
    return replace(scenario, has_keeper_loss=False, has_rare_commands=False, has_isolated_inserts=False)
