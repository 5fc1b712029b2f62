"""What the cleaner removes, what it leaves, and what it writes down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.ddl import cleaner as cleaner_module
from engine.ddl.cleaner import CleanReport, DDLCleaner, Reason, Removal
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Execution
from engine.ddl.outcome import HostState
from engine.errors import Code, ConnectionLoss, NoAuth, SqlError
from engine.keeper.base import Acl, Create, CreateMode, Keeper, Op, OpResult, Remove
from engine.keeper.recipes import create_ancestors
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, kill, run

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"
DAY_S = 86_400


async def finish(keeper: Keeper, entry: str, *names: str, data: bytes = b"0\n") -> None:
    for name in names:
        await keeper.create(PATHS.finished(entry, host(name)), data)


async def clean(bench: Bench, *, max_tasks: int = 1000, dry_run: bool = False) -> CleanReport:
    queue = replace(QUEUE, max_tasks_in_queue=max_tasks)
    return await DDLCleaner(await bench.keeper("cleaner"), bench.env, queue).clean(dry_run=dry_run)


async def entries(bench: Bench) -> tuple[str, ...]:
    return await (await bench.client()).list()


async def submit(bench: Bench, count: int) -> None:
    for number in range(count):
        await bench.submit(CREATE, f"t{number}")


def test_young_entries_stay_whether_finished_or_not() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 2)
        await finish(await bench.keeper(), "query-0000000000", "a", "b")
        await bench.env.sleep(6 * DAY_S)
        assert (await clean(bench)).entries == ()
        assert len(await entries(bench)) == 2

    run(main)


def test_an_entry_that_keeper_lets_nobody_look_at_stays_and_holds_up_no_other() -> None:
    """A server with an <identity> has made it. Nothing of the queue was cleaned any more."""

    async def main(bench: Bench) -> None:
        await submit(bench, 3)
        bench.server.tree.nodes[PATHS.entry("query-0000000000")].acl = (Acl(31, "digest", "x:y"),)
        await bench.env.sleep(7 * DAY_S + 10)
        report = await clean(bench)
        assert report.removed == ("query-0000000001", "query-0000000002")
        assert report.forbidden == ("query-0000000000",)
        assert await entries(bench) == ("query-0000000000",)
        cleaner = DDLCleaner(await bench.keeper("cleaner"), bench.env, QUEUE)
        assert (await cleaner.remove_entry("query-0000000000")).removal is Removal.FORBIDDEN
        (status,) = await (await bench.client()).status_many(await entries(bench))
        assert isinstance(status, NoAuth)

    run(main)


def test_an_old_entry_goes_and_its_outcomes_are_recorded() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        await finish(keeper, "query-0000000000", "a")
        await bench.env.sleep(7 * DAY_S + 10)
        report = await clean(bench)
        (cleaned,) = report.entries
        assert (cleaned.reason, cleaned.removal, cleaned.expired) == (
            Reason.AGE,
            Removal.REMOVED,
            (host("b"),),
        )
        assert await entries(bench) == ()
        status = await (await bench.client()).status("query-0000000000")
        assert status.is_gone and status.is_complete
        assert [o.state for o in status.hosts] == [HostState.DONE, HostState.EXPIRED]
        assert status.query == CREATE

    run(main)


def test_too_many_entries_go_by_number() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 6)
        report = await clean(bench, max_tasks=2)
        assert report.removed == ("query-0000000000", "query-0000000001", "query-0000000002")
        assert {entry.reason for entry in report.entries} == {Reason.NUMBER}

    run(main)


def test_the_number_counts_what_this_host_has_handled() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 6)
        queue = replace(QUEUE, max_tasks_in_queue=2)
        cleaner = DDLCleaner(await bench.keeper(), bench.env, queue, max_entry=lambda: 3)
        assert (await cleaner.clean()).removed == ("query-0000000000",)

    run(main)


def test_an_entry_that_somebody_executes_stays() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        await keeper.create(PATHS.active("query-0000000000", host("a")), mode=CreateMode.EPHEMERAL)
        await bench.env.sleep(7 * DAY_S + 10)
        assert (await clean(bench)).entries[0].removal is Removal.ACTIVE
        assert len(await entries(bench)) == 1

    run(main)


def test_what_no_session_owns_keeps_no_entry_and_shows_no_host() -> None:
    """Copied by a tool that makes everything anew as it stands, of a host that never comes back."""

    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        await keeper.create(PATHS.active("query-0000000000", host("a")))
        await keeper.create(PATHS.active("query-0000000000", host("b")))
        await create_ancestors(keeper, PATHS.replica_active(host("a")))
        await keeper.create(PATHS.replica_active(host("a")))
        await bench.env.sleep(7 * DAY_S + 10)
        assert (await clean(bench, dry_run=True)).entries[0].removal is Removal.PLANNED
        assert await keeper.exists(PATHS.replica_active(host("a"))) is not None
        assert (await clean(bench)).entries[0].removal is Removal.REMOVED
        assert await keeper.exists(PATHS.replica_active(host("a"))) is None
        status = await (await bench.client()).status("query-0000000000")
        assert [o.state for o in status.hosts] == [HostState.EXPIRED, HostState.EXPIRED]

    run(main)


def test_one_that_executes_beside_what_no_session_owns_keeps_the_entry() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        await keeper.create(PATHS.active("query-0000000000", host("a")))
        await keeper.create(PATHS.active("query-0000000000", host("b")), mode=CreateMode.EPHEMERAL)
        await bench.env.sleep(7 * DAY_S + 10)
        assert (await clean(bench)).entries[0].removal is Removal.ACTIVE
        assert len(await entries(bench)) == 1

    run(main)


def test_an_entry_that_a_cleaner_of_18_16_has_locked_is_left_to_it() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        other = await bench.keeper("18.16")
        await other.create(f"{PATHS.entry('query-0000000000')}/lock", b"x:9000", mode=CreateMode.EPHEMERAL)
        await bench.env.sleep(7 * DAY_S + 10)
        assert (await clean(bench)).entries[0].removal is Removal.LOCKED
        await other.close()
        assert (await clean(bench)).entries[0].removal is Removal.REMOVED

    run(main)


def test_everything_below_an_entry_goes_with_it_in_one_transaction() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        entry = PATHS.entry("query-0000000000")
        await keeper.multi(
            [
                Create(f"{entry}/shards"),
                Create(f"{entry}/shards/a,b"),
                Create(f"{entry}/shards/a,b/executed", b"a:9000"),
                Create(f"{entry}/synced"),
            ]
        )
        await finish(keeper, "query-0000000000", "a", "b")
        await bench.env.sleep(7 * DAY_S + 10)
        report = await clean(bench)
        assert report.removed == ("query-0000000000",)
        gone = [path for path in bench.server.tree.nodes if path.startswith(entry)]
        assert gone == []
        writes = bench.server.operations["cleaner"]
        assert (writes["multi"], writes["remove"]) == (1, len(report.stale_replicas))

    run(main)


def test_half_an_entry_that_a_dead_cleaner_left_is_removed() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 2)
        keeper = await bench.keeper()
        await keeper.remove(PATHS.active("query-0000000000"))
        await keeper.remove(PATHS.active("query-0000000001"))
        await keeper.remove(PATHS.finished("query-0000000001"))
        await bench.env.sleep(7 * DAY_S + 10)
        assert len((await clean(bench)).removed) == 2

    run(main)


def test_a_text_nobody_can_read_is_removed_like_any_other() -> None:
    async def main(bench: Bench) -> None:
        await bench.put(b"\0garbage")
        await bench.env.sleep(7 * DAY_S + 10)
        assert (await clean(bench)).removed == ("query-0000000000",)

    run(main)


def test_large_entries_go_step_by_step_with_the_record_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "_MOST_OPS", 3)

    async def main(bench: Bench) -> None:
        await submit(bench, 2)
        keeper = await bench.keeper()
        await finish(keeper, "query-0000000000", "a")
        await keeper.create(PATHS.active("query-0000000001", host("a")), mode=CreateMode.EPHEMERAL)
        await bench.env.sleep(7 * DAY_S + 10)
        cleaning = await bench.keeper("cleaner")
        multi, sent = cleaning.multi, list[str]()

        async def seen(ops: Sequence[Op]) -> list[OpResult]:
            sent.extend(op.path for op in ops)
            return await multi(ops)

        cleaning.multi = seen  # type: ignore[method-assign]
        report = await DDLCleaner(cleaning, bench.env, QUEUE).clean()
        assert [e.removal for e in report.entries] == [Removal.REMOVED, Removal.ACTIVE]
        assert PATHS.entry("query-0000000000") in sent and PATHS.outcome("query-0000000000") not in sent
        status = await (await bench.client()).status("query-0000000000")
        assert [o.state for o in status.hosts] == [HostState.DONE, HostState.EXPIRED]

    run(main)


def test_what_a_cleaner_had_recorded_before_it_died_half_way_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. It has written the record. 2. It has removed the outcomes. 3. It dies, and another one goes on."""
    monkeypatch.setattr(cleaner_module, "_MOST_OPS", 3)
    name = "query-0000000000"

    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper, cleaning = await bench.keeper(), await bench.keeper("cleaner")
        await finish(keeper, name, "a")
        await bench.env.sleep(7 * DAY_S + 10)
        multi = cleaning.multi

        async def dies_at_the_last_step(ops: Sequence[Op]) -> list[OpResult]:
            if any(isinstance(op, Remove) and op.path == PATHS.entry(name) for op in ops):
                raise ConnectionLoss("killed")
            return await multi(ops)

        cleaning.multi = dies_at_the_last_step  # type: ignore[method-assign]
        with pytest.raises(ConnectionLoss):
            await DDLCleaner(cleaning, bench.env, QUEUE).clean()
        assert await keeper.exists(PATHS.finished(name, host("a"))) is None
        await clean(bench)
        assert await entries(bench) == ()
        status = await (await bench.client()).status(name)
        assert [o.state for o in status.hosts] == [HostState.DONE, HostState.EXPIRED]

    run(main)


