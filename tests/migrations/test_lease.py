"""One run at a time, fenced (M3): who holds the lock, who may take it, and what a holder that slept can
still do."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Busy, ConnectionLoss, OnclusterError, SessionExpired
from engine.keeper.base import Create, Keeper, Op
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.session import RequestKind
from engine.migrations import lock
from engine.migrations.drive import drive
from engine.migrations.errors import LedgerCorrupt, MigrationRefused, StaleFence
from engine.migrations.ledger import Ledger
from engine.migrations.lock import Binding, Claim, LeaseText
from engine.migrations.model import Run
from engine.migrations.selection import ALL
from engine.migrations.states import RunState
from tests.few import few_first
from tests.migrations.support import World, in_world

pytestmark = pytest.mark.slow


def claim(world: World, run_id: str, binding: Binding = Binding.SESSION) -> Claim:
    ledger = world.ledger
    return Claim(
        run_id=run_id,
        holder=f"holder of {run_id}",
        binding=binding,
        ledger_id=ledger.ledger_id,
        ledger_url=ledger.url,
        ledger_max_fence=ledger.max_fence(world.cluster),
        ttl_s=300.0,
    )


BASE = "/locks/shop"


def test_every_holder_has_a_greater_fence_than_the_one_before(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        fences = []
        for number in range(3):
            lease = await lock.acquire(keeper, BASE, claim(world, f"r{number}"), env=world.env)
            fences.append(lease.fence)
            await lock.release(keeper, lease)
        assert fences == [1, 2, 3]

    in_world(tmp_path, scenario)


def test_the_fence_rises_even_when_keeper_lost_its_data(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        for _ in range(3):
            await drive(await world.runner(), world.request())
        before = world.ledger.max_fence("shop")
        for host in world.hosts.values():
            await host.stop()
        world.server.lose_data()
        await world.start()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert world.ledger.max_fence("shop") > before

    in_world(tmp_path, scenario)


def test_a_process_holds_the_lock_as_long_as_its_session(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        # 1. A holds. 2. B is refused. 3. A's session ends. 4. B gets it with a greater fence.
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        first = await lock.acquire(a, BASE, claim(world, "a"), env=world.env)
        with pytest.raises(Busy, match="holder of a"):
            await lock.acquire(b, BASE, claim(world, "b"), env=world.env)
        world.server.expire_session(a.session_id)
        second = await lock.acquire(b, BASE, claim(world, "b"), env=world.env)
        assert second.fence == first.fence + 1
        with pytest.raises(StaleFence):
            await lock.verify(await world.server.connect(), first)
        await lock.verify(b, second)

    in_world(tmp_path, scenario)


def test_a_lease_in_a_copy_of_keepers_tree_is_nobodys(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        held = await lock.acquire(a, BASE, claim(world, "a"), env=world.env)
        world.server.expire_session(a.session_id)
        await b.create(f"{BASE}/alive-{held.fence}")
        assert await lock.look_for_run(b, BASE) is None
        assert (await lock.acquire(b, BASE, claim(world, "b"), env=world.env)).fence == held.fence + 1

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("held_s", [1.0, 1.9])
def test_a_lock_that_is_held_for_a_moment_is_waited_for(tmp_path: Path, held_s: float) -> None:
    """Somebody looks at the status when a run begins: that is no reason for the run to fail."""

    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        first = await lock.acquire(a, BASE, claim(world, "a"), env=world.env)
        waiting = asyncio.create_task(lock.acquire(b, BASE, claim(world, "b"), env=world.env))
        await world.env.sleep(held_s)
        await lock.release(a, first)
        second = await waiting
        assert second.fence == first.fence + 1
        await lock.verify(b, second)

    in_world(tmp_path, scenario)


def test_a_run_of_several_processes_re_enters_its_lock_and_keeps_its_fence(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        fences = set()
        for _ in range(3):
            keeper = await world.server.connect()
            lease = await lock.acquire(keeper, BASE, claim(world, "r", Binding.TTL), env=world.env)
            fences.add(lease.fence)
            await keeper.close()
        assert fences == {1}

    in_world(tmp_path, scenario)


def test_a_run_that_is_one_process_is_not_entered_by_another_of_its_name(tmp_path: Path) -> None:
    """A command that is given twice at once, with one `--run-id`."""

    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        first = await lock.acquire(a, BASE, claim(world, "r"), env=world.env)
        for binding in Binding:
            with pytest.raises(Busy, match="holder of r"):
                await lock.acquire(b, BASE, claim(world, "r", binding), env=world.env)
        await lock.verify(a, first)

    in_world(tmp_path, scenario)


def test_a_run_that_re_enters_its_lock_has_all_its_time_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        for _ in range(2):
            await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
            await world.env.sleep(250)
        with pytest.raises(Busy, match="holder of a"):
            await lock.acquire(b, BASE, claim(world, "b", Binding.TTL), env=world.env)

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("binding", Binding)
def test_a_lock_that_was_given_back_is_anybody_s_at_once(tmp_path: Path, binding: Binding) -> None:
    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        first = await lock.acquire(keeper, BASE, claim(world, "a", binding), env=world.env)
        await lock.release(keeper, first)
        assert not [name for name in (await keeper.children(BASE)).names if name.startswith("alive")]
        assert await lock.look_for_run(keeper, BASE) is None
        began_s = world.env.monotonic_s()
        second = await lock.acquire(keeper, BASE, claim(world, "b", binding), env=world.env)
        assert (second.fence, world.env.monotonic_s()) == (first.fence + 1, began_s)

    in_world(tmp_path, scenario)


def test_a_lost_lock_is_known_also_behind_a_server_that_lags(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        lease = await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        world.server.stale_reads(a.session_id)
        assert await lock.break_lease(b, BASE) is not None
        with pytest.raises(StaleFence):
            await lock.verify(a, lease)

    in_world(tmp_path, scenario)


class Meanwhile:
    """A session; something happens before it writes."""

    def __init__(self, keeper: Keeper, happens: Callable[[], Awaitable[None]]) -> None:
        self._keeper, self._happens = keeper, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)

    async def set(self, *arguments: Any, **named: Any) -> Any:
        await self._happens()
        return await self._keeper.set(*arguments, **named)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_lock_that_changes_hands_while_it_is_taken_from_its_holder_stays_with_the_next(
    tmp_path: Path, is_taken: bool
) -> None:
    """1. `a` holds it. 2. Somebody who means `a` reads that. 3. `a` gives it back, and `b` takes it. 4. What
    was read is too old to write by."""

    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        first = await lock.acquire(keeper, BASE, claim(world, "a", Binding.TTL), env=world.env)
        held: list[lock.Lease] = []

        async def changes_hands() -> None:
            await lock.release(keeper, first)
            if is_taken:
                held.append(await lock.acquire(keeper, BASE, claim(world, "b", Binding.TTL), env=world.env))

        person: Any = Meanwhile(await world.server.connect(client="person"), changes_hands)
        if not is_taken:
            assert await lock.break_lease(person, BASE) is None
            return
        with pytest.raises(Busy, match="run b of holder of b"):
            await lock.break_lease(person, BASE)
        await lock.verify(keeper, held[0])

    in_world(tmp_path, scenario)


def test_a_lock_is_taken_from_the_run_that_is_named_and_from_no_other(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        lease = await lock.acquire(keeper, BASE, claim(world, "b", Binding.TTL), env=world.env)
        with pytest.raises(Busy, match="run b of holder of b"):
            await lock.break_lease(keeper, BASE, run_id="a")
        await lock.verify(keeper, lease)
        broken = await lock.break_lease(keeper, BASE, run_id="b")
        assert broken is not None and broken.run_id == "b"

    in_world(tmp_path, scenario)


def test_who_takes_the_lock_reads_it_behind_a_server_that_lags(tmp_path: Path) -> None:
    """1. `b` holds it, and Keeper shows that to `a`. 2. `b` gives it back. 3. `a` may have it, though its
    server does not know that yet."""

    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        held = await lock.acquire(b, BASE, claim(world, "b", Binding.TTL), env=world.env)
        world.server.stale_reads(a.session_id)
        await lock.release(b, held)
        taken = await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        assert taken.fence == held.fence + 1

    in_world(tmp_path, scenario)


def test_a_ledger_is_compared_with_what_keeper_says_now_also_behind_a_server_that_lags(
    tmp_path: Path,
) -> None:
    """1. A copy of the ledger is made. 2. A run is recorded in the ledger. 3. Whoever has the copy is
    refused, though its server does not know of that run yet."""

    async def scenario(world: World) -> None:
        await world.start()
        await drive(await world.runner(), world.request(target=1))
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(world.ledger_path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        runner = replace(await world.runner(client="late"), ledger=Ledger(copy, env=world.env))
        world.server.stale_reads(runner.keeper.session_id)
        await drive(await world.runner(), world.request(target=2))
        with pytest.raises(MigrationRefused, match="older copy of itself"):
            await runner.locked.check()

    in_world(tmp_path, scenario)


def test_who_takes_a_lock_away_reads_it_behind_a_server_that_lags(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        world.server.stale_reads(b.session_id)
        await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        broken = await lock.break_lease(b, BASE)
        assert broken is not None and broken.run_id == "a"

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("binding", Binding)
def test_a_lock_that_keeper_has_forgotten_is_lost(tmp_path: Path, binding: Binding) -> None:
    """Its tree was taken back to an older one, or a person has removed it."""

    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        lease = await lock.acquire(keeper, BASE, claim(world, "a", binding), env=world.env)
        await keeper.remove(f"{BASE}/lease")
        for act in (lock.verify, lock.renew, lock.record):
            with pytest.raises(StaleFence):
                await act(keeper, lease)
        await lock.release(keeper, lease)
        assert await lock.look(keeper, BASE) is None
        assert await lock.recorded(keeper, BASE) is None

    in_world(tmp_path, scenario)


def test_a_run_that_went_on_in_another_keeper_takes_its_lock_anew_when_it_is_back(tmp_path: Path) -> None:
    """Airflow's connection named a wrong Keeper for a while; tasks of the run were cleared then and now."""

    async def scenario(world: World) -> None:
        # 1. r begins. 2. It enters in another Keeper, under a greater fence. 3. It is back: the ledger takes
        # nothing under the first fence any more. 4. What it does now is taken, and nobody else may begin.
        here, elsewhere = await world.server.connect(), await MemoryKeeperServer(world.env).connect()
        for keeper in (here, elsewhere):
            lease = await lock.acquire(keeper, BASE, claim(world, "r", Binding.TTL), env=world.env)
            world.ledger.register_fence(world.cluster, lease.fence, run_id="r", holder="holder of r")
        assert lease.fence == 2
        back = await lock.acquire(here, BASE, claim(world, "r", Binding.TTL), env=world.env)
        world.ledger.register_fence(world.cluster, back.fence, run_id="r", holder="holder of r")
        assert back.fence == 3
        with pytest.raises(Busy, match="holder of r"):
            await lock.acquire(here, BASE, claim(world, "other", Binding.TTL), env=world.env)

    in_world(tmp_path, scenario)


