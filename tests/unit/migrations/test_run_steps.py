"""What a run may still do with a migration, by what the ledger says of it."""

from __future__ import annotations

import pytest

from engine.migrations.decide import check_unchanged, is_begun, is_complete, is_finished
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction
from engine.migrations.model import Step
from engine.migrations.states import CellState, MigrationRecord, MigrationState, untouched
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