def test_a_large_entry_that_somebody_begins_to_execute_after_the_look_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaner_module, "_MOST_OPS", 3)
    name = "query-0000000000"

    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        worker, cleaning = await bench.keeper(), await bench.keeper("cleaner")
        await bench.env.sleep(7 * DAY_S + 10)
        create = cleaning.create

        async def claimed_meanwhile(path: str, data: bytes = b"") -> str:
            if path == PATHS.outcome(name):
                await worker.create(PATHS.active(name, host("a")), mode=CreateMode.EPHEMERAL)
            return await create(path, data)

        cleaning.create = claimed_meanwhile  # type: ignore[method-assign,assignment]
        [cleaned] = (await DDLCleaner(cleaning, bench.env, QUEUE).clean()).entries
        assert cleaned.removal is Removal.ACTIVE
        assert await worker.exists(PATHS.active(name, host("a"))) is not None
        assert await worker.exists(PATHS.finished(name)) is not None

    run(main)


def test_a_local_clock_that_jumps_ahead_expires_nothing() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        ahead = bench.env.fork(clock_offset_s=30 * DAY_S)
        report = await DDLCleaner(await bench.keeper(), ahead, QUEUE).clean()
        assert report.entries == ()
        bench.server.jump_clock(30 * DAY_S)
        report = await DDLCleaner(await bench.keeper(), bench.env, QUEUE).clean()
        assert report.entries == ()

    run(main)


