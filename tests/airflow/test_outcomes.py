"""How a wait ends, from what the hosts have said."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import AsyncIterator

import pytest

from engine.ddl.cleaner import DDLCleaner
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState
from engine.ddl.output import OutputMode
from engine.keeper.base import Keeper
from engine.migrations.files import Direction
from engine.migrations.model import Progress, StatementRef
from engine.migrations.states import CellState
from engine.migrations.verdict import Verdict
from engine.names import HostId
from tests.unit.ddl.support import PATHS, QUEUE, Bench, host, run
from tests.unit.migrations.test_decisions import rows as ledger_rows

DONE, FAILED, WAITING = HostState.DONE, HostState.FAILED, HostState.WAITING
ABANDONED, EXPIRED = HostState.ABANDONED, HostState.EXPIRED
CREATE = "CREATE TABLE d.t ON CLUSTER c (x Int8) ENGINE = Memory"
WORD = "Abandoned by grace: the disk is gone"


def status(*states: HostState) -> EntryStatus:
    hosts = tuple(
        HostOutcome(HostId(f"node{n:02d}", 9000), state, error=WORD if state is ABANDONED else "")
        for n, state in enumerate(states, 1)
    )
    return EntryStatus("query-0000000007", 0, "DROP TABLE t ON CLUSTER c", hosts)


@pytest.mark.parametrize(
    ("states", "end"),
    [
        ((DONE, DONE), "done"),
        ((DONE, ABANDONED), "abandoned"),
        ((FAILED, ABANDONED), "failed"),
        ((DONE, EXPIRED), "gone"),
        ((ABANDONED, EXPIRED), "gone"),
        ((DONE, ABANDONED, WAITING), None),
    ],
)
def test_a_host_that_a_person_gave_up_is_neither_waited_for_nor_said_to_be_done(
    states: tuple[HostState, ...], end: str | None
) -> None:
    from oncluster_airflow.outcomes import judge

    assert judge(status(*states), OutputMode.THROW) == end


@pytest.mark.parametrize("mode", list(OutputMode))
def test_a_host_that_never_showed_itself_is_waited_for_only_where_those_that_are_away_are(
    mode: OutputMode,
) -> None:
    from oncluster_airflow.outcomes import WaitState, judge

    async def main(bench: Bench) -> None:
        bench.start("a")
        submission = await bench.submit(CREATE, "t")
        async for seen in (await bench.client()).watch(submission.entry):
            if seen.outcome(host("a")).state is DONE and seen.outcome(host("b")).state is not WAITING:
                break
        for looked in (seen, await (await bench.client()).status(submission.entry)):
            end = WaitState.DONE_ON_ACTIVE if mode.waits_for_active_only else None
            assert judge(looked, mode) == end

    run(main)


@pytest.mark.parametrize(
    ("names", "end"), [("a b", "done"), ("a", "gone"), ("", "gone")], ids=["done", "expired", "never there"]
)
def test_of_an_entry_that_was_removed_counts_what_was_recorded(names: str, end: str) -> None:
    """Somebody clears the task that waited for it, or the cleaner was faster than the triggerer."""
    from oncluster_airflow.waiting import wait_for_hosts

    async def main(bench: Bench) -> None:
        entry = "query-0000000007"
        if names:
            bench.start(*names.split())
            entry = (await bench.submit(CREATE, "t")).entry
            await bench.env.sleep(5)
            await DDLCleaner(await bench.keeper(), bench.env, QUEUE).remove_entry(entry)
        await bench.submit(CREATE, "later")

        @contextlib.asynccontextmanager
        async def session() -> AsyncIterator[Keeper]:
            yield await bench.keeper()

        result = await wait_for_hosts(
            session, entry, paths=PATHS, mode=OutputMode.THROW, limit_s=60, env=bench.env
        )
        assert result.state == end
        assert [outcome.state for outcome in result.hosts].count(DONE) == len(names.split())

    run(main)


@pytest.mark.parametrize("mode", list(OutputMode))
def test_an_abandoned_host_fails_the_task_where_a_missing_one_would(mode: OutputMode) -> None:
    from oncluster_airflow.outcomes import WaitState, is_failure

    assert is_failure(WaitState.ABANDONED, mode) == (mode in (OutputMode.NONE, OutputMode.THROW))


def test_who_gave_a_host_up_and_why_is_in_the_error_the_table_and_the_advice() -> None:
    from oncluster_airflow.errors import DDLAbandoned, error_of
    from oncluster_airflow.notification import kind_and_advice
    from oncluster_airflow.outcomes import WaitResult, WaitState, hosts_table

    result = WaitResult(WaitState.ABANDONED, "query-0000000007", status(DONE, ABANDONED).hosts)
    error = error_of(WaitResult.from_json(result.to_json()))

    assert isinstance(error, DDLAbandoned)
    assert f"node02:9000: {WORD}" in str(error) and "1 done, 1 abandoned" in str(error)
    assert WORD in hosts_table(result.hosts)
    kind, advice = kind_and_advice(error)
    assert kind == "abandoned" and "migrate mark" in advice


@pytest.mark.parametrize(
    ("states", "ended", "told"),
    [
        ("done expired", "gone", "1 expired"),
        ("done unknown", "gone", "Whether it was done on n2:9000 is not known. "),
        ("failed unknown", "failed", "1 unknown"),
        ("done abandoned", "abandoned", "1 abandoned"),
    ],
)
def test_what_expired_and_what_nobody_knows_of_a_migration_are_told_apart(
    states: str, ended: str, told: str
) -> None:
    from oncluster_airflow.errors import error_of
    from oncluster_airflow.migration_wait import result_of

    rows = tuple(ledger_rows(*map(CellState, states.split())))
    progress = Progress(StatementRef(1, Direction.UP, 1), Verdict.FAILED, rows)
    result = result_of(progress, Verdict.FAILED)
    assert result.state.value == ended and told in str(error_of(result))


def test_an_error_that_is_no_text_can_stand_in_every_database_and_log() -> None:
    from oncluster_airflow.errors import error_of
    from oncluster_airflow.outcomes import WaitResult, WaitState, hosts_table

    host = HostOutcome(HostId("node01", 9000), FAILED, 27, "Cannot parse '\udcff\0'")
    result = WaitResult(WaitState.FAILED, "query-1", (host,))

    for shown in (
        json.dumps(result.to_json(), ensure_ascii=False),
        hosts_table([host]),
        str(error_of(result)),
    ):
        assert "Cannot parse '\ufffd\ufffd'" in shown
        shown.encode()


@pytest.mark.parametrize("timeout_s", [1, 86_400, 999_999_999, 10**12, 2**63 - 1])
def test_airflows_own_limit_is_a_time_that_airflow_can_write_down(timeout_s: int) -> None:
    from oncluster_airflow.waiting import backstop

    limit = backstop(timeout_s)
    assert limit is None or (
        limit.total_seconds() > timeout_s and datetime.datetime.now(datetime.UTC) + limit
    )
    assert (limit is None) == (timeout_s > 10**9)


def test_who_waits_for_ever_has_no_limit() -> None:
    from oncluster_airflow.waiting import backstop

    assert backstop(-1) is None