def test_a_run_of_several_processes_is_gone_when_it_did_nothing_for_its_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        first = await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        await world.env.sleep(250)
        await lock.renew(a, first)
        await world.env.sleep(250)
        with pytest.raises(Busy):
            await lock.acquire(b, BASE, claim(world, "b", Binding.TTL), env=world.env)
        await world.env.sleep(60)
        second = await lock.acquire(b, BASE, claim(world, "b", Binding.TTL), env=world.env)
        assert second.fence > first.fence
        with pytest.raises(StaleFence):
            await lock.renew(a, first)

    in_world(tmp_path, scenario)


def test_a_wrong_clock_of_the_contender_does_not_end_a_lease(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        a, b = await world.server.connect(), await world.server.connect()
        await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        contender = world.env.fork(clock_offset_s=3600)
        with pytest.raises(Busy):
            await lock.acquire(b, BASE, claim(world, "b", Binding.TTL), env=contender)

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("has_effect", [True, False], ids=["reply lost", "request lost"])
def test_an_answer_lost_while_taking_the_lock_is_looked_up(tmp_path: Path, has_effect: bool) -> None:
    async def scenario(world: World) -> None:
        keeper: Any = await world.server.connect()
        multi = keeper.multi

        async def losing(ops: Sequence[Op]) -> Any:
            keeper.multi = multi
            if has_effect:
                await multi(ops)
            raise ConnectionLoss("lost")

        keeper.multi = losing
        lease = await lock.acquire(keeper, BASE, claim(world, "a"), env=world.env)
        assert (lease.text.run_id, lease.fence) == ("a", 1)
        await lock.verify(keeper, lease)

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("of", list(Binding))
def test_a_lease_taken_without_an_answer_is_found_behind_a_server_that_lags(
    tmp_path: Path, of: Binding
) -> None:
    """1. A's run did nothing for its time. 2. B takes its lease, and the answer is lost. 3. The server of B's
    new connection still says that it is A's."""

    async def scenario(world: World) -> None:
        a, b = await world.server.connect(client="a"), await world.server.connect(client="b")
        first = await lock.acquire(a, BASE, claim(world, "a", Binding.TTL), env=world.env)
        await lock.renew(a, first)
        await world.env.sleep(350)
        assert await lock.look_for_run(b, BASE) == first.text
        world.server.lose_next_reply_and_lag(b.session_id, kind=RequestKind.MULTI)
        second = await lock.acquire(b, BASE, claim(world, "b", of), env=world.env)
        assert (second.text.run_id, second.fence) == ("b", first.fence + 1)

    in_world(tmp_path, scenario)


def test_content_that_nobody_wrote_stops_everything(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        keeper = await world.server.connect()
        lease = await lock.acquire(keeper, BASE, claim(world, "a"), env=world.env)
        await keeper.set(f"{BASE}/lease", b"garbage")
        with pytest.raises(LedgerCorrupt, match="/locks/shop/lease"):
            await lock.acquire(keeper, BASE, claim(world, "b"), env=world.env)
        assert LeaseText.from_bytes(lease.text.to_bytes(), path="") == lease.text

    in_world(tmp_path, scenario)


# --- runs -------------------------------------------------------------------------------------------------


def test_a_run_that_slept_past_its_lock_can_neither_send_nor_record(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        # 1. A begins and sends its first statement. 2. A sleeps past its lease. 3. B takes over, applies
        # everything and rolls it back. 4. A wakes and goes on as if nothing had happened.
        await world.start()
        sleeper = await world.runner(client="sleeper")
        run = await sleeper.begin(world.by_tasks())
        await sleeper.submit_statement(run, run.refs[0])
        await world.env.sleep(400)
        await drive(await world.runner(), world.request())
        await drive(await world.runner(), world.down(target=-1))
        queue, rows = world.entries(), world.ledger.rows("shop")
        with pytest.raises((StaleFence, MigrationRefused)):
            await sleeper.submit_statement(run, run.refs[1])
        with pytest.raises(StaleFence):
            await sleeper.finish(run)
        assert (world.entries(), world.ledger.rows("shop")) == (queue, rows)
        with pytest.raises(MigrationRefused, match="another run has been at work"):
            again = await sleeper.reenter(Run.from_json(run.to_json()))
            await sleeper.submit_statement(again, again.refs[1])
        assert world.entries() == queue

    in_world(tmp_path, scenario)


def test_a_run_that_sleeps_between_its_record_and_its_sending_sends_nothing_after_its_successor_began(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        # The race that the ledger alone cannot stop: the attempt is recorded under a valid fence, then the
        # process sleeps, then it sends. The transaction in Keeper that would enqueue checks the lease.
        await world.start()
        sleeper = await world.runner(client="sleeper")
        run = await sleeper.begin(world.by_tasks())
        asleep, awake = asyncio.Event(), asyncio.Event()
        keeper: Any = sleeper.keeper
        multi = keeper.multi

        async def slow_multi(ops: Sequence[Op]) -> Any:
            if any(isinstance(op, Create) and op.path == world.queue.paths.entry_prefix for op in ops):
                asleep.set()
                await awake.wait()
            return await multi(ops)

        keeper.multi = slow_multi
        sending = asyncio.create_task(sleeper.submit_statement(run, run.refs[0]))
        await asleep.wait()
        await world.env.sleep(400)
        other = await world.runner()
        successor = await other.begin(world.by_tasks())
        awake.set()
        with pytest.raises(StaleFence):
            await sending
        assert world.entries() == []
        await other.abandon(successor)

    in_world(tmp_path, scenario)


def test_a_run_whose_session_expires_stops_and_the_next_one_completes_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        gate = world.hosts[next(iter(world.hosts))].hold["s.b"] = asyncio.Event()
        runner = await world.runner(client="first")
        task = asyncio.create_task(drive(runner, world.request()))
        await world.env.sleep(5)
        world.server.expire_session(runner.keeper.session_id)
        with pytest.raises(SessionExpired):
            await task
        gate.set()
        assert (await drive(await world.runner(), world.request())).state is RunState.DONE
        assert len(world.entries()) == 4
        world.check()

    in_world(tmp_path, scenario)


def test_each_step_may_be_a_process_of_its_own_and_may_be_repeated(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        request = world.by_tasks()
        data = (await (await world.runner()).begin(request)).to_json()
        assert (await (await world.runner()).begin(request)).to_json() == data

        async def step(name: str, *arguments: object) -> object:
            """As Airflow does: a fresh process, the run from XCom, and once more for a retry."""
            result: object = None
            for _ in range(2):
                runner = await world.runner()
                run = await runner.reenter(Run.from_json(data))
                result = await getattr(runner, name)(run, *arguments)
                await runner.keeper.close()
            return result

        run = Run.from_json(data)
        for item in run.steps:
            for ref in item.refs:
                await step("submit_statement", ref)
                await step("wait", ref)
                await step("collect", ref)
            await step("finish_migration", item.version)
        last = await world.runner()
        summary = await last.finish(await last.reenter(run))
        assert summary.state is RunState.DONE
        assert world.states() == {1: "applied", 2: "applied", 3: "applied"}
        assert len(world.entries()) == 4
        assert world.ledger.max_fence("shop") == 1
        world.check()

    in_world(tmp_path, scenario)


def test_waiting_for_hours_keeps_a_lease_of_minutes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        gate = world.hosts[next(iter(world.hosts))].hold["s.a"] = asyncio.Event()
        runner = await world.runner()
        run = await runner.begin(world.by_tasks(timeout_s=-1))
        await runner.submit_statement(run, run.refs[0])
        waiting = asyncio.create_task(runner.wait(run, run.refs[0]))
        await world.env.sleep(5 * 3600)
        with pytest.raises(Busy):
            await drive(await world.runner(), world.request())
        gate.set()
        assert (await waiting).verdict.goes_on

    in_world(tmp_path, scenario)


async def trouble(world: World, session_id: int) -> None:
    """Requests lost, replies lost, connections broken and sometimes the session, of one process."""
    rng = world.env.rng
    while True:
        await world.env.sleep(rng.choice((0.0, 0.0, 0.0, 0.001, 0.2)))
        blow = rng.choices(
            (
                world.server.lose_next_request,
                world.server.lose_next_reply,
                world.server.lose_next_reply_and_lag,
                world.server.break_connection,
                world.server.expire_session,
            ),
            (8, 4, 4, 4, 1),
        )[0]
        if session_id not in world.server.session_ids():
            return
        blow(session_id)
        await world.env.sleep(rng.uniform(0.0, 3.0))


@pytest.mark.parametrize("seeds", few_first([range(5), range(5, 30)], few=1), ids=["few", "many"])
def test_runs_converge_under_lost_requests_lost_replies_and_lost_sessions(
    tmp_path: Path, seeds: range
) -> None:
    async def scenario(world: World) -> int:
        await world.start()
        errors = 0
        for goal in ("applied", "rolled_back", "applied"):
            summary = None
            while summary is None:
                runner = await world.runner(client="runner")
                disturbing = asyncio.create_task(trouble(world, runner.keeper.session_id))
                wish = world.request() if goal == "applied" else world.down(target=ALL)
                try:
                    summary = await drive(runner, wish)
                except Busy:
                    await world.env.sleep(11)
                except OnclusterError:
                    errors += 1
                finally:
                    disturbing.cancel()
                assert errors < 200
            assert summary.state is RunState.DONE
            assert set(world.states().values()) == {goal}
            world.check()
        assert len(world.entries()) == 4 * 3
        assert len(set(world.schemas().values())) == 1
        return errors

    interrupted = [in_world(tmp_path / str(seed), scenario, seed=seed) > 0 for seed in seeds]
    assert any(interrupted), "no run was ever interrupted: the test says nothing"