def test_several_cleaners_at_once_remove_each_entry_once() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 10)
        await bench.env.sleep(7 * DAY_S + 10)
        reports = await asyncio.gather(*(clean(bench) for _ in range(4)))
        removed = [name for report in reports for name in report.removed]
        assert sorted(removed) == [f"query-{number:010}" for number in range(10)]
        others = {e.removal for report in reports for e in report.entries} - {Removal.REMOVED}
        assert others <= {Removal.GONE, Removal.CHANGING}

    run(main)


def test_a_dry_run_says_what_would_go_and_removes_nothing() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        await bench.env.sleep(7 * DAY_S + 10)
        (planned,) = (await clean(bench, dry_run=True)).entries
        assert (planned.removal, planned.expired) == (Removal.PLANNED, (host("a"), host("b")))
        assert len(await entries(bench)) == 1

    run(main)


def test_a_dry_run_forgets_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(bench: Bench) -> None:
        entry = (await bench.submit(CREATE)).entry
        keeper = await bench.keeper()
        await DDLCleaner(keeper, bench.env, QUEUE).remove_entry(entry)
        monkeypatch.setattr(cleaner_module, "OUTCOMES_KEPT", 0)

        async def on_present(keeper: Keeper, present: frozenset[str]) -> None:
            raise AssertionError("a worker would drop what it has begun")

        await DDLCleaner(keeper, bench.env, QUEUE, on_present=on_present).clean(dry_run=True)
        assert (await keeper.children(PATHS.outcomes_root)).names == (entry,)

    run(main)


