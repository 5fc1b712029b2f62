"""ALTER: one after another for all replicas, data after metadata, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import Code, MultiFailed, SqlError
from engine.keeper.base import Check, Create, SetData
from engine.keeper.session import RequestKind
from engine.replication.columns import Columns
from engine.replication.commands.alter import alter_table
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import AlterMetadata, MutatePart
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.part_store import AlterPlan, Part
from engine.replication.renamed_columns import renamed_columns
from engine.replication.replica.switches import Activity
from engine.testing.replication.store import MemoryPartStore
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, run


def columns(replica: LiveReplica) -> list[str]:
    return list(replica.disk.definition.columns.by_name)


def applied(live: Live, replica: LiveReplica) -> tuple[list[str], int]:
    """What Keeper says that the replica has."""
    stored = Columns.from_bytes(live.data(replica.ctx.me.columns))
    return list(stored.by_name), int(live.data(replica.ctx.me.metadata_version))


def test_a_column_is_added_on_all_replicas() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(3)
        await replicas[0].insert(1)
        await alter_table(replicas[1].ctx, "ADD COLUMN w UInt64", sync=Sync.ALL)
        for replica in replicas:
            assert columns(replica) == ["k", "v", "w"]
            assert applied(live, replica) == (["k", "v", "w"], 1)
            assert replica.ctx.metadata_version == 1
        assert live.server.tree.nodes[PATHS.metadata].version == 1
        assert live.data(PATHS.columns) == live.data(replicas[0].ctx.me.columns)
        (action,) = [entry.action for entry in live.log() if isinstance(entry.action, AlterMetadata)]
        assert (action.alter_version, action.have_mutation) == (1, False)
        assert not live.children(PATHS.mutations)

    run(main)


def test_what_changes_data_is_also_a_mutation_of_the_same_version() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1, partition="a")
        await replicas[0].insert(2, partition="b")
        await alter_table(replicas[1].ctx, "DROP COLUMN v", sync=Sync.ALL)
        entry = MutationEntry.from_bytes(live.data(PATHS.mutation(0)))
        assert (entry.commands, entry.alter_version) == ("DROP COLUMN v", 1)
        assert entry.block_numbers == (("a", 1), ("b", 1))
        for replica in replicas:
            assert columns(replica) == ["k"]
            assert replica.parts() == ["a_0_0_0_1", "b_0_0_0_1"]
        assert "alter_version\n1" in live.actions(MutatePart)[0]
        assert not live.locks()

    run(main)


def test_alters_come_one_after_another_with_their_data() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        second.ctx.switches.stop(Activity.QUEUES)
        await alter_table(first.ctx, "ADD COLUMN a UInt64")
        await alter_table(first.ctx, "RENAME COLUMN a TO b")
        await alter_table(first.ctx, "ADD COLUMN a UInt64")
        await alter_table(first.ctx, "DROP COLUMN b")
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet()
        assert columns(first) == columns(second) == ["k", "v", "a"]
        assert first.ctx.metadata_version == second.ctx.metadata_version == 4
        assert first.parts() == second.parts()

    run(main)


def test_a_clone_of_a_replica_that_has_not_applied_an_alter_yet_does_not_take_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values of a column that is taken away, and added again later, are lost."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        first.ctx.switches.stop(Activity.QUEUES)
        await alter_table(second.ctx, "ADD COLUMN a UInt64")
        await live.quiet(second)
        await second.stop()
        await (await live.keeper()).set(second.ctx.me.is_lost, b"1")
        given: list[list[str]] = []
        apply = second.store.apply_alter

        async def watched(to: Columns, *rest: Any) -> None:
            given.append(list(to.by_name))
            await apply(to, *rest)

        monkeypatch.setattr(second.store, "apply_alter", watched)
        await second.start()
        await live.quiet(second)
        assert live.data(second.ctx.me.is_lost) == b"0"
        assert given == [] and columns(second) == ["k", "v", "a"]
        assert applied(live, second) == (["k", "v", "a"], 1)
        first.ctx.switches.start(Activity.QUEUES)
        first.ctx.queue_changed.set()
        await live.quiet()
        assert columns(first) == columns(second)

    run(main)


def test_a_replica_that_lags_behind_is_refused() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        second.ctx.switches.stop(Activity.QUEUES)
        await alter_table(first.ctx, "ADD COLUMN a UInt64")
        with pytest.raises(SqlError) as refused:
            await alter_table(second.ctx, "ADD COLUMN b UInt64")
        assert refused.value.code == Code.CANNOT_ASSIGN_ALTER
        assert len(live.actions(AlterMetadata)) == 1
        second.ctx.switches.start(Activity.QUEUES)
        second.ctx.queue_changed.set()
        await live.quiet()
        await alter_table(second.ctx, "ADD COLUMN b UInt64", sync=Sync.ALL)
        assert columns(first) == ["k", "v", "a", "b"]

    run(main)


@pytest.mark.parametrize("seed", range(5))
def test_of_two_at_once_each_is_applied_everywhere_or_refused(seed: int) -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        await replicas[0].insert(1)
        outcomes = await asyncio.gather(
            alter_table(replicas[0].ctx, "ADD COLUMN a UInt64", sync=Sync.ALL),
            alter_table(replicas[1].ctx, "ADD COLUMN b UInt64", sync=Sync.ALL),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert outcome is None or (
                isinstance(outcome, SqlError) and outcome.code == Code.CANNOT_ASSIGN_ALTER
            )
        await live.quiet()
        expected = {name for name, outcome in zip("ab", outcomes, strict=True) if outcome is None}
        assert expected
        assert set(columns(replicas[0])) == set(columns(replicas[1])) == {"k", "v"} | expected

    run(main, seed=seed)


def test_an_alter_beside_mutations_is_made_in_the_end() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        await asyncio.gather(
            alter_table(first.ctx, "ADD COLUMN a UInt64, RENAME COLUMN v TO w", sync=Sync.ALL),
            *(create_mutation(second.ctx, "DELETE WHERE k = 5") for _ in range(5)),
        )
        await wait_for_mutation(second.ctx, 5, sync=Sync.ALL)
        assert columns(first) == columns(second) == ["k", "w", "a"]
        assert first.parts() == second.parts()
        assert len(live.children(PATHS.mutations)) == 6

    run(main)


def test_waiting_names_the_replicas_that_are_away() -> None:
    async def main(live: Live) -> None:
        first, second, third = await live.cluster(3)
        await second.stop()
        await third.stop()
        await alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.OWN)
        before = live.env.monotonic_s()
        with pytest.raises(SqlError, match="r2, r3") as late:
            await alter_table(first.ctx, "ADD COLUMN b UInt64", sync=Sync.ALL, inactive_timeout_s=20)
        assert late.value.code == Code.UNFINISHED
        assert live.env.monotonic_s() - before == pytest.approx(20, abs=1)
        # It counts all the same.
        await second.start()
        await third.start()
        await live.quiet()
        assert columns(second) == columns(third) == ["k", "v", "a", "b"]

    run(main)


def test_who_waits_behind_an_alter_whose_data_cannot_be_rewritten_is_told() -> None:
    """ClickHouse lets them wait for as long as nobody kills that mutation."""

    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        makes = replica.store.mutate

        async def fails(source: PartName, result: PartName, commands: str) -> Part:
            raise SqlError(Code.CANNOT_PARSE_TEXT, "Cannot parse string", name="CANNOT_PARSE_TEXT")

        replica.store.mutate = fails  # type: ignore[method-assign]
        for command in ("RENAME COLUMN v TO w", "ADD COLUMN a UInt64"):
            with pytest.raises(SqlError, match=r"mutation 0000000000 .*Cannot parse string") as told:
                await asyncio.wait_for(alter_table(replica.ctx, command), timeout=3600)
            assert told.value.code == Code.UNFINISHED
        assert columns(replica) == ["k", "w"]
        replica.store.mutate = makes  # type: ignore[method-assign]
        await live.quiet()
        assert columns(replica) == ["k", "w", "a"]

    run(main)


@pytest.mark.parametrize("commands", ["ADD COLUMN w UInt64", "DROP COLUMN v"])
def test_what_follows_the_commit_of_an_alter_does_not_wait_for_the_replicas(commands: str) -> None:
    """1. The other replica does nothing. 2. An ALTER waits for it. 3. Whoever asked goes away."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        second.ctx.switches.stop(Activity.QUEUES)
        in_log: list[int] = []

        async def committed() -> None:
            in_log.append(len([each for each in live.log() if isinstance(each.action, AlterMetadata)]))

        altering = asyncio.create_task(alter_table(first.ctx, commands, sync=Sync.ALL, committed=committed))
        await live.env.sleep(60)
        assert not altering.done()
        altering.cancel()
        await asyncio.wait([altering])
        assert in_log == [1]

    run(main)


