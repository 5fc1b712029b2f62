"""Rows and errors of the initiator in every output mode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine.ddl.entry import DDLLogEntry
from engine.ddl.output import OutputMode, OutputRow, output_columns, result_stream
from engine.ddl.status import ExecutionStatus
from engine.errors import SqlError
from engine.keeper.base import CreateMode, Remove
from engine.keeper.recipes import SessionHolder, create_ancestors
from tests.unit.ddl.support import PATHS, Bench, host, run

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8)"
NULLABLE = [
    OutputMode.NULL_STATUS_ON_TIMEOUT,
    OutputMode.NEVER_THROW,
    OutputMode.THROW_ONLY_ACTIVE,
    OutputMode.NULL_STATUS_ON_TIMEOUT_ONLY_ACTIVE,
]

Answer = tuple[list[tuple[object, ...]], SqlError | None, float]


def answer(
    mode: OutputMode,
    *,
    timeout_s: float = 5.0,
    finished: Sequence[tuple[str, int, str]] = (),
    alive: str = "",
    removed: bool = False,
) -> Answer:
    """What the initiator says of an entry for `a` and `b`: `finished` hosts report a second apart; `alive`
    hosts are marked active; `removed`: the entry goes at the end. Also the seconds it took."""

    async def main(bench: Bench) -> Answer:
        submission = await bench.submit(CREATE)
        keeper = await bench.keeper("hosts")
        for name in alive.split():
            await create_ancestors(keeper, PATHS.replica_active(host(name)))
            await keeper.create(PATHS.replica_active(host(name)), mode=CreateMode.EPHEMERAL)

        async def play() -> None:
            for name, code, message in finished:
                await bench.env.sleep(1.0)
                data = ExecutionStatus(code, message).to_bytes()
                await keeper.create(PATHS.finished(submission.entry, host(name)), data)
            if removed:
                await bench.env.sleep(1.0)
                names = (await keeper.children(PATHS.finished(submission.entry))).names
                gone = [PATHS.finished(submission.entry, name) for name in names]
                gone += [PATHS.active(submission.entry), PATHS.finished(submission.entry)]
                await keeper.multi([Remove(path) for path in [*gone, PATHS.entry(submission.entry)]])

        playing = asyncio.create_task(play())
        rows: list[OutputRow] = []
        error: SqlError | None = None
        started_s = bench.env.monotonic_s()
        try:
            async for row in result_stream(
                await bench.keeper("initiator"),
                bench.env,
                PATHS,
                submission.entry,
                mode=mode,
                timeout_s=timeout_s,
            ):
                rows.append(row)
        except SqlError as raised:
            error = raised
        took_s = bench.env.monotonic_s() - started_s
        playing.cancel()
        return [row.values() for row in rows], error, took_s

    return run(main)


OK = [("a", 0, ""), ("b", 0, "")]
DONE_ROWS = [("a", 9000, 0, "", 1, 0), ("b", 9000, 0, "", 0, 0)]
FAILS = [("a", 57, "Code: 57. exists"), ("b", 60, "Code: 60. gone")]


@pytest.mark.parametrize("mode", list(OutputMode))
def test_when_all_hosts_are_done_every_mode_ends_without_error(mode: OutputMode) -> None:
    rows, error, took_s = answer(mode, finished=OK, alive="a b")
    assert error is None
    assert rows == (DONE_ROWS if mode.has_rows else [])
    assert took_s == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("mode", list(OutputMode))
def test_the_first_failing_hosts_error_comes_after_all_rows(mode: OutputMode) -> None:
    rows, error, _ = answer(mode, finished=FAILS, alive="a b")
    if mode.has_rows:
        assert rows == [("a", 9000, 57, FAILS[0][2], 1, 0), ("b", 9000, 60, FAILS[1][2], 0, 0)]
    else:
        assert rows == []
    if mode is OutputMode.NEVER_THROW:
        assert error is None
    else:
        assert error is not None and error.code == 57
        assert error.message == "There was an error on [a:9000]: Code: 57. exists"


def test_an_error_has_the_name_that_the_host_gives_its_code() -> None:
    told = "Code: 670. DB::Exception: It exists. (NAMED_COLLECTION_ALREADY_EXISTS) (version 26.9.2.1)"
    _, error, _ = answer(OutputMode.THROW, finished=[(FAILS[0][0], 670, told), *FAILS[1:]], alive="a b")
    assert error is not None and error.display_text.endswith(". (NAMED_COLLECTION_ALREADY_EXISTS)")


TIMEOUT_THROWS = {
    OutputMode.THROW,
    OutputMode.NONE,
    OutputMode.THROW_ONLY_ACTIVE,
    OutputMode.NONE_ONLY_ACTIVE,
}


@pytest.mark.parametrize("mode", list(OutputMode))
def test_a_timeout_is_an_error_or_a_row_with_nulls(mode: OutputMode) -> None:
    rows, error, took_s = answer(mode, finished=OK[:1], alive="a b")
    assert took_s == pytest.approx(5.0, abs=0.1)
    first = ("a", 9000, 0, "", 1, 0)
    if mode in TIMEOUT_THROWS:
        assert error is not None and error.code == 159
        assert "is not finished on 1 of 2 hosts (0 of them are currently executing the task" in error.message
        assert PATHS.entry("query-0000000000") in error.message
        assert rows == ([first] if mode.has_rows else [])
    else:
        assert error is None
        assert rows == [first, ("b", 9000, None, None, 1, 0)]


@pytest.mark.parametrize("mode", [m for m in OutputMode if m.waits_for_active_only])
def test_hosts_that_are_away_are_not_waited_for(mode: OutputMode) -> None:
    rows, error, took_s = answer(mode, finished=OK[:1], alive="a")
    assert error is None
    assert took_s == pytest.approx(1.0, abs=0.1)
    if mode.has_rows:
        assert rows == [("a", 9000, 0, "", 1, 0), ("b", 9000, None, None, 1, 0)]


def test_if_all_hosts_look_away_all_are_waited_for() -> None:
    rows, error, took_s = answer(OutputMode.THROW_ONLY_ACTIVE, finished=OK)
    assert (rows, error) == (DONE_ROWS, None)
    assert took_s == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("mode", list(OutputMode))
def test_a_host_that_was_not_asked_is_neither_shown_nor_counted(mode: OutputMode) -> None:
    """Somebody else wrote an outcome for it."""
    rows, error, _ = answer(mode, finished=[("stranger", 57, "no"), *OK], alive="a b")
    assert (rows, error) == (DONE_ROWS if mode.has_rows else [], None)


def test_a_host_error_is_not_replaced_by_the_timeout() -> None:
    _, error, _ = answer(OutputMode.THROW, finished=FAILS[:1])
    assert error is not None and error.code == 57


@pytest.mark.parametrize("mode", list(OutputMode))
def test_an_entry_that_vanishes_is_unfinished_in_every_mode(mode: OutputMode) -> None:
    _, error, _ = answer(mode, finished=OK[:1], removed=True, alive="a b")
    assert error is not None and error.code == 341
    assert "has been deleted by the cleaner" in error.message


def test_timeout_zero_answers_nothing_at_once_and_hides_errors() -> None:
    assert answer(OutputMode.THROW, timeout_s=0, finished=FAILS) == ([], None, 0.0)


def test_without_a_timeout_hosts_are_waited_for_180_seconds() -> None:
    async def main(bench: Bench) -> tuple[SqlError, float]:
        submission = await bench.submit(CREATE)
        began_s = bench.env.monotonic_s()
        with pytest.raises(SqlError) as refusal:
            async for _ in result_stream(await bench.keeper(), bench.env, PATHS, submission.entry):
                pass
        return refusal.value, bench.env.monotonic_s() - began_s

    error, took_s = run(main)
    assert error.code == 159
    assert took_s == pytest.approx(180, abs=0.1)


def test_a_negative_timeout_waits_for_ever() -> None:
    rows, error, took_s = answer(OutputMode.THROW, timeout_s=-1, finished=OK)
    assert (rows, error) == (DONE_ROWS, None)
    assert took_s == pytest.approx(2.0, abs=0.1)


def test_while_keeper_is_away_before_anything_is_known_the_answer_comes_when_it_is_back() -> None:
    async def main(bench: Bench) -> tuple[SqlError, float]:
        submission = await bench.submit(CREATE)
        async with SessionHolder(bench.server.factory(client="initiator"), bench.env) as holder:
            await holder.get()
            bench.server.stop()
            bench.env.loop.call_later(20.0, bench.server.start)
            began_s = bench.env.monotonic_s()
            with pytest.raises(SqlError) as refusal:
                async for _ in result_stream(holder, bench.env, PATHS, submission.entry, timeout_s=1):
                    pass
            return refusal.value, bench.env.monotonic_s() - began_s

    error, took_s = run(main)
    assert (error.code, "is not finished on 2 of 2 hosts" in error.message) == (159, True)
    assert 20 <= took_s < 25


def test_a_time_that_is_up_while_keeper_is_away_is_told_soon_and_as_such() -> None:
    async def main(bench: Bench) -> tuple[SqlError, float]:
        submission = await bench.submit(CREATE)
        async with SessionHolder(bench.server.factory(client="initiator"), bench.env) as holder:
            began_s = bench.env.monotonic_s()
            bench.env.loop.call_later(4.0, bench.server.stop)
            with pytest.raises(SqlError) as refusal:
                async for _ in result_stream(holder, bench.env, PATHS, submission.entry, timeout_s=5):
                    pass
            return refusal.value, bench.env.monotonic_s() - began_s

    error, took_s = run(main)
    assert (error.code, "nobody knows how many are inactive" in error.message) == (159, True)
    assert took_s < 20


def test_hosts_that_are_executing_are_counted() -> None:
    async def main(bench: Bench) -> tuple[object, ...]:
        submission = await bench.submit(CREATE)
        keeper = await bench.keeper()
        await keeper.create(PATHS.active(submission.entry, host("b")), mode=CreateMode.EPHEMERAL)
        await keeper.create(PATHS.finished(submission.entry, host("a")), b"0\n")
        stream = result_stream(keeper, bench.env, PATHS, submission.entry)
        row = await anext(stream)
        await stream.aclose()
        return row.values()

    assert run(main) == ("a", 9000, 0, "", 1, 1)


@pytest.mark.parametrize("mode", list(OutputMode))
def test_columns_are_nullable_where_a_row_may_have_nulls(mode: OutputMode) -> None:
    types = dict(output_columns(mode))
    assert list(types) == ["host", "port", "status", "error", "num_hosts_remaining", "num_hosts_active"]
    expected = ("Nullable(Int64)", "Nullable(String)") if mode in NULLABLE else ("Int64", "String")
    assert (types["status"], types["error"]) == expected


def test_a_host_that_an_entry_names_twice_is_one_host() -> None:
    """As ClickHouse does for a cluster whose shards share servers."""

    async def main(bench: Bench) -> tuple[list[tuple[object, ...]], str]:
        hosts = tuple(map(host, "abba"))
        entry = await bench.put(DDLLogEntry(5, CREATE, hosts).to_bytes())
        keeper = await bench.keeper()
        await keeper.create(PATHS.active(entry))
        await keeper.create(PATHS.finished(entry))
        await keeper.create(PATHS.finished(entry, host("a")), b"0\n")
        rows, mode = [], OutputMode.NULL_STATUS_ON_TIMEOUT
        async for row in result_stream(keeper, bench.env, PATHS, entry, mode=mode, timeout_s=1):
            rows.append(row.values())
        with pytest.raises(SqlError) as refusal:
            async for _ in result_stream(keeper, bench.env, PATHS, entry, timeout_s=1):
                pass
        return rows, refusal.value.message

    rows, message = run(main)
    assert rows == [("a", 9000, 0, "", 1, 0), ("b", 9000, None, None, 1, 0)]
    assert "is not finished on 1 of 2 hosts" in message


def test_an_unknown_mode_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(SqlError) as refusal:
        OutputMode.parse("sometimes")
    assert refusal.value.code == 36 and "'never_throw'" in refusal.value.message