def test_an_entry_that_a_person_names_goes_unless_it_is_active() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 2)
        keeper = await bench.keeper()
        await keeper.create(PATHS.active("query-0000000001", host("a")), mode=CreateMode.EPHEMERAL)
        cleaner = DDLCleaner(keeper, bench.env, QUEUE)
        assert (await cleaner.remove_entry("query-0000000000")).removal is Removal.REMOVED
        assert (await cleaner.remove_entry("query-0000000001")).removal is Removal.ACTIVE
        assert (await cleaner.remove_entry("query-0000000009")).removal is Removal.GONE

    run(main)


def test_directories_of_replicas_that_were_away_for_a_day_are_removed() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        keeper = await bench.keeper()
        await create_ancestors(keeper, PATHS.replica_active(host("a")))
        await keeper.create(PATHS.replica_active(host("a")), mode=CreateMode.EPHEMERAL)
        await bench.env.sleep(DAY_S - 100)
        assert (await clean(bench)).stale_replicas == ()
        await bench.env.sleep(200)
        assert (await clean(bench)).stale_replicas == ("b:9000",)
        assert (await keeper.children(PATHS.replicas_root)).names == ("a:9000",)

    run(main)


def test_a_worker_that_comes_late_meets_nothing_and_makes_nothing() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        await bench.env.sleep(7 * DAY_S + 10)
        await clean(bench)
        bench.start("a", "b")
        await bench.env.sleep(10)
        assert await entries(bench) == ()
        assert bench.databases["a"].effects == []

    run(main)


@pytest.mark.parametrize(
    ("sql", "state", "code", "effects"),
    [
        (CREATE, HostState.DONE, 0, 1),
        ("CREATE TABLE d.t ON CLUSTER c (a Int8 COMMENT 'FAIL 44')", HostState.FAILED, 44, 0),
    ],
)
def test_a_host_that_executed_an_expired_entry_puts_the_record_right(
    sql: str, state: HostState, code: int, effects: int
) -> None:
    async def main(bench: Bench) -> None:
        bench.start("a")
        bench.executors["a"].duration_s = (60.0, 60.0)
        submission = await bench.submit(sql)
        await bench.env.sleep(5)
        for session in bench.server.session_ids("a"):
            bench.server.expire_session(session)
        cleaner = DDLCleaner(await bench.keeper(), bench.env, QUEUE)
        await bench.env.sleep(0.001)
        assert (await cleaner.remove_entry(submission.entry)).expired == (host("a"), host("b"))
        later = await bench.submit(CREATE, "later")
        await bench.env.sleep(120)
        await clean_and_forget(bench)
        status = await (await bench.client()).status(submission.entry)
        assert [(o.state, o.code) for o in status.hosts] == [(state, code), (HostState.EXPIRED, 0)]
        effect_of = [effect.entry for effect in bench.databases["a"].effects]
        assert effect_of.count(submission.entry) == effects
        assert later.entry != submission.entry
        assert [key.entry for key in bench.disks["a"].rows] == [later.entry]

    run(main)


async def clean_and_forget(bench: Bench) -> None:
    keeper = await bench.keeper()
    await DDLCleaner(keeper, bench.env, QUEUE, on_present=bench.workers["a"].forget_intents).clean()


