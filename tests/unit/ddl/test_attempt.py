"""What one replica runs for its shard is recorded in Keeper with its effect, so that no crash leaves a doubt.

The fingerprints of the model are made blind here: those of a table of several partitions cannot tell whether
one of them was dropped, and a replica that is being started cannot look at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ddl.attempt import Attempt, Effect, Fence
from engine.ddl.executor import Blocks, Execution, FenceLost, Fingerprint
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.errors import Code, NoNode, SqlError
from engine.keeper.base import Check, SetData
from engine.names import TableName
from engine.sql import Statement
from engine.testing.ddl.model import ModelExecutor, replicated_effects
from tests.unit.ddl.support import PATHS, Bench, host, kill, run

REPLICATED = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree"
DROP = "ALTER TABLE d.t ON CLUSTER c DROP PARTITION 1"
SHARD = "a:9000,b:9000"
CHECK = Check("/tries", 3)


# --- kills ------------------------------------------------------------------------------------------------


def blind(executor: ModelExecutor) -> None:
    """Parts of two partitions before the effect, of one after it."""

    async def digest(statement: Statement, database: str) -> str:
        done = await replicated_effects(await executor._session(), "s", TableName("d", "t"))
        blocks = tuple(Blocks(partition, 0, 0) for partition in ("1", "2")[len(done) :])
        return Fingerprint(objects=(("table d.t", "x"),), blocks=blocks, is_shared=True).to_text()

    executor.definition_digest = digest  # type: ignore[method-assign]


def hang(executor: ModelExecutor, *, after_effect: bool) -> asyncio.Event:
    """It stops for good before or after its effect; the event says that it has come there."""
    original, arrived = executor.execute_fenced, asyncio.Event()

    async def execute_fenced(execution: Execution, *, fence: Fence) -> None:
        if after_effect:
            await original(execution, fence=fence)
        arrived.set()
        await asyncio.Event().wait()

    executor.execute_fenced = execute_fenced  # type: ignore[method-assign]
    return arrived


async def killed_in_the_middle(bench: Bench, *, after_effect: bool) -> str:
    """Host a begins to drop a partition and is killed; the entry."""
    bench.start("a", "b")
    await bench.ddl(REPLICATED, "t1")
    await bench.stop("b")
    blind(bench.executors["a"])
    arrived = hang(bench.executors["a"], after_effect=after_effect)
    entry = (await bench.submit(DROP, "t2")).entry
    await arrived.wait()
    await kill(bench, "a")
    return entry


async def outcome(bench: Bench, entry: str, name: str) -> ExecutionStatus | None:
    keeper = await bench.keeper()
    for _ in range(100):
        await bench.env.sleep(1)
        try:
            return ExecutionStatus.from_bytes((await keeper.get(PATHS.finished(entry, host(name)))).data)
        except NoNode:
            continue
    return None


async def effects(bench: Bench, entry: str) -> int:
    found = await replicated_effects(await bench.keeper(), "s", TableName("d", "t"))
    return sum(effect.entry == entry for effect in found)


@pytest.mark.parametrize("successor", ["a", "b"])
@pytest.mark.parametrize("after_effect", [True, False])
def test_a_kill_around_the_effect_leaves_no_doubt_to_whichever_replica_comes(
    successor: str, after_effect: bool
) -> None:
    """1. a takes the shard's lock, counts its attempt, records its intent. 2. The effect, or not. 3. kill -9.
    4. The lock goes with the session, and `successor` looks. Fingerprints have nothing to say about it."""

    async def main(bench: Bench) -> None:
        entry = await killed_in_the_middle(bench, after_effect=after_effect)
        bench.start(successor)
        blind(bench.executors[successor])
        assert await outcome(bench, entry, successor) == SUCCESS
        assert await effects(bench, entry) == 1

    run(main)


def test_an_effect_that_comes_between_the_successors_look_and_its_attempt_is_seen() -> None:
    """1. a is paused before its effect, and its lock is lost. 2. b reads that nothing took effect. 3. a goes
    on: its fence still holds. 4. b's attempt is refused, because `attempt` is another one now; b looks again.
    """

    async def main(bench: Bench) -> None:
        entry = await killed_in_the_middle(bench, after_effect=False)
        keeper = await bench.keeper()
        tries, attempt = (PATHS.shard(entry, SHARD, name) for name in ("tries_to_execute", "attempt"))
        found, counter = await keeper.get(attempt), await keeper.get(tries)
        begun = Attempt.from_bytes(found.data)
        assert begun is not None and begun.effect is Effect.NONE
        late = Fence(Check(tries, counter.stat.version), attempt, begun)
        bench.start("b")
        executor = bench.executors["b"]
        original = executor.definition_digest
        marks: list[str] = []

        async def digest(statement: Statement, database: str) -> str:
            if not marks:  # b has read `attempt`, and has not counted its own yet
                marks.append(entry)
                await keeper.multi(late.whole() or ())
            return await original(statement, database)

        executor.definition_digest = digest  # type: ignore[method-assign]
        assert await outcome(bench, entry, "b") == SUCCESS
        assert marks == [entry]
        assert executor.executed.count(entry) == 0

    run(main)


def test_a_replica_that_was_paused_finds_its_fence_gone_and_changes_nothing() -> None:
    """1. a has begun its attempt and is paused. 2. Its session ends. 3. b makes an attempt of its own, and
    executes. 4. a goes on."""

    async def main(bench: Bench) -> None:
        bench.start("a", "b")
        await bench.ddl(REPLICATED, "t1")
        await bench.stop("b")
        executor = bench.executors["a"]
        original, arrived, goes_on = executor.execute_fenced, asyncio.Event(), asyncio.Event()
        ended: list[str] = []

        async def execute_fenced(execution: Execution, *, fence: Fence) -> None:
            arrived.set()
            await goes_on.wait()
            try:
                await original(execution, fence=fence)
            except FenceLost:
                ended.append("fence lost")
                raise

        executor.execute_fenced = execute_fenced  # type: ignore[method-assign]
        entry = (await bench.submit(DROP, "t2")).entry
        await arrived.wait()
        for session_id in bench.server.session_ids("a"):
            bench.server.expire_session(session_id)
        bench.start("b")
        assert await outcome(bench, entry, "b") == SUCCESS
        assert await effects(bench, entry) == 1
        goes_on.set()
        assert await outcome(bench, entry, "a") == SUCCESS
        assert ended == ["fence lost"]
        assert await effects(bench, entry) == 1

    run(main)


def test_a_replica_that_cannot_look_yet_neither_guesses_nor_uses_up_the_tries() -> None:
    async def main(bench: Bench) -> None:
        entry = await killed_in_the_middle(bench, after_effect=False)
        bench.start("a")
        executor = bench.executors["a"]
        original = executor.definition_digest
        ready_s = bench.env.monotonic_s() + 30

        async def digest(statement: Statement, database: str) -> str:
            if bench.env.monotonic_s() < ready_s:
                raise SqlError(Code.TABLE_IS_READ_ONLY, "the replica has not been activated yet")
            return await original(statement, database)

        executor.definition_digest = digest  # type: ignore[method-assign]
        assert await outcome(bench, entry, "a") == SUCCESS
        assert await effects(bench, entry) == 1
        counter = await (await bench.keeper()).get(PATHS.shard(entry, SHARD, "tries_to_execute"))
        assert counter.data == b"2"

    run(main)


def test_what_every_host_runs_is_not_judged_either_before_it_can_look() -> None:
    """1. The intent is on disk. 2. kill -9. 3. The table is read-only for a while after the start."""

    async def main(bench: Bench) -> None:
        bench.start("a")
        await bench.ddl("CREATE TABLE d.p ON CLUSTER c (a Int8) ENGINE = MergeTree", "t1")
        executor = bench.executors["a"]
        arrived = asyncio.Event()

        async def execute(execution: Execution) -> None:
            arrived.set()
            await asyncio.Event().wait()

        executor.execute = execute  # type: ignore[method-assign]
        entry = (await bench.submit("TRUNCATE TABLE d.p ON CLUSTER c", "t2")).entry
        await arrived.wait()
        await kill(bench, "a")
        bench.start("a")
        executor = bench.executors["a"]
        original = executor.definition_digest
        refusals = [SqlError(Code.TABLE_IS_READ_ONLY, "not yet")] * 3

        async def digest(statement: Statement, database: str) -> str:
            if refusals:
                raise refusals.pop()
            return await original(statement, database)

        executor.definition_digest = digest  # type: ignore[method-assign]
        assert await outcome(bench, entry, "a") == SUCCESS
        assert refusals == []

    run(main, "a")


def before(attempt: Attempt) -> Fingerprint:
    """What host a saw when it began: two partitions."""
    found = Fingerprint.from_text(attempt.digest_before)
    assert found is not None and len(found.blocks or ()) == 2
    return found


ONE_IS_LEFT = (Blocks("2", 0, 0),)
OTHERS_ARE_THERE = (Blocks("3", 0, 0),)


async def killed_attempt(bench: Bench) -> tuple[str, str, Attempt]:
    """Host a was killed before it dropped anything: the entry, and its attempt with its path."""
    entry = await killed_in_the_middle(bench, after_effect=False)
    path = PATHS.shard(entry, SHARD, "attempt")
    attempt = Attempt.from_bytes((await (await bench.keeper()).get(path)).data)
    assert attempt is not None
    return entry, path, attempt


def sees(bench: Bench, name: str, view: Fingerprint) -> None:
    async def digest(statement: Statement, database: str) -> str:
        return view.to_text()

    bench.executors[name].definition_digest = digest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "is_judged"),
    [
        (lambda attempt: replace(attempt, effect=Effect.NOT_RECORDED), True),
        (lambda attempt: replace(attempt, number=attempt.number - 1), True),
        (lambda attempt: attempt, False),
    ],
    ids=["an older version's", "a server's that counted on", "our own"],
)
def test_an_attempt_that_records_nothing_is_judged_by_fingerprints(
    change: Callable[[Attempt], Attempt], is_judged: bool
) -> None:
    async def main(bench: Bench) -> None:
        entry, path, attempt = await killed_attempt(bench)
        await (await bench.keeper()).set(path, change(attempt).to_bytes())
        bench.start("b")
        sees(bench, "b", replace(before(attempt), blocks=ONE_IS_LEFT))
        status = await outcome(bench, entry, "b")
        assert status is not None and status.code == (Code.UNFINISHED if is_judged else 0)
        assert ("a:9000 began this" in status.message) == is_judged
        assert await effects(bench, entry) == (not is_judged)

    run(main)


@pytest.mark.parametrize(
    ("now", "executed_by", "effect"),
    [
        (lambda view: view, "b", 1),
        (lambda view: replace(view, blocks=OTHERS_ARE_THERE), "a", 0),
        (lambda view: replace(view, is_shared=False), None, 0),
    ],
    ids=["the same is there", "nothing of it is there", "what one replica sees says nothing of another"],
)
def test_fingerprints_that_replicas_share_tell_what_became_of_another_replicas_attempt(
    now: Callable[[Fingerprint], Fingerprint], executed_by: str | None, effect: int
) -> None:
    async def main(bench: Bench) -> None:
        entry, path, attempt = await killed_attempt(bench)
        await (await bench.keeper()).set(path, replace(attempt, effect=Effect.NOT_RECORDED).to_bytes())
        bench.start("b")
        sees(bench, "b", now(before(attempt)))
        status = await outcome(bench, entry, "b")
        assert status is not None and status.is_success == (executed_by is not None)
        assert ("a:9000 began this" in status.message) == (executed_by is None)
        assert await effects(bench, entry) == effect
        [shard] = (await (await bench.client()).status(entry)).shards
        assert shard.executed_by == host(executed_by or "b")

    run(main)


def test_a_record_of_an_attempt_that_nobody_can_read_does_not_hold_the_shard_up() -> None:
    async def main(bench: Bench) -> None:
        entry, path, attempt = await killed_attempt(bench)
        await (await bench.keeper()).set(path, b"\xff")
        bench.start("b")
        sees(bench, "b", before(attempt))
        assert await outcome(bench, entry, "b") == SUCCESS
        assert await effects(bench, entry) == 1

    run(main)


# --- the fence --------------------------------------------------------------------------------------------


def recorded(ops: object) -> Attempt:
    """What the operations of one transaction write into `attempt`."""
    assert isinstance(ops, tuple) and ops[0] == CHECK and isinstance(ops[1], SetData)
    attempt = Attempt.from_bytes(ops[1].data)
    assert attempt is not None
    return attempt


def fence(*steps: str) -> Fence:
    effect = Effect.PART if steps else Effect.NONE
    return Fence(CHECK, "/attempt", Attempt("n1:9000", "", effect, steps, 4))


def test_one_transaction_records_the_whole() -> None:
    one = fence()
    assert recorded(one.whole()).effect is Effect.WHOLE
    assert one.is_closed


def test_of_several_transactions_each_records_what_is_done_so_far() -> None:
    several = fence()
    assert recorded(several.step("1", of=3)).steps == ("1",)
    assert recorded(several.step("2", of=3)).steps == ("1", "2")
    assert not several.is_closed
    assert recorded(several.close()).effect is Effect.WHOLE


def test_a_step_that_an_earlier_attempt_committed_is_not_done_again() -> None:
    again = fence("1")
    assert again.step("1", of=2) is None
    assert recorded(again.step("2", of=2)).steps == ("1", "2")


def test_what_has_a_local_side_is_not_over_with_its_transaction() -> None:
    first = fence()
    first.keep_open()
    begun = recorded(first.whole())
    assert begun.effect is Effect.PART and not first.is_closed
    second = Fence(CHECK, "/attempt", begun.begun_again("n2:9000", "", 5))
    second.keep_open()
    assert second.whole() is None
    assert recorded(second.close()).effect is Effect.WHOLE


def test_a_clients_statement_has_no_fence() -> None:
    none = Fence()
    none.keep_open()
    assert (none.whole(), none.step("1", of=2), none.close(), none.is_there) == ((), (), (), False)


@given(
    st.builds(
        Attempt,
        st.text(max_size=20),
        st.text(max_size=50),
        st.sampled_from([Effect.NONE, Effect.PART, Effect.WHOLE]),
        st.lists(st.text(max_size=8), max_size=3).map(tuple),
        st.integers(0, 9),
    )
)
def test_an_attempt_is_read_as_it_was_written(attempt: Attempt) -> None:
    read = Attempt.from_bytes(attempt.to_bytes())
    assert read is not None
    assert replace(read, digest_before="") == replace(attempt, digest_before="")
    if attempt.effect is Effect.NONE:
        assert read.digest_before == attempt.digest_before


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"host": "a", "before": "", "effect": "?"}', b"7"]
)
def test_what_makes_no_sense_is_no_attempt(data: bytes) -> None:
    assert Attempt.from_bytes(data) is None


def test_an_attempt_of_an_older_version_records_nothing() -> None:
    assert Attempt.from_bytes(b'{"host": "a:1", "before": "x"}') == Attempt("a:1", "x")


def test_a_fingerprint_too_long_for_keeper_is_left_out_where_nobody_needs_it() -> None:
    assert len(Attempt("a:1", "x" * 2_000_000, Effect.NONE).to_bytes()) < 1000
