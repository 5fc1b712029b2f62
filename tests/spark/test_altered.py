"""A table that is altered when a load is decided and not yet in it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from engine.errors import Code, SqlError
from spark_apps.clickhouse_cluster import altered_meanwhile, staging
from spark_apps.clickhouse_cluster.altered_meanwhile import End, settle
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.moves import Moves
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import Job, TaskStaged, finish
from tests.few import few_first
from tests.spark.conftest import Servers
from tests.spark.test_faults import Crash, attempt, begin, end_before_done, is_once, make_table

pytestmark = pytest.mark.slow


def two_tasks(job: Job) -> list[TaskStaged]:
    return [attempt(job, task=0, number=1, last=30), attempt(job, task=1, number=2, first=30)]


def altered_in_the_middle(
    patch: pytest.MonkeyPatch, servers: Servers, table: str, alter: str, *, only_there: bool = False
) -> None:
    """When one partition of the second shard is moved, and no other one there. Nobody knows what of the first
    is moved then."""
    true_alter, calls, second = Moves._alter, itertools.count(), servers.shards[1][0]

    def moving(moves: Moves, verb: str, ids: Sequence[str]) -> None:
        """One after another, as the server does it."""
        for one in ids:
            if moves.server == second and next(calls) == 1:
                for shard in servers.shards[only_there:]:
                    shard[0].execute(f"ALTER TABLE {table} {alter}")
            true_alter(moves, verb, [one])

    patch.setattr(Moves, "_alter", moving)


@pytest.mark.parametrize(
    ("replicated", "mode", "alter"),
    few_first(
        [
            (True, Mode.APPEND, "ADD COLUMN x UInt8 DEFAULT 7"),
            (False, Mode.APPEND, "DROP COLUMN s"),
            (True, Mode.OVERWRITE_PARTITIONS, "ADD COLUMN x UInt8, MODIFY ORDER BY (a, x)"),
        ],
        few=1,
    ),
    ids=str,
)
def test_rows_of_a_load_get_into_a_table_that_is_altered_between_two_of_its_moves(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, replicated: bool, mode: Mode, alter: str
) -> None:
    place = nodes if replicated else nodes.one_each
    table = make_table(place, replicated=replicated)
    job = begin(place, table, mode=mode)
    messages = two_tasks(job)
    altered_in_the_middle(monkeypatch, place, table, alter)
    finish(job, messages)
    assert is_once(place, table)
    if "DEFAULT 7" in alter:
        assert place.ask(f"SELECT DISTINCT x FROM {table}") == ["7", "7"]
    assert place.staging() == []


@pytest.mark.extended
def test_rows_that_were_written_once_more_and_moved_are_known_when_their_driver_ended(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A column of the frame is dropped between two moves. 2. The others are moved with parts of the new
    structure; the driver ends before that is recorded. 3. The next one makes parts that differ from those."""
    table = make_table(nodes)
    job = begin(nodes, table)
    messages = two_tasks(job)

    with monkeypatch.context() as patch:
        altered_in_the_middle(patch, nodes, table, "DROP COLUMN s")
        patch.setattr(Moves, "record_moved", lambda moves, ids: None)
        end_before_done(patch)
        with pytest.raises(Crash):
            finish(job, messages)
    assert is_once(nodes, table)
    true_codecs = staging._codecs
    monkeypatch.setattr(staging, "_codecs", lambda job: true_codecs(job + "other"))
    again = begin(nodes, table)
    assert again.before is Progress.DECIDED
    finish(again, [])
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_a_column_that_has_another_name_is_not_taken_for_one_that_is_gone(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = nodes.one_each
    table = make_table(place, replicated=False)
    job = begin(place, table)
    messages = two_tasks(job)
    with monkeypatch.context() as patch:
        altered_in_the_middle(patch, place, table, "RENAME COLUMN s TO t", only_there=True)
        with pytest.raises(SqlError, match="s is gone, t is new") as refused:
            finish(job, messages)
    assert refused.value.code == Code.INCOMPATIBLE_COLUMNS
    assert "Give it the columns that it had" in refused.value.hint
    place.shards[1][0].execute(f"ALTER TABLE {table} RENAME COLUMN t TO s")
    finish(begin(place, table), [])
    assert is_once(place, table)
    assert sorted(place.ask(f"SELECT s FROM {table}")) == sorted(f"x{row}" for row in range(60))
    assert place.staging() == []


@pytest.mark.parametrize(
    ("meanwhile", "end", "rows"),
    few_first(
        [
            # ATTACH PART brings columns from before the RENAME behind it, as ATTACH PARTITION does when both
            # run.
            (
                ("DETACH PARTITION ID '1'", "RENAME COLUMN s TO t", "ATTACH PARTITION ID '1'"),
                End.TAKEN_BACK,
                5,
            ),
            (("RENAME COLUMN s TO t",), End.WHOLE, 10),
            (("ADD COLUMN x UInt8", "DROP COLUMN s"), End.WHOLE, 10),
            (("RENAME COLUMN s TO t", "RENAME COLUMN t TO s"), End.WHOLE, 10),
        ],
        few=2,
    ),
    ids=["came behind a rename", "renamed", "dropped", "renamed twice"],
)
def test_what_came_while_its_table_was_altered_is_whole_or_goes_again(
    nodes: Servers, meanwhile: tuple[str, ...], end: End, rows: int
) -> None:
    place = nodes.one_each
    table = make_table(place, replicated=False)
    target = begin(place, table).target
    server = place.shards[0][0]
    server.execute(f"INSERT INTO {table} (a, s) SELECT number * 2, 'old' FROM numbers(5)")
    server.execute(f"INSERT INTO {table} (a, s) SELECT number * 2 + 1, 'new' FROM numbers(5)")
    attached = staging.parts(server, target)["1"]
    block = staging.last_block(attached) - 1
    for alter in meanwhile:
        server.execute(f"ALTER TABLE {table} {alter}")
    assert settle(server, target, "1", block=block, attached=attached) is end
    assert server.text(f"SELECT count() FROM {table}") == f"{rows}"


def test_what_came_is_whole_when_the_alter_ends_between_two_looks(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = nodes.one_each
    table = make_table(place, replicated=False)
    target = begin(place, table).target
    server = place.shards[0][0]
    server.execute(f"SYSTEM STOP MERGES {table}")
    server.execute(f"INSERT INTO {table} (a, s) SELECT number * 2 + 1, 'x' FROM numbers(5)")
    attached = staging.parts(server, target)["1"]
    server.execute(f"ALTER TABLE {table} DROP COLUMN s", settings={"alter_sync": "0"})
    looked_at, looks = altered_meanwhile._outdated, list[int]()

    def ends_behind_the_first_look(*given: Any) -> int:
        looks.append(looked_at(*given))
        if len(looks) == 1:
            server.execute(f"SYSTEM START MERGES {table}")
            # Mutations are done in their order: with this one the DROP COLUMN has been.
            server.execute(f"ALTER TABLE {table} DELETE WHERE 0", settings={"mutations_sync": "2"})
        return looks[-1]

    monkeypatch.setattr(altered_meanwhile, "_outdated", ends_behind_the_first_look)
    block = staging.last_block(attached) - 1
    assert settle(server, target, "1", block=block, attached=attached) is End.WHOLE
    assert looks[0] == 1


def test_what_came_while_its_table_was_altered_is_left_alone_unless_it_is_what_was_attached(
    nodes: Servers,
) -> None:
    place = nodes.one_each
    table = make_table(place, replicated=False)
    target = begin(place, table).target
    server = place.shards[0][0]
    server.execute(f"INSERT INTO {table} (a, s) SELECT number * 2 + 1, 'x' FROM numbers(5)")
    (mine,) = staging.parts(server, target)["1"]
    block = staging.last_block([mine]) - 1
    server.execute(f"INSERT INTO {table} (a, s) SELECT number * 2 + 1, 'somebody else' FROM numbers(5)")
    for alter in ("DETACH PARTITION ID '1'", "RENAME COLUMN s TO t", "ATTACH PARTITION ID '1'"):
        server.execute(f"ALTER TABLE {table} {alter}")
    assert settle(server, target, "1", block=block, attached=[mine]) is End.UNSURE
    assert server.text(f"SELECT count() FROM {table}") == "10"