def test_of_an_entry_that_is_there_or_may_be_or_is_being_executed_nothing_is_forgotten() -> None:
    """By it a host that was killed knows what it has done."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        first, second, third = [
            (await bench.ddl(f"CREATE TABLE d.t{number} ON CLUSTER c (a Int8)", f"t{number}")).entry
            for number in range(3)
        ]
        bench.executors["a"].duration_s = (60.0, 60.0)
        running = (await bench.submit(CREATE, "running")).entry
        await bench.env.sleep(5)
        worker, keeper = bench.workers["a"], await bench.keeper()

        async def forget(*present: str) -> list[str]:
            await worker.forget_intents(keeper, frozenset(present))
            return sorted(key.entry for key in bench.disks["a"].rows)

        assert await forget(first, second, third, running) == [first, second, third, running]
        assert await forget(first) == [first, second, third, running], (
            "they were listed before the others came"
        )
        assert await forget(second, running) == [second, running]
        assert await forget("query-0000000099") == [running]

    run(main, "a")


@pytest.mark.parametrize(
    ("has_effect", "state"), [(True, HostState.DONE), (False, HostState.EXPIRED)], ids=["effect", "no effect"]
)
def test_a_host_that_was_killed_at_an_expired_entry_finds_out_what_became_of_it(
    has_effect: bool, state: HostState
) -> None:
    """1. It begins. 2. It is killed. 3. The entry is removed. 4. It is back."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        executor = bench.executors["a"]
        original, arrived = executor.execute, asyncio.Event()

        async def execute(execution: Execution) -> None:
            if has_effect:
                await original(execution)
            arrived.set()
            await asyncio.Event().wait()

        executor.execute = execute  # type: ignore[method-assign]
        entry = (await bench.submit(CREATE)).entry
        await arrived.wait()
        await kill(bench, "a")
        await bench.env.sleep(20)
        removed = await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(entry)
        assert removed.removal is Removal.REMOVED
        later = (await bench.submit("DROP TABLE d.other ON CLUSTER c", "later")).entry
        bench.start("a")
        await bench.env.sleep(5)
        await clean_and_forget(bench)
        status = await (await bench.client()).status(entry)
        assert [o.state for o in status.hosts] == [state, HostState.EXPIRED]
        assert len(bench.databases["a"].effects) == has_effect
        assert [key.entry for key in bench.disks["a"].rows] == [later]

    run(main)


def test_the_background_cleaner_waits_for_its_period_and_survives_a_lost_connection() -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        await bench.env.sleep(7 * DAY_S + 10)
        keeper = await bench.keeper("cleaner")
        cleaner = DDLCleaner(keeper, bench.env, QUEUE)
        running = asyncio.create_task(cleaner.run())
        await bench.env.sleep(100)
        assert len(await entries(bench)) == 1
        bench.server.lose_next_request(keeper.session_id)
        cleaner.wake()
        await bench.env.sleep(10)
        assert await entries(bench) == ()
        running.cancel()

    run(main)


@pytest.mark.parametrize("error", [SqlError(Code.DNS_ERROR, "no host"), ValueError("a defect")])
def test_the_background_cleaner_goes_on_after_errors_that_nobody_foresaw(error: Exception) -> None:
    async def main(bench: Bench) -> None:
        await submit(bench, 1)
        rounds = 0

        async def on_present(keeper: Keeper, present: frozenset[str]) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                raise error

        cleaner = DDLCleaner(await bench.keeper(), bench.env, QUEUE, on_present=on_present)
        running = asyncio.create_task(cleaner.run())
        cleaner.wake()
        await bench.env.sleep(10)
        assert rounds == 2
        running.cancel()

    run(main)


def test_the_background_cleaner_works_at_most_once_in_its_period() -> None:
    """1. It cleans when it is told. 2. What is due a moment later waits, however often it is told."""
    period_s = 1000

    async def main(bench: Bench) -> None:
        await submit(bench, 2)
        queue = replace(QUEUE, max_tasks_in_queue=1, cleanup_delay_period_s=period_s)
        largest = 2
        cleaner = DDLCleaner(await bench.keeper(), bench.env, queue, max_entry=lambda: largest)
        running = asyncio.create_task(cleaner.run())
        cleaner.wake()
        await bench.env.sleep(10)
        assert await entries(bench) == ("query-0000000001",)

        largest = 3
        for _ in range(80):
            cleaner.wake()
            await bench.env.sleep(11)
        assert await entries(bench) == ("query-0000000001",)
        cleaner.wake()
        await bench.env.sleep(period_s * 1.1 - 880)
        assert await entries(bench) == ()
        running.cancel()

    run(main)


def test_records_of_long_ago_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "OUTCOMES_KEPT", 2)

    async def main(bench: Bench) -> None:
        await submit(bench, 6)
        await clean(bench, max_tasks=1)
        names = (await (await bench.keeper()).children(PATHS.outcomes_root)).names
        assert names == ("query-0000000002", "query-0000000003")

    run(main)


def test_a_foreign_entry_has_a_record_too() -> None:
    async def main(bench: Bench) -> None:
        name = await bench.put(DDLLogEntry(1, CREATE, (host("a"),), "foreign:1").to_bytes())
        await bench.env.sleep(7 * DAY_S + 10)
        await clean(bench)
        status = await (await bench.client()).status(name)
        assert (status.initiator, [o.state for o in status.hosts]) == ("foreign:1", [HostState.EXPIRED])

    run(main)
