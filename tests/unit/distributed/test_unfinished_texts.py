"""A statement that ends too early is a syntax error, as without Distributed tables."""

from __future__ import annotations

import pytest

from engine.errors import Code, SqlError
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import bench

pytestmark = pytest.mark.slow

__all__ = ["bench", "world"]

UNFINISHED = """
ALTER TABLE
TRUNCATE TABLE
SELECT * FROM events AS
SELECT * FROM events SAMPLE
SELECT * FROM events FINAL SAMPLE 1/
SELECT * FROM events AS e SAMPLE 1/2 OFFSET
SELECT * FROM events GLOBAL JOIN
SELECT id FROM events WHERE id GLOBAL IN (
WITH x (a
INSERT INTO events (id
INSERT INTO events (id, events.
INSERT INTO events
"""


@pytest.mark.parametrize("settings", [{}, {"distributed_group_by_no_merge": "1"}], ids=["", "unmerged"])
@pytest.mark.parametrize("sql", UNFINISHED.strip().splitlines())
def test_a_statement_that_ends_too_early_is_a_syntax_error(
    world: World, sql: str, settings: dict[str, str]
) -> None:
    with pytest.raises(SqlError) as refused:
        world.ask(sql, settings=settings)
    assert refused.value.code == Code.SYNTAX_ERROR
