"""What the checker finds after a write: rows too many, rows on a wrong shard, replicas that differ.

Each test has a deliberate bug in the place of what the checker watches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.errors import UnknownOutcome
from spark_apps.clickhouse_cluster import direct, replicas
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing
from spark_apps.clickhouse_cluster.proof import PartSeen, RowsOnWrongShard, RowsTooMany, twins
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.replicas import Contents, Likeness, ReplicasDiffer, State, likeness
from spark_apps.clickhouse_cluster.split import Splitter
from spark_apps.clickhouse_cluster.writer import Attempt, TaskStaged, finish, give_up
from tests.few import few_first
from tests.spark.conftest import Servers
from tests.spark.test_direct import begin as begin_direct
from tests.spark.test_direct import post
from tests.spark.test_faults import ROWS, attempt, begin, is_once, make_table

pytestmark = pytest.mark.slow

TRUE_ALTER = Moves._alter
TRUE_OWNERS = Splitter._owners


def moved_twice(moves: Moves, verb: str, ids: Sequence[str]) -> None:
    for _ in range(2):
        TRUE_ALTER(moves, verb, ids)


def added_beside(moves: Moves, verb: str, ids: Sequence[str]) -> None:
    TRUE_ALTER(moves, "ATTACH", ids)


def turned(splitter: Splitter, rows: Any) -> Any:
    return TRUE_OWNERS(splitter, rows)[::-1]


@pytest.mark.extended
def test_rows_that_were_moved_twice_are_found_and_the_job_can_be_ended_without_them(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Each partition is moved twice. 2. The load fails, and is not done. 3. What is too many is removed,
    where a server can drop a part. 4. The load is started again: it adds nothing."""
    place = servers.one_each
    table = make_table(place, replicated=False)
    job = begin(place, table)
    messages = [attempt(job, task=0, number=1)]
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "_alter", moved_twice)
        with pytest.raises(UnknownOutcome if job.target.is_old else RowsTooMany) as found:
            finish(job, messages)
    assert job.target.is_old or "DROP PART" in found.value.hint
    assert sum(place.counts(table)) == 2 * ROWS
    assert begin(place, table).before is Progress.DECIDED
    for server in [] if job.target.is_old else place.all:
        doubled = server.rows(
            "SELECT partition_id, max(name) AS name FROM system.parts WHERE active AND database = 'd' "
            f"AND table = '{table[2:]}' GROUP BY partition_id HAVING count() > 1"
        )
        for row in doubled:
            server.execute(f"ALTER TABLE {table} DROP PART '{row['name']}'")
    finish(begin(place, table), [])
    assert begin(place, table).before is Progress.DONE
    assert job.target.is_old or is_once(place, table)


@pytest.mark.parametrize("replicated", few_first([True, False], few=1), ids=["replicated", "plain"])
def test_rows_that_were_to_be_replaced_and_are_still_there_are_found(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, replicated: bool
) -> None:
    place = servers if replicated else servers.one_each
    table = make_table(place, replicated=replicated)
    first = begin(place, table)
    finish(first, [attempt(first, task=0, number=1, s="old")])
    job = begin(place, table, job_id="new", mode=Mode.OVERWRITE_PARTITIONS)
    messages = [attempt(job, task=0, number=1, s="new")]
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "_alter", added_beside)
        with pytest.raises(RowsTooMany, match="were to be replaced"):
            finish(job, messages)
    again = begin(place, table, job_id="again", mode=Mode.OVERWRITE_PARTITIONS)
    finish(again, [attempt(again, task=0, number=1, s="new")])
    assert is_once(place, table)
    finish(begin(place, table, job_id="new", mode=Mode.OVERWRITE_PARTITIONS), [])


