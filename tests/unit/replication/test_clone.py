"""A replica that is new, or was away for too long, becomes like another one, wherever it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.errors import SqlError
from engine.keeper.base import Create, CreateMode, Keeper, Op, OpResult, Remove, SetData
from engine.keeper.session import RequestKind
from engine.replication.log_actions import GetPart, MergeParts
from engine.replication.log_entry import LogEntry
from engine.replication.part_store import Fate
from engine.replication.paths import ReplicaPaths
from engine.replication.replica import clone
from engine.replication.replica.switches import Activity
from engine.replication.text import time_text
from tests.unit.replication.support import PATHS, Bench, P, Replica, simulated


async def with_history(bench: Bench) -> tuple[Replica, Replica]:
    """r1 with a merged and a fresh part; r2, which has missed all since its first part, is lost."""
    one, two = await bench.cluster(2)
    await one.insert(0)
    await bench.quiet(one, two)
    await two.stop()
    for key in (1, 2, 3):
        await one.insert(key)
    await bench.log(MergeParts(tuple(P(f"all_{n}_{n}_0") for n in range(3)), P("all_0_2_1")))
    await bench.quiet(one)
    for name in await bench.children(PATHS.log):
        await bench.admin.remove(PATHS.log_entry(name))
    await bench.admin.set(PATHS.replica("r2").is_lost, b"1")
    return one, two


@simulated
async def test_a_new_replica_gets_all_parts_of_the_others(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    for key in range(4):
        await one.insert(key)
    await bench.quiet(one)
    two = await bench.start("r2")
    assert (await bench.admin.get(two.ctx.me.is_lost)).data == b"0"
    await bench.quiet(one, two)
    assert two.active == one.active and two.values == [0, 1, 2, 3]


@simulated
async def test_a_lost_replica_keeps_what_is_covered_and_fetches_the_rest(bench: Bench) -> None:
    one, two = await with_history(bench)
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert again.active == one.active == ["all_0_2_1", "all_3_3_0"]
    assert again.values == [0, 1, 2, 3]
    assert await bench.parts("r2") == again.active


@simulated
async def test_a_lost_replica_gets_what_it_has_but_keeper_does_not_know(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    for key in range(4):
        await one.insert(key)
    await bench.quiet(one, two)
    await two.stop()
    await bench.admin.remove(PATHS.replica("r2").part(P("all_1_1_0")))
    await bench.admin.set(PATHS.replica("r2").is_lost, b"1")
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert again.active == one.active and await bench.parts("r2") == again.active
    assert again.values == [0, 1, 2, 3]


@simulated
async def test_parts_that_the_source_does_not_have_are_moved_aside_not_deleted(bench: Bench) -> None:
    one, two = await with_history(bench)
    stray = await two.store.write("all", [{"k": 99, "v": 0}])
    part = await two.store.stage_inserted(stray, P("all_9_9_0"))
    await two.store.publish([part.name])
    await bench.admin.create(PATHS.replica("r2").part(part.name), part.header.to_bytes())
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert "clone_all_9_9_0" in again.detached
    assert again.active == one.active and await bench.parts("r2") == again.active


@simulated
async def test_a_part_that_the_source_has_dropped_goes_when_its_insert_shows_it_after_the_clone(
    bench: Bench,
) -> None:
    """1. An insert of r2 is recorded, and waits for the answer. 2. The partition is dropped, and r2 is lost.
    3. It is cloned. 4. The insert hears of its success, and shows the part."""
    one, two = await bench.cluster(2)
    written = await two.store.write("all", [{"k": 99, "v": 0}])
    part = await two.store.stage_inserted(written, P("all_9_9_0"))
    await bench.admin.create(two.ctx.me.part(part.name), part.header.to_bytes())
    async with two.ctx.in_flight.hold(part.name):
        session = two.holder.current
        assert session is not None
        await bench.admin.set(two.ctx.me.is_lost, b"1")
        bench.server.expire_session(session.session_id)

        async def is_cloned() -> bool:
            return (await bench.admin.get(two.ctx.me.is_lost)).data == b"0"

        await bench.until(is_cloned)
        await two.store.publish([part.name])
        assert two.active == ["all_9_9_0"]
    await bench.quiet(one, two)
    assert two.active == one.active == [] and await bench.parts("r2") == []
    assert "all_9_9_0" in two.detached


@simulated
async def test_an_own_part_that_only_the_log_speaks_of_stays(bench: Bench) -> None:
    """1. r2 inserts; nobody has copied that yet. 2. r2 is lost. 3. r1 is its source, and behind the log."""
    one, two = await bench.cluster(2)
    one.ctx.switches.stop(Activity.PULLING)
    await bench.env.sleep(1)
    await two.insert(7)
    await two.stop()
    await bench.admin.set(PATHS.replica("r2").is_lost, b"1")
    again = await bench.start("r2", two.disk)
    assert again.active == ["all_0_0_0"] and again.values == [7]
    one.ctx.switches.start(Activity.PULLING)
    one.ctx.log_changed.set()
    await bench.quiet(one, again)
    assert one.values == again.values == [7] and again.detached == []


@simulated
async def test_the_queue_of_the_source_is_done_here_too(bench: Bench) -> None:
    one, two = await bench.cluster(2)
    await one.insert(1)
    await one.insert(2)
    await bench.quiet(one, two)
    one.ctx.switches.stop(Activity.MERGES)
    two.ctx.switches.stop(Activity.MERGES)
    await bench.log(MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1")))
    await bench.until(lambda: len(one.ctx.queue.entries) == 1)
    three = await bench.start("r3")
    await bench.until(lambda: three.active == ["all_0_1_1"])
    assert one.active == ["all_0_0_0", "all_1_1_0"]
    for replica in (one, two):
        replica.ctx.switches.start(Activity.MERGES)
        replica.ctx.queue_changed.set()
    await bench.quiet(one, two, three)
    assert one.active == two.active == three.active == ["all_0_1_1"]


@simulated
async def test_a_replica_that_lies_in_detached_is_attached_and_not_fetched(bench: Bench) -> None:
    one, two = await with_history(bench)
    await two.store.remove([P("all_0_0_0")], fate=Fate.DETACH)
    two.disk.detached["all_7_7_0"] = one.disk.active[P("all_3_3_0")]
    again = await bench.start("r2", two.disk)
    await bench.quiet(one, again)
    assert again.active == one.active
    assert P("all_3_3_0") not in [part for _, node, part in bench.network.fetches if node == "r2"][-2:]
    assert "all_7_7_0" not in again.detached


@pytest.mark.parametrize("is_back_soon", [False, True], ids=["still to be fetched", "fetched again"])
def test_a_part_that_the_source_finds_damaged_meanwhile_is_fetched_here_too(
    monkeypatch: pytest.MonkeyPatch, is_back_soon: bool
) -> None:
    """1. r2 lists the queue of r1. 2. r1's part check moves a part from `parts/` to `queue/`. 3. r2 lists the
    parts of r1. 4. r1 may have the part again, and nothing of it in its queue. 5. r2 lists the queue."""
    read_queue = clone.read_queue
    part = P("all_0_0_0")

    @simulated
    async def story(bench: Bench) -> None:
        one = await bench.start("r1")
        await one.insert(5)
        await bench.quiet(one)
        await one.stop()
        listings = 0
        header, entry = b"", ""

        async def read_and_move(keeper: Keeper, source: ReplicaPaths) -> list[clone._Queued]:
            nonlocal listings, header, entry
            listings += 1
            if listings == 2 and is_back_soon:
                await bench.admin.multi([Remove(entry), Create(source.part(part), header)])
            found = await read_queue(keeper, source)
            if listings == 1:
                header = (await bench.admin.get(source.part(part))).data
                fetch = LogEntry(GetPart(part), "", time_text(bench.env.now_s()))
                again = Create(source.queue_prefix, fetch.to_bytes(), CreateMode.PERSISTENT_SEQUENTIAL)
                entry = str((await bench.admin.multi([again, Remove(source.part(part))]))[0])
            return found

        monkeypatch.setattr(clone, "read_queue", read_and_move)
        await bench.start("r2")
        assert [queued.action for queued in await bench.queue("r2")] == [GetPart(part)]

    story()


@simulated
async def test_a_source_that_goes_on_or_gets_lost_while_it_is_copied_is_not_copied_by_halves(
    bench: Bench,
) -> None:
    """While its position is taken: 1. it copies an entry; 2. it is declared lost, so that nobody is left to
    copy; 3. somebody decides that it has the data after all."""
    (one,) = await bench.cluster(1)
    await one.insert(0)
    await bench.quiet(one)
    two = await bench.start("r2", is_awaited=False)
    session = await two.holder.get()
    real, meanwhile = session.multi, ["entry", "lost"]

    async def interrupted(ops: Sequence[Op]) -> list[OpResult]:
        is_position = any(isinstance(op, SetData) and op.path == two.ctx.me.log_pointer for op in ops)
        if is_position and two.ctx.is_readonly and meanwhile:
            if meanwhile.pop(0) == "entry":
                one.ctx.switches.stop(Activity.QUEUES)
                await bench.log(GetPart(P("all_7_7_0")), source="r9")
                await bench.until(lambda: len(one.ctx.queue.entries) == 1)
            else:
                await bench.admin.set(one.ctx.me.is_lost, b"1")
        return await real(ops)

    session.multi = interrupted  # type: ignore[method-assign]
    await bench.until(lambda: "(ALL_REPLICAS_LOST)" in two.ctx.readonly_reason)
    assert not meanwhile and await bench.queue("r2") == []
    await bench.admin.set(one.ctx.me.is_lost, b"0")
    await bench.until(lambda: not two.ctx.is_readonly)
    await bench.until(lambda: two.values == [0])
    assert any(isinstance(entry.action, GetPart) for entry in await bench.queue("r2")), "the source's own"
    one.ctx.switches.start(Activity.QUEUES)
    one.ctx.queue_changed.set()
    await bench.quiet(one, two)
    assert one.active == two.active


@simulated
async def test_the_replica_with_the_least_to_do_is_copied(bench: Bench) -> None:
    *others, new = await bench.cluster(4)
    for replica in others:
        await replica.stop()
    new.ctx.switches.stop(Activity.PULLING)
    for number in range(3):
        await bench.log(GetPart(P(f"all_{number}_{number}_0")), source="r9")
    for replica, copied, queued in zip(others, (0, 3, 2), (0, 2, 0), strict=True):
        await bench.admin.set(replica.ctx.me.log_pointer, str(copied).encode())
        for _ in range(queued):
            await bench.admin.create(replica.ctx.me.queue_prefix, b"", mode=CreateMode.PERSISTENT_SEQUENTIAL)
    # To do: three entries to copy; two to execute; one to copy.
    for best in reversed(others):
        assert (await clone.choose_source(new.ctx, new.ctx.session())).name == best.name
        await bench.admin.set(best.ctx.me.is_lost, b"1")


@simulated
async def test_when_all_others_are_lost_the_replica_stays_read_only(bench: Bench) -> None:
    one, two = await with_history(bench)
    await bench.admin.set(PATHS.replica("r1").is_lost, b"1")
    again = await bench.start("r2", two.disk, is_awaited=False)
    await bench.env.sleep(20)
    assert "(ALL_REPLICAS_LOST)" in again.ctx.readonly_reason
    with pytest.raises(SqlError):
        again.ctx.session()
    await bench.admin.set(PATHS.replica("r1").is_lost, b"0")
    await bench.quiet(one, again)
    assert again.values == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_clone_that_is_interrupted_at_any_request_ends_the_same() -> None:
    """The n-th request of the clone is executed and not answered, or not executed; then the process dies."""
    reached = 0
    for lost_at in range(1, 40, 3):
        outcome: list[bool] = []

        @simulated
        async def story(bench: Bench, lost_at: int = lost_at, outcome: list[bool] = outcome) -> None:
            one, two = await with_history(bench)
            dying = await bench.start("r2", two.disk, is_awaited=False)
            writes = 0
            session = None
            while dying.ctx.is_readonly and writes < lost_at:
                await asyncio.sleep(0)
                session = dying.holder.current or session
                writes += 1
            outcome.append(dying.ctx.is_readonly)
            if session is not None and not session.is_expired:
                bench.server.lose_next_reply(session.session_id, kind=RequestKind.MULTI)
            await asyncio.sleep(0)
            await dying.stop()
            again = await bench.start("r2", two.disk)
            await bench.quiet(one, again)
            assert again.active == one.active and again.values == [0, 1, 2, 3]
            assert await bench.parts("r2") == again.active
            assert (await bench.admin.get(PATHS.replica("r2").is_lost)).data == b"0"

        story()
        reached += any(outcome)
    assert reached > 5, "the clone was over before it could be interrupted"
