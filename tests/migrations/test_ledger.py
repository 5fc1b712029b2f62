"""The ledger's promises, on SQLite and PostgreSQL: append-only, fenced, true (M2, M3, M6)."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ddl.outcome import HostOutcome, HostState
from engine.env import SystemEnv
from engine.errors import OnclusterError
from engine.migrations import ledger_schema as schema
from engine.migrations.errors import LedgerCorrupt, MigrationRefused, StaleFence
from engine.migrations.files import Direction
from engine.migrations.ledger import Ledger
from engine.migrations.ledger_writer import Attempt, LedgerWriter
from engine.migrations.states import CellState, Event, MigrationState, RunState
from engine.names import HostId

pytestmark = pytest.mark.slow

A, B = HostId("a", 9000), HostId("b", 9000)
UP = Direction.UP


def open_ledger(url: str | Path) -> Ledger:
    return Ledger(url, env=SystemEnv())


def holding(ledger: Ledger, fence: int = 1, run_id: str = "run") -> LedgerWriter:
    ledger.register_fence("c", fence, run_id=run_id, holder="tester")
    writer = ledger.writer("c", run_id=run_id, fence=fence)
    writer.record_run(direction=UP, target=None, requested_by="tester", approved_by="")
    return writer


def event(writer: LedgerWriter, kind: Event, *, version: int = 1, statements: int = 1) -> None:
    writer.record_event(
        kind,
        version=version,
        title="t",
        direction=UP,
        generation=1,
        statements=statements,
        file_checksum="f",
        done_by="tester",
    )


def attempt(number: int = 1, *hosts: HostId, statement: int = 1) -> Attempt:
    return Attempt(
        token=f"token-{statement}-{number}",
        version=1,
        title="t",
        direction=UP,
        generation=1,
        statement=statement,
        attempt=number,
        line=1,
        statement_checksum="s",
        file_checksum="f",
        sql="SELECT 1",
        hosts=hosts or (A, B),
    )


def seen(host: HostId, state: HostState, code: int = 0) -> HostOutcome:
    return HostOutcome(host, state, code, "boom" if code else "", 1, 2, 1)


def as_in_version_1(url: str) -> None:
    """Back to the format in which `expired` and `abandoned` were the last word."""
    then = "('done', 'failed', 'expired', 'abandoned')"
    now = str(schema.FINAL_STATES)
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.begin() as connection:

        def run(sql: str) -> None:
            connection.exec_driver_sql(sql)

        if engine.dialect.name == "sqlite":
            run("DROP TRIGGER oncluster_schema_no_update")
            run("DROP TRIGGER oncluster_outcomes_final")
            run(schema._SQLITE_FINAL.replace(now, then))
        else:
            run("DROP TRIGGER oncluster_schema_no_change ON oncluster_schema")
            run(schema._POSTGRESQL_FINAL.replace(now, then).replace("CREATE", "CREATE OR REPLACE", 1))
        run("DROP INDEX oncluster_one_final_outcome")
        run(
            "CREATE UNIQUE INDEX oncluster_one_final_outcome ON oncluster_outcomes (token, host, port) "
            f"WHERE state IN {then}"
        )
        run("UPDATE oncluster_schema SET version = 1")
    engine.dispose()


def table_rows(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    with ledger._store.reading() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(sa.select(table))]
            for table in schema.metadata.sorted_tables
        }


# --- M2 ---------------------------------------------------------------------------------------------------


def test_the_database_refuses_every_update_and_delete(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt())
    writer.record_submission("token-1-1", entry="query-1", outcome="enqueued")
    writer.record_outcomes("token-1-1", [seen(A, HostState.DONE)])
    writer.record_run_state(RunState.DONE)
    before = table_rows(ledger)
    assert all(before.values()), "every table has a row, or the test says nothing about it"
    for table in schema.metadata.sorted_tables:
        column = next(iter(table.c)).name
        for change in (f"UPDATE {table.name} SET {column} = {column}", f"DELETE FROM {table.name}"):
            with pytest.raises(MigrationRefused, match="append-only"), ledger._store.writing() as connection:
                connection.execute(sa.text(change))
    assert table_rows(ledger) == before


def test_writing_the_same_again_adds_nothing(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)

    def write() -> None:
        writer = holding(ledger)
        event(writer, Event.STARTED)
        writer.record_attempt(attempt())
        writer.record_submission("token-1-1", entry="query-1", outcome="enqueued")
        writer.record_outcomes("token-1-1", [seen(A, HostState.DONE), seen(B, HostState.INACTIVE)])
        writer.record_run_state(RunState.RUNNING)

    write()
    before = table_rows(ledger)
    write()
    assert table_rows(ledger) == before


# --- M3 ---------------------------------------------------------------------------------------------------


def test_of_one_statement_only_its_rows_are_read(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED, statements=2)
    for statement in (1, 2):
        writer.record_attempt(attempt(statement=statement))
    record = ledger.record("c", 1, statement=2)
    assert record is not None
    assert (record.state, {row.statement for row in record.rows}) == (MigrationState.RUNNING, {2})
    event(writer, Event.MARKED_APPLIED, statements=2)
    marked = ledger.record("c", 1, statement=2)
    assert marked is not None
    assert marked.state is MigrationState.MARKED


def test_a_holder_whose_fence_was_overtaken_can_append_nothing(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    old = holding(ledger, 1, "old")
    event(old, Event.STARTED)
    old.record_attempt(attempt())
    holding(ledger, 2, "new")
    before = table_rows(ledger)
    for write in (
        lambda: event(old, Event.STARTED, version=2),
        lambda: old.record_attempt(attempt(2)),
        lambda: old.record_submission("token-1-1", entry="query-1", outcome="enqueued"),
        lambda: old.record_outcomes("token-1-1", [seen(A, HostState.DONE)]),
        lambda: old.record_run_state(RunState.DONE),
        lambda: ledger.register_fence("c", 1, run_id="old", holder="old"),
        lambda: ledger.register_fence("c", 2, run_id="old", holder="old"),
    ):
        with pytest.raises(StaleFence):
            write()
    assert table_rows(ledger) == before


def test_fences_of_different_clusters_do_not_touch_each_other(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger, 1)
    ledger.register_fence("another", 99, run_id="x", holder="x")
    event(writer, Event.STARTED)
    assert ledger.records("c")[1].state is MigrationState.RUNNING
    assert ledger.records("another") == {}


def test_in_postgresql_a_write_under_way_and_a_new_fence_exclude_each_other(postgresql_server: str) -> None:
    # 1. The old holder has inserted and not committed. 2. Its successor registers: it has to wait. 3. The
    # old holder commits. 4. The successor is in, and what the old holder writes now is refused.
    ledger = open_ledger(f"{postgresql_server}/postgres")
    old = holding(ledger, 1, "old")
    registered = threading.Event()

    def register() -> None:
        open_ledger(f"{postgresql_server}/postgres").register_fence("c", 2, run_id="new", holder="new")
        registered.set()

    with ledger._store.writing() as connection:
        old._insert(connection, schema.run_events, {"state": "running", "note": "under way"})
        successor = threading.Thread(target=register)
        successor.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        watching = ledger._store._database._engine.execution_options(isolation_level="AUTOCOMMIT")
        with watching.connect() as observer:
            while not observer.scalar(sa.text(waiting)):
                assert successor.is_alive()
        assert not registered.is_set()
    successor.join(30)
    assert registered.is_set()
    with pytest.raises(StaleFence):
        old.record_run_state(RunState.DONE)


# --- M6 ---------------------------------------------------------------------------------------------------


def test_applied_is_refused_by_the_database_while_a_host_lacks_its_done(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED, statements=2)
    for statement in (1, 2):
        writer.record_attempt(attempt(statement=statement))
        with pytest.raises(MigrationRefused, match="required host"):
            event(writer, Event.APPLIED, statements=2)
        writer.record_outcomes(f"token-{statement}-1", [seen(A, HostState.DONE)])
        with pytest.raises(MigrationRefused, match="required host"):
            event(writer, Event.APPLIED, statements=2)
        writer.record_outcomes(f"token-{statement}-1", [seen(B, HostState.DONE)])
    event(writer, Event.APPLIED, statements=2)
    assert ledger.records("c")[1].state is MigrationState.APPLIED


def test_a_retry_on_the_host_that_failed_makes_the_migration_complete(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt())
    writer.record_outcomes("token-1-1", [seen(A, HostState.DONE), seen(B, HostState.FAILED, 241)])
    assert ledger.records("c")[1].state is MigrationState.FAILED
    writer.record_attempt(attempt(2, B))
    with pytest.raises(MigrationRefused):
        event(writer, Event.APPLIED)
    writer.record_outcomes("token-1-2", [seen(B, HostState.DONE)])
    event(writer, Event.APPLIED)
    rows = {(row.host, row.attempt, row.state) for row in ledger.rows("c")}
    assert rows == {(A, 1, CellState.DONE), (B, 2, CellState.DONE)}


def test_what_happened_on_a_host_is_kept_step_by_step_and_the_last_is_shown(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt(1, A))
    assert [row.state for row in ledger.rows("c")] == [CellState.RECORDED]
    for state in (HostState.WAITING, HostState.INACTIVE, HostState.RUNNING, HostState.DONE):
        assert writer.record_outcomes("token-1-1", [seen(A, state)]) == [A]
        assert [row.state.value for row in ledger.rows("c")] == [state.value]
    assert len(table_rows(ledger)["oncluster_outcomes"]) == 4


def test_a_final_outcome_is_followed_by_none_and_its_contradiction_is_told(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt(1, A))
    writer.record_outcomes("token-1-1", [seen(A, HostState.DONE)])
    for state in (HostState.RUNNING, HostState.EXPIRED, HostState.DONE):
        assert writer.record_outcomes("token-1-1", [seen(A, state)]) == []
    with pytest.raises(LedgerCorrupt):
        writer.record_outcomes("token-1-1", [seen(A, HostState.FAILED, 241)])
    assert [row.state for row in ledger.rows("c")] == [CellState.DONE]


@pytest.mark.parametrize("given_up", [HostState.EXPIRED, HostState.UNKNOWN, HostState.ABANDONED])
@pytest.mark.parametrize("said", [HostState.DONE, HostState.FAILED])
def test_what_others_said_of_a_host_is_followed_by_a_persons_word_and_its_own_and_by_nothing_else(
    ledger_url: str, given_up: HostState, said: HostState
) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt(1, A))
    assert writer.record_outcomes("token-1-1", [seen(A, given_up)]) == [A]
    for state in (HostState.RUNNING, HostState.EXPIRED, HostState.UNKNOWN, given_up):
        assert writer.record_outcomes("token-1-1", [seen(A, state)]) == []
    is_news = given_up is not HostState.ABANDONED  # a person gave it up by name
    for expected in ([A] if is_news else [], []):
        assert writer.record_outcomes("token-1-1", [seen(A, HostState.ABANDONED)]) == expected
    assert [row.state for row in ledger.rows("c")] == [CellState.ABANDONED]
    assert writer.record_outcomes("token-1-1", [seen(A, said)]) == [A]
    assert writer.record_outcomes("token-1-1", [seen(A, HostState.ABANDONED)]) == []
    assert [row.state.value for row in ledger.rows("c")] == [said.value]
    assert len(table_rows(ledger)["oncluster_outcomes"]) == 2 + is_news


def test_a_ledger_of_the_first_format_takes_a_late_word_once_it_was_opened(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt(1, A))
    writer.record_outcomes("token-1-1", [seen(A, HostState.ABANDONED)])
    as_in_version_1(ledger_url)
    assert [row.state for row in ledger.rows("c")] == [CellState.ABANDONED]

    again = open_ledger(ledger_url)
    assert again.ledger_id == ledger.ledger_id
    writer = again.writer("c", run_id="run", fence=ledger.max_fence("c"))
    assert writer.record_outcomes("token-1-1", [seen(A, HostState.DONE)]) == [A]
    assert [row.state for row in again.rows("c")] == [CellState.DONE]
    writer.record_outcomes("token-1-1", [seen(A, HostState.EXPIRED)])
    assert len(table_rows(again)["oncluster_outcomes"]) == 2


def test_an_error_that_is_no_text_is_recorded_as_far_as_it_is(ledger_url: str) -> None:
    """Hosts put values into their errors, and those may be any bytes."""
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt(1, A))
    failed = replace(seen(A, HostState.FAILED, 27), error="Cannot parse '\udcff\0\udc80' as UInt8 ü")
    assert writer.record_outcomes("token-1-1", [failed]) == [A]
    assert [row.error for row in ledger.rows("c")] == ["Cannot parse '\ufffd\ufffd\ufffd' as UInt8 ü"]


def test_a_token_stands_for_one_attempt_and_one_entry(ledger_url: str) -> None:
    writer = holding(open_ledger(ledger_url))
    event(writer, Event.STARTED)
    writer.record_attempt(attempt())
    with pytest.raises(LedgerCorrupt):
        writer.record_attempt(attempt(1, A, B, HostId("c", 1)))
    writer.record_submission("token-1-1", entry="query-1", outcome="enqueued")
    with pytest.raises(LedgerCorrupt):
        writer.record_submission("token-1-1", entry="query-2", outcome="enqueued")
    with pytest.raises(LedgerCorrupt):
        writer.record_outcomes("token-1-1", [seen(HostId("stranger", 1), HostState.DONE)])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from(list(HostState))), max_size=12))
def test_the_view_shows_a_hosts_own_word_or_else_the_last_that_others_said(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[HostId, HostState]]
) -> None:
    ledger = open_ledger(tmp_path_factory.mktemp("l") / "ledger.sqlite")
    writer = holding(ledger)
    event(writer, Event.STARTED)
    writer.record_attempt(attempt())
    expected = {A: CellState.RECORDED, B: CellState.RECORDED}
    for host, state in history:
        try:
            writer.record_outcomes("token-1-1", [seen(host, state, 1 if state is HostState.FAILED else 0)])
        except LedgerCorrupt:
            assert expected[host].is_final
        is_news = state.is_reported or state is HostState.ABANDONED
        if not expected[host].is_final or (expected[host].is_given_up and is_news):
            expected[host] = CellState(state.value)
    assert {row.host: row.state for row in ledger.rows("c")} == expected


# --- versions, processes, addresses -----------------------------------------------------------------------


def test_every_unsigned_64_bit_version_is_kept_and_sorted(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    writer = holding(ledger)
    versions = [0, 1, 9, 10, 20240131120000, 2**63 - 1, 2**63, 10**19, 2**64 - 1]
    for version in reversed(versions):
        event(writer, Event.STARTED, version=version, statements=0)
    assert list(ledger.records("c")) == versions
    with ledger._store.reading() as connection:
        found = connection.execute(
            sa.select(schema.migrations.c.version).order_by(schema.migrations.c.version)
        )
        assert [row.version for row in found] == versions


def _hammer(url: str, worker: int) -> None:
    ledger = open_ledger(url)
    writer = ledger.writer("c", run_id="run", fence=1)
    for number in range(10):
        version = worker * 100 + number
        event(writer, Event.STARTED, version=version, statements=0)
        writer.record_run_state(RunState.RUNNING, f"{worker} {number}")


def test_several_processes_open_and_write_at_the_same_time(ledger_url: str) -> None:
    holding(open_ledger(ledger_url))
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_hammer, args=(ledger_url, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(open_ledger(ledger_url).records("c")) == 20


def test_two_processes_of_one_run_may_enter_at_the_same_time(postgresql_ledger_url: str) -> None:
    """As two triggerers do that start together. SQLite's writers begin one after the other."""
    ledger = open_ledger(postgresql_ledger_url)
    assert ledger.ledger_id  # which makes it
    engine = sa.create_engine(postgresql_ledger_url.replace("postgresql:", "postgresql+psycopg2:"))
    failed: list[Exception] = []

    def enter() -> None:
        try:
            ledger.register_fence("c", 1, run_id="r", holder="second")
        except OnclusterError as error:
            failed.append(error)

    def is_waiting() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    second = threading.Thread(target=enter)
    with engine.begin() as connection:
        values = {"cluster": "c", "fence": 1, "run_id": "r", "holder": "first", "at_ms": 1}
        connection.execute(schema.fences.insert().values(values))
        second.start()
        while second.is_alive() and not is_waiting():
            pass
    second.join()
    engine.dispose()
    assert failed == []
    assert ledger.max_fence("c") == 1


def test_of_several_that_open_an_empty_database_at_once_all_get_the_same_ledger(ledger_url: str) -> None:
    ids: list[str] = []
    barrier = threading.Barrier(4)

    def opening() -> None:
        barrier.wait()
        ids.append(open_ledger(ledger_url).ledger_id)

    threads = [threading.Thread(target=opening) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_a_ledger_of_a_newer_program_is_refused(ledger_url: str) -> None:
    ledger = open_ledger(ledger_url)
    with ledger._store.writing() as connection:
        connection.execute(
            schema.schema_table.insert().values(version=99, ledger_id=ledger.ledger_id, at_ms=0)
        )
    with pytest.raises(MigrationRefused, match="format 99"):
        open_ledger(ledger_url)