def test_rows_of_somebody_else_are_not_too_many(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A load looks at the table. 2. Somebody else writes as many rows, of the same sizes. 3. The load goes
    on."""
    place = servers.one_each
    table = make_table(place, replicated=False)
    job = begin(place, table)

    def alter(moves: Moves, verb: str, ids: Sequence[str]) -> None:
        for one in ids:
            values = f"SELECT toUInt32(1000 + number * 2 + {one}), 'somebody' FROM numbers(7)"
            moves.server.execute(f"INSERT INTO {table} {values}")
        TRUE_ALTER(moves, verb, ids)

    with monkeypatch.context() as patch:
        patch.setattr(Moves, "_alter", alter)
        finish(job, [attempt(job, task=0, number=1)])
    assert servers.ask(f"SELECT count() FROM {table} WHERE a < 1000") == sorted(
        str(rows - 14) for rows in place.counts(table)
    )
    assert begin(place, table).before is Progress.DONE


def test_rows_on_a_wrong_shard_end_the_load_before_it_writes(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(servers)
    job = begin(servers, table)
    with monkeypatch.context() as patch:
        patch.setattr(Splitter, "_owners", turned)
        messages = [
            attempt(job, task=0, number=1, last=45),
            attempt(job, task=1, number=2, first=45, last=50),
            attempt(job, task=2, number=3, first=50),
        ]
    with pytest.raises(RowsOnWrongShard, match=r"sharding key cityHash64\(a\)"):
        finish(job, messages)
    give_up(job)
    assert sum(servers.counts(table)) == 0
    again = begin(servers, table)
    finish(again, [attempt(again, task=0, number=1)])
    assert is_once(servers, table)


@pytest.mark.parametrize("key", few_first(["rand()", "a", "toInt8(a) - 30", "cityHash64(s, a)"], few=2))
@pytest.mark.extended
def test_keys_of_all_kinds_are_told_alike_by_servers_or_not_asked(servers: Servers, key: str) -> None:
    table = make_table(servers)
    job = begin(servers, table, sharding_key=key)
    finish(job, [attempt(job, task=0, number=1)])
    assert is_once(servers, table)


def test_two_winning_attempts_of_one_task_are_refused(nodes: Servers) -> None:
    table = make_table(nodes)
    job = begin(nodes, table)
    winners: Sequence[TaskStaged] = [attempt(job, task=0, number=number) for number in (1, 2)]
    with pytest.raises(RowsTooMany, match="Two attempts"):
        finish(job, winners)
    give_up(job)
    assert sum(nodes.counts(table)) == 0


def test_rows_too_many_in_staging_end_the_job_before_it_writes(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(servers)
    job = begin(servers, table)
    true_send = Attempt._send

    def send_twice(posting: Attempt, piece: Any) -> None:
        for _ in range(2):
            true_send(posting, piece)

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_send", send_twice)
        message = attempt(job, task=0, number=1)
    with pytest.raises(RowsMissing, match="were sent"):
        finish(job, [message])
    give_up(job)
    assert sum(servers.counts(table)) == 0


# -- replicas ------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_replica_that_belongs_to_another_table_is_found(nodes: Servers) -> None:
    """Both say that they have everything: each has a path of its own in Keeper, as with a wrong macro."""
    name = "d.two_paths"
    for number, server in enumerate(nodes.all):
        server.execute("CREATE DATABASE IF NOT EXISTS d")
        server.execute(
            f"CREATE TABLE {name} (a UInt32, s String) "
            f"ENGINE = ReplicatedMergeTree('/two_paths/{number}', 'r') PARTITION BY a % 2 ORDER BY a"
        )
    job = begin(nodes, name)
    with pytest.raises(ReplicasDiffer, match="/two_paths/0 and /two_paths/1"):
        finish(job, [attempt(job, task=0, number=1)])
    other = begin(nodes, name, job_id="unseen", replicas_wait_s="0")
    finish(other, [attempt(other, task=0, number=1)])
    finish(begin(nodes, name, replicas_wait_s="0"), [])


def test_after_a_load_all_replicas_have_its_rows(nodes: Servers) -> None:
    """Without waiting in the test: the load has waited."""
    table = make_table(nodes)
    job = begin(nodes, table)
    finish(job, [attempt(job, task=0, number=1)])
    first, second = nodes.shards[0]
    assert first.text(f"SELECT count() FROM {table}") == second.text(f"SELECT count() FROM {table}")


@pytest.mark.extended
def test_a_replica_that_is_behind_fails_no_load(nodes: Servers) -> None:
    table = make_table(nodes)
    second = nodes.shards[0][1]
    second.execute(f"SYSTEM STOP REPLICATION QUEUES {table}")
    job = begin(nodes, table, replicas_wait_s="1")
    finish(job, [attempt(job, task=0, number=1)])
    assert second.text(f"SELECT count() FROM {table}") == "0"
    second.execute(f"SYSTEM START REPLICATION QUEUES {table}")
    assert is_once(nodes, table)


def contents(parts: Mapping[str, str]) -> Contents:
    return Contents({("p", name): (1, content) for name, content in parts.items()})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (contents({"a": "1", "b": "2"}), Likeness.ALIKE),
        (contents({"a": "1"}), Likeness.DIFFERENT),
        (contents({"a": "1", "c": "2"}), Likeness.DIFFERENT),
        (contents({"a": "1", "b": "3"}), Likeness.CONTRADICTING),
    ],
)
def test_replicas_are_compared_by_parts_and_their_content(other: Contents, expected: Likeness) -> None:
    assert likeness(contents({"a": "1", "b": "2"}), other) is expected


@pytest.mark.extended
def test_a_replica_that_says_it_has_everything_and_has_not_is_found(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is kept from fetching, and a bug for which it has nothing to do."""
    table = make_table(nodes)
    second = nodes.shards[0][1]
    second.execute(f"SYSTEM STOP REPLICATION QUEUES {table}")
    job = begin(nodes, table, replicas_wait_s="3")
    message = attempt(job, task=0, number=1)
    with monkeypatch.context() as patch:
        patch.setattr(replicas, "state_of", lambda *_: State("/one", is_in_sync=True))
        with pytest.raises(ReplicasDiffer, match=r"rows by partition 0: .* and 0; 1: .* and 0"):
            finish(job, [message])
    assert begin(nodes, table).before is Progress.DECIDED
    second.execute(f"SYSTEM START REPLICATION QUEUES {table}")
    finish(begin(nodes, table), [])
    assert is_once(nodes, table)


def part(name: str, digest: str, *, partition: str = "p") -> PartSeen:
    return PartSeen(partition, name, 1, is_active=True, is_as_inserted=True, digest=digest, modified_s=0)


def test_twins_are_parts_beyond_what_was_sent() -> None:
    parts = [part("a", "1"), part("b", "1"), part("c", "2"), part("d", "1", partition="q"), part("e", "3")]
    assert twins(parts, {("p", "1"): 1, ("p", "2"): 1, ("q", "1"): 1}) == [part("b", "1")]
    assert twins(parts, {("p", "1"): 2, ("p", "2"): 1}) == []


# -- without staging -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_blocks_that_were_stored_twice_are_found(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A driver posts and ends. 2. The next one posts again, and the table does not look at tokens."""
    table = make_table(nodes)
    post(begin_direct(nodes, table))
    again = begin_direct(nodes, table)
    monkeypatch.setattr(direct, "deduplicated", lambda _: {"insert_deduplicate": "0"})
    posted = post(again)
    with pytest.raises(RowsTooMany, match="a second time"):
        direct.finish(again, [posted])


def test_blocks_on_a_wrong_shard_are_found(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    job = begin_direct(nodes, make_table(nodes))
    monkeypatch.setattr(Splitter, "_owners", turned)
    with pytest.raises(RowsOnWrongShard):
        direct.finish(job, [post(job)])