def test_what_follows_an_alter_that_changes_nothing_is_done_all_the_same() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        calls: list[str] = []

        async def committed() -> None:
            calls.append("once")

        async def no_change(commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
            return AlterPlan(await one.store.definition(), "")

        one.store.plan_alter = no_change  # type: ignore[method-assign]
        await alter_table(one.ctx, "ADD COLUMN IF NOT EXISTS v UInt64", committed=committed)
        assert calls == ["once"] and not live.log()

    run(main)


def test_two_alters_of_settings_at_once_are_both_followed() -> None:
    """1. One changes its setting on the disk. 2. Another one begins and ends. 3. The first goes on."""

    async def main(live: Live) -> None:
        (one,) = await live.cluster(1)
        is_begun, goes_on = asyncio.Event(), asyncio.Event()

        async def plan(commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
            before = await one.store.definition()
            return AlterPlan(replace(before, settings=(*before.settings, (commands, "7"))), "")

        async def apply(changes: Mapping[str, str | None]) -> None:
            if "parts_to_throw_insert" in changes:
                is_begun.set()
                await goes_on.wait()

        one.store.plan_alter = plan  # type: ignore[method-assign]
        one.store.apply_settings = apply  # type: ignore[method-assign]
        first = asyncio.create_task(alter_table(one.ctx, "parts_to_throw_insert"))
        await is_begun.wait()
        await alter_table(one.ctx, "parts_to_delay_insert")
        goes_on.set()
        await first
        assert one.ctx.settings.parts_to_throw_insert == one.ctx.settings.parts_to_delay_insert == 7

    run(main)


def test_nobody_is_waited_for_if_that_is_wanted() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        replica.ctx.switches.stop(Activity.QUEUES)
        await alter_table(replica.ctx, "ADD COLUMN a UInt64", sync=Sync.NONE)
        assert columns(replica) == ["k", "v"]
        assert len(live.actions(AlterMetadata)) == 1

    run(main)


class SettingsStore(MemoryPartStore):
    """Plans an ALTER of settings and of the comment, which the model's language does not have."""

    async def plan_alter(self, commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
        if not commands.startswith("MODIFY SETTING"):
            return await super().plan_alter(commands)
        name, _, value = commands.removeprefix("MODIFY SETTING ").partition(" = ")
        settings = tuple({**dict(self.disk.definition.settings), name: value}.items())
        return AlterPlan(replace(self.disk.definition, settings=settings, comment="said"), "")


def test_settings_and_comment_are_local_and_take_effect() -> None:
    async def main(live: Live) -> None:
        first = await live.replica("r1", make_store=SettingsStore)
        second = await live.replica("r2", make_store=SettingsStore)
        before = len(live.log())
        await alter_table(first.ctx, "MODIFY SETTING parts_to_throw_insert = 7", sync=Sync.ALL)
        assert first.ctx.settings.parts_to_throw_insert == 7
        assert dict(first.disk.definition.settings)["parts_to_throw_insert"] == "7"
        assert first.disk.definition.comment == "said"
        assert second.ctx.settings.parts_to_throw_insert == 3000
        assert second.disk.definition.comment == ""
        assert len(live.log()) == before
        assert live.server.tree.nodes[PATHS.metadata].version == 0
        with pytest.raises(SqlError) as refused:
            await alter_table(first.ctx, "MODIFY SETTING parts_to_throw_insert = 'x'")
        assert refused.value.code == Code.BAD_ARGUMENTS
        assert first.ctx.settings.parts_to_throw_insert == 7

    run(main)


@pytest.mark.parametrize("what", ["reply", "reply_and_lag", "request"])
def test_a_lost_message_makes_one_alter(what: str) -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await first.insert(1)
        await live.quiet()
        lose = getattr(live.server, f"lose_next_{what}")
        lose(first.ctx.session().session_id, kind=RequestKind.MULTI)
        await alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.ALL)
        assert columns(first) == columns(second) == ["k", "v", "a"]
        assert len(live.actions(AlterMetadata)) == 1

    run(main)


def test_a_session_that_ends_in_the_middle() -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        session = first.ctx.session().session_id
        live.server.lose_next_reply(session, kind=RequestKind.MULTI)
        altering = asyncio.ensure_future(alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.ALL))
        while not live.actions(AlterMetadata):
            await asyncio.sleep(0)
        live.server.expire_session(session)
        await altering
        assert columns(first) == columns(second) == ["k", "v", "a"]
        assert len(live.actions(AlterMetadata)) == 1

    run(main)


def test_executing_it_again_changes_nothing() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        session = replica.ctx.session()
        real = replica.store.apply_alter
        calls = 0

        async def applying(*args: object) -> None:
            """1. The table is altered. 2. The session ends before Keeper hears of it."""
            nonlocal calls
            calls += 1
            await real(*args)  # type: ignore[arg-type]
            if calls == 1:
                live.server.expire_session(session.session_id)

        replica.store.apply_alter = applying  # type: ignore[method-assign]
        await alter_table(replica.ctx, "ADD COLUMN a UInt64")
        assert calls == 2
        assert applied(live, replica) == (["k", "v", "a"], 1)
        assert replica.ctx.metadata_version == 1

    run(main)


def test_a_replica_of_an_old_server_has_no_metadata_version() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        keeper = await live.keeper()
        await keeper.remove(replica.ctx.me.metadata_version)
        await alter_table(replica.ctx, "ADD COLUMN a UInt64")
        assert applied(live, replica) == (["k", "v", "a"], 1)

    run(main)


def test_the_fence_is_part_of_the_transaction() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        keeper = await live.keeper()
        await keeper.create("/fence", b"")
        await alter_table(
            replica.ctx, "ADD COLUMN a UInt64", fence=[Check("/fence", 0), SetData("/fence", b"x", 0)]
        )
        with pytest.raises(MultiFailed):
            await alter_table(replica.ctx, "ADD COLUMN b UInt64", fence=[Create("/fence")])
        with pytest.raises(MultiFailed):
            await create_mutation(replica.ctx, "DELETE WHERE 1", fence=[Check("/fence", 0)])
        assert columns(replica) == ["k", "v", "a"]
        assert not live.children(PATHS.mutations)
        assert not live.locks()

    run(main)


@pytest.mark.parametrize(
    ("commands", "renames"),
    [
        ("RENAME COLUMN a TO b", {"a": "b"}),
        ("RENAME COLUMN IF EXISTS `a b` TO `c``d`", {"a b": "c`d"}),
        ("RENAME COLUMN n.x TO n.y, DROP COLUMN z", {"n.x": "n.y"}),
        ("(RENAME COLUMN a TO b), (RENAME COLUMN c TO d)", {"a": "b", "c": "d"}),
        ("UPDATE v = 'RENAME COLUMN a TO b' WHERE 1", {}),
        ("DROP COLUMN rename", {}),
        ("", {}),
        ("RENAME COLUMN", {}),
    ],
)
def test_renamed_columns_are_read_off_the_mutation(commands: str, renames: dict[str, str]) -> None:
    assert renamed_columns(commands) == renames


def test_the_store_is_told_which_columns_were_renamed_and_which_parts_are_older() -> None:
    async def main(live: Live) -> None:
        replicas = await live.cluster(2)
        told: list[tuple[dict[str, str], dict[str, int]]] = []
        for replica in replicas:
            real = replica.store.apply_alter

            async def noting(new, metadata, renames, mutation, real=real):  # type: ignore[no-untyped-def]
                told.append((dict(renames), dict(mutation)))
                await real(new, metadata, renames, mutation)

            replica.store.apply_alter = noting  # type: ignore[method-assign]
        await replicas[0].insert(1)
        await alter_table(replicas[0].ctx, "RENAME COLUMN v TO w", sync=Sync.ALL)
        assert told == [({"v": "w"}, {"all": 1})] * 2

    run(main)


@pytest.mark.parametrize("what", ["merge", "mutation"])
def test_nothing_is_made_of_a_part_that_is_newer_than_the_table(what: str) -> None:
    """1. r2 cannot apply an ALTER. 2. Parts with the new column come to it from r1. 3. They are to be merged
    or mutated, and r1 does not do it first. 4. r2 waits: what it made now would lose the column for both."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        real, is_broken = second.store.apply_alter, True

        async def broken(*args: object) -> None:
            if is_broken:
                raise SqlError(Code.NOT_ENOUGH_SPACE, "No space left")
            await real(*args)  # type: ignore[arg-type]

        second.store.apply_alter = broken  # type: ignore[method-assign]
        await alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.OWN)
        for value in (1, 2):
            await first.insert(value)
        first.ctx.switches.stop(Activity.QUEUES)
        if what == "merge":
            await optimize(first.ctx, OptimizeOptions(extent=Extent.FINAL, sync=Sync.NONE))
        else:
            await create_mutation(first.ctx, "UPDATE v = 5 WHERE 1")
        await live.env.sleep(60)
        assert second.parts() == ["all_0_0_0", "all_1_1_0"]
        waiting = [
            queued for queued in second.ctx.queue.entries if "not applied yet" in queued.postpone_reason
        ]
        assert len(waiting) == (1 if what == "merge" else 2)

        is_broken = False
        await live.quiet(second)
        first.ctx.switches.start(Activity.QUEUES)
        first.ctx.queue_changed.set()
        await live.quiet()
        assert first.parts() == second.parts()
        for replica in (first, second):
            assert all(b"`a` UInt64" in part.columns for part in replica.store.active.values())

    run(main)


def test_a_part_with_a_dropped_column_of_that_name_is_not_newer_than_the_table() -> None:
    """1. A column is dropped; the part is not rewritten for it yet. 2. It is added again: this waits for the
    rewriting. 3. The rewriting must not wait for it."""

    async def main(live: Live) -> None:
        first, second = await live.cluster(2)
        await alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.ALL)
        await first.insert(1)
        await live.quiet()
        second.ctx.switches.stop(Activity.MERGES)
        await alter_table(first.ctx, "DROP COLUMN a", sync=Sync.OWN)
        await alter_table(first.ctx, "ADD COLUMN a UInt64", sync=Sync.OWN)
        await live.env.sleep(30)
        second.ctx.switches.start(Activity.MERGES)
        second.ctx.queue_changed.set()
        await live.quiet()
        assert applied(live, second) == (["k", "v", "a"], 3)
        assert first.parts() == second.parts() == ["all_0_0_0_1"]

    run(main)


@pytest.mark.parametrize("sync", [Sync.OWN, Sync.ALL])
def test_who_waits_for_an_alter_beside_a_restart_of_the_replica_hears_when_it_is_done(sync: Sync) -> None:
    """ClickHouse, whose table is another object then, answers 341, and does it all the same."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        for replica in (one, two):
            replica.ctx.switches.stop(Activity.MERGES)
        altering = asyncio.create_task(alter_table(one.ctx, "RENAME COLUMN v TO w", sync=sync))
        await live.env.sleep(5)
        await one.table.restart()
        await live.env.sleep(5)
        assert not altering.done() and columns(one) == ["k", "w"]
        for replica in (one, two):
            replica.ctx.switches.start(Activity.MERGES)
            replica.ctx.queue_changed.set()
        await altering
        assert one.parts() == ["all_0_0_0_1"]

    run(main)
