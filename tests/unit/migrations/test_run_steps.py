"""What a run may still do with a migration, by what the ledger says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.migrations.decide import (
    attempts_to_send,
    check_unchanged,
    is_begun,
    is_complete,
    is_finished,
)
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction, Script, ScriptStatement
from engine.migrations.ledger_writer import Attempt
from engine.migrations.model import RunRequest, Step
from engine.migrations.options import Options
from engine.migrations.selection import Leniency
from engine.migrations.states import CellState, LedgerRow, MigrationRecord, MigrationState, untouched
from engine.names import HostId
from tests.unit.migrations.test_decisions import HOSTS, row

UP, DOWN = Direction.UP, Direction.DOWN
OPEN = (MigrationState.RUNNING, MigrationState.WAITING, MigrationState.FAILED)
IN_SCHEMA = (MigrationState.APPLIED, MigrationState.MARKED)


def step(direction: Direction, generation: int = 1) -> Step:
    return Step(1, "t", direction, generation, 2)


def record(direction: Direction, state: MigrationState, generation: int = 1) -> MigrationRecord:
    return MigrationRecord(1, "t", direction, generation, state, 2, "f", ())


BACK = record(DOWN, MigrationState.ROLLED_BACK)
OF_THE_STEP_UP = [record(UP, state) for state in OPEN]
OF_THE_STEP_DOWN = [record(DOWN, state) for state in OPEN]
APPLIED = [record(UP, state) for state in IN_SCHEMA]
APPLIED_AGAIN = [record(UP, state, 2) for state in (*OPEN, *IN_SCHEMA)]


def names(value: object) -> str | None:
    if isinstance(value, MigrationRecord):
        return f"{value.direction} {value.generation} {value.state}"
    return f"{value.direction} {value.generation}" if isinstance(value, Step) else None


@pytest.mark.parametrize(
    ("of", "found"),
    [
        *((step(UP), each) for each in [untouched(1), *OF_THE_STEP_UP]),
        (step(UP, 2), BACK),
        *((step(DOWN), each) for each in [*OF_THE_STEP_UP, *APPLIED, *OF_THE_STEP_DOWN]),
        *((step(DOWN, 2), each) for each in APPLIED_AGAIN),
    ],
    ids=names,
)
def test_a_step_goes_on_where_nobody_else_was_at_work(of: Step, found: MigrationRecord) -> None:
    check_unchanged(found, of)


@pytest.mark.parametrize(
    ("of", "found"),
    [
        *((step(UP), each) for each in [*APPLIED, *OF_THE_STEP_DOWN, BACK, *APPLIED_AGAIN]),
        *((step(UP, 2), each) for each in [untouched(1), *OF_THE_STEP_UP, *APPLIED]),
        *((step(DOWN), each) for each in [untouched(1), BACK, *APPLIED_AGAIN]),
    ],
    ids=names,
)
def test_a_step_does_not_go_on_where_another_run_was_at_work(of: Step, found: MigrationRecord) -> None:
    with pytest.raises(MigrationRefused, match="another run has been at work"):
        check_unchanged(found, of)


def test_a_step_is_begun_by_itself_alone() -> None:
    for each in OF_THE_STEP_UP:
        assert is_begun(each, step(UP))
        assert not is_begun(each, step(DOWN)) and not is_begun(each, step(UP, 2))
    for each in (untouched(1), *APPLIED, BACK):
        assert not is_begun(each, step(each.direction))


def test_a_step_is_finished_where_its_own_generation_has_come_to_that_state() -> None:
    for each in APPLIED:
        assert is_finished(each, step(UP))
        assert not is_finished(each, step(DOWN)) and not is_finished(each, step(UP, 2))
    assert is_finished(BACK, step(DOWN))
    assert not is_finished(BACK, step(UP)) and not is_finished(BACK, step(DOWN, 2))
    for each in (*OF_THE_STEP_UP, *OF_THE_STEP_DOWN, untouched(1)):
        assert not is_finished(each, step(each.direction))


@pytest.mark.parametrize(
    ("cells", "complete"),
    [
        ([(1, CellState.DONE), (2, CellState.DONE)], True),
        ([(1, CellState.DONE)], False),
        ([(1, CellState.DONE), (2, CellState.RUNNING)], False),
        ([(1, CellState.FAILED), (2, CellState.DONE)], False),
        ([(1, CellState.DONE), (2, CellState.DONE), (3, CellState.FAILED)], True),
        ([(1, CellState.DONE), (3, CellState.DONE)], False),
        ([], False),
    ],
)
def test_a_migration_is_complete_when_every_statement_of_the_file_was_sent_and_is_done(
    cells: list[tuple[int, CellState]], complete: bool
) -> None:
    """One that was taken out of the file does not count."""
    rows = tuple(row(state, HOSTS[0], statement=number) for number, state in cells)
    found = MigrationRecord(1, "t", UP, 1, MigrationState.RUNNING, 2, "f", rows)
    assert is_complete(found, 2) is complete


# --- what is sent -----------------------------------------------------------------------------------------

DONE, FAILED, RUNNING, EXPIRED, ABANDONED, UNKNOWN = (
    CellState.DONE,
    CellState.FAILED,
    CellState.RUNNING,
    CellState.EXPIRED,
    CellState.ABANDONED,
    CellState.UNKNOWN,
)
ADD = "ALTER TABLE d.t ADD COLUMN b Int8"
UPDATE = "ALTER TABLE d.t UPDATE a = a + 1 WHERE 1"
SHARDS = (HOSTS[:2], HOSTS[2:])


def sent(
    rows: Sequence[LedgerRow] = (),
    known: Sequence[Attempt] = (),
    *,
    sql: str = ADD,
    retry_failed: bool = False,
    run_id: str = "now",
    hosts: Sequence[HostId] = HOSTS,
) -> list[Attempt]:
    statement = ScriptStatement(1, 1, sql, Options(), "s")
    return attempts_to_send(
        step(UP),
        Script(Path("1_t.up.sql"), UP, (statement,), Options(), "f"),
        statement,
        sql=sql,
        known=known,
        rows=rows,
        hosts=hosts,
        shards=SHARDS,
        request=RunRequest(run_id, UP, leniency=Leniency(retry_failed=retry_failed)),
        ledger_id="ledger",
        cluster="c",
    )


def stands(first: Attempt, *states: CellState, run_id: str = "earlier") -> list[LedgerRow]:
    """On the hosts, in their order."""
    return [
        replace(row(state, HOSTS[number]), token=first.token, run_id=run_id)
        for number, state in enumerate(states)
    ]


def test_what_was_never_sent_is_sent_to_all_hosts() -> None:
    [first] = sent()
    assert (first.attempt, first.hosts) == (1, HOSTS)
    [of_another] = sent(known=[replace(first, statement=2)])
    assert of_another == first, "a statement's number tells it from others"


def test_what_is_under_way_is_sent_again_under_its_own_token_and_what_has_ended_is_not() -> None:
    [first] = sent()
    assert sent(stands(first, DONE, RUNNING, DONE, FAILED), [first], hosts=HOSTS[:1]) == [first]
    for ended in ([DONE] * 4, [DONE, FAILED, EXPIRED, DONE]):
        assert sent(stands(first, *ended), [first]) == []


def test_a_failure_is_repeated_once_a_run_where_somebody_asks_and_on_hosts_that_failed() -> None:
    [first] = sent()
    rows = stands(first, DONE, FAILED, DONE, EXPIRED)
    assert sent(rows, [first]) == []
    [again] = sent(rows, [first], retry_failed=True)
    assert (again.attempt, again.hosts) == (2, (HOSTS[1], HOSTS[3]))
    assert again.token != first.token
    assert sent(rows, [first], retry_failed=True, run_id="earlier") == [], "it is the run's own failure"
    [third] = sent(rows, [first, again], retry_failed=True, hosts=HOSTS[:2])
    assert (third.attempt, third.hosts) == (3, (HOSTS[1],)), "one has left the cluster"
    with pytest.raises(MigrationRefused, match="does not have any more"):
        sent(rows, [first], retry_failed=True, hosts=HOSTS[:1])


@pytest.mark.parametrize(
    ("sql", "states", "is_refused"),
    [
        (UPDATE, (DONE, EXPIRED, DONE, DONE), True),
        (UPDATE, (DONE, ABANDONED, DONE, DONE), True),
        ("ALTER TABLE d.t DROP COLUMN b", (DONE, EXPIRED, DONE, DONE), True),
        ("TRUNCATE TABLE d.t", (DONE, EXPIRED, DONE, DONE), True),
        (UPDATE, (DONE, FAILED, DONE, DONE), False),
        (UPDATE, (EXPIRED, EXPIRED, DONE, DONE), False),
        (ADD, (DONE, EXPIRED, DONE, DONE), False),
        ("DROP TABLE d.t", (DONE, EXPIRED, DONE, DONE), False),
        ("CREATE INDEX i ON d.t (a) TYPE minmax", (DONE, EXPIRED, DONE, DONE), False),
    ],
)
def test_what_another_replica_may_have_done_for_the_shard_is_not_repeated(
    sql: str, states: tuple[CellState, ...], is_refused: bool
) -> None:
    [first] = sent(sql=sql)
    rows = stands(first, *states)
    if is_refused:
        with pytest.raises(MigrationRefused, match="of the same shard"):
            sent(rows, [first], sql=sql, retry_failed=True)
    else:
        assert [each.attempt for each in sent(rows, [first], sql=sql, retry_failed=True)] == [2]


@pytest.mark.parametrize(
    ("sql", "state", "is_refused"),
    [
        ("DELETE FROM d.t WHERE a = 1", UNKNOWN, True),
        ("EXCHANGE TABLES d.a AND d.b", UNKNOWN, True),
        ("EXCHANGE TABLES d.a AND d.b", EXPIRED, False),
        ("EXCHANGE TABLES d.a AND d.b", FAILED, False),
        ("CREATE TABLE d.t (a Int8) ENGINE = Memory", UNKNOWN, False),
        ("DROP TABLE d.t", UNKNOWN, False),
    ],
)
def test_what_a_host_may_have_done_before_the_queue_lost_it_is_not_repeated_where_nobody_would_notice(
    sql: str, state: CellState, is_refused: bool
) -> None:
    [first] = sent(sql=sql)
    rows = stands(first, state, state, DONE, DONE)
    if is_refused:
        with pytest.raises(MigrationRefused, match="would do it twice"):
            sent(rows, [first], sql=sql, retry_failed=True)
    else:
        assert [each.attempt for each in sent(rows, [first], sql=sql, retry_failed=True)] == [2]
