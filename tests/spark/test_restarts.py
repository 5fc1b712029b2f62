"""A driver that is started again, or beside another one, and finds other circumstances."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import NodeUnavailable, OnclusterError, UnknownOutcome
from engine.keeper.recipes import remove_recursive
from engine.names import TableName
from engine.testing.local_cluster import Call, LocalCluster
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves, RowsMissing
from spark_apps.clickhouse_cluster.options import Options
from spark_apps.clickhouse_cluster.outcome import outcome_of
from spark_apps.clickhouse_cluster.writer import Job, finish, give_up, servers_of
from tests.few import few_first
from tests.spark.conftest import MADE, NUMBERS, Servers
from tests.spark.front import Front
from tests.spark.test_faults import Crash, _crash, attempt, begin, end_before_done, is_once, make_table

pytestmark = pytest.mark.slow

GONE = Server("127.0.0.1", 1)


def decided_and_not_moved(servers: Servers, table: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    job = begin(servers, table)
    messages = [attempt(job, task=0, number=1, last=30), attempt(job, task=1, number=2, first=30)]
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "append", _crash)
        with pytest.raises(Crash):
            finish(job, messages)
    return job


def _decides(request: bytes) -> bool:
    return b"CREATE VIEW" in request or b"insert_deduplication_token" in request


def test_a_decision_that_arrives_when_its_reply_was_given_up_decides_nothing_that_is_gone(
    servers: Servers,
) -> None:
    """1. The statement that decides is held up on its way, and its client gives up. 2. Whatever Spark does
    then: the job is committed, or aborted and run again. 3. The statement arrives."""
    front = Front(servers.shards[0][0], lambda request: _decides(request) and not front.lost)
    table = make_table(servers)
    place = replace(servers, shards=[[front.server, *servers.shards[0][1:]], servers.shards[1]])
    with front.running():
        job = begin(place, table)
        messages = [attempt(job, task=0, number=1)]
        try:
            finish(job, messages)
        except OnclusterError:
            give_up(job)
        assert _decides(front.lost[0])
        front.deliver_late()
        again = begin(place, table)
        finish(again, [attempt(again, task=0, number=2)] if again.before is Progress.NOTHING else [])
    assert is_once(servers, table)
    assert servers.staging() == []


def test_two_drivers_decide_on_one_server_whichever_replica_was_the_first_to_answer(nodes: Servers) -> None:
    """1. Two drivers of one job begin; to one of them the first replica does not answer at first. 2. Both
    stage, and both commit."""
    front = Front(nodes.shards[0][0], lambda _: not front.lost)
    table = make_table(nodes)
    place = replace(nodes, shards=[[front.server, *nodes.shards[0][1:]], nodes.shards[1]])
    with front.running():
        late, early = begin(place, table), begin(place, table)
        assert len(front.lost) == 1
        for s, job in (("one", early), ("two", late)):
            finish(job, [attempt(job, task=0, number=1, s=s)])
    assert is_once(nodes, table)
    assert nodes.staging() == []


@pytest.mark.parametrize("replicated", few_first([True, False], few=1), ids=["replicated", "plain"])
@pytest.mark.parametrize("order", few_first([[1, 0], [0]], few=1), ids=["turned", "second gone"])
def test_a_job_that_was_decided_is_carried_out_where_it_was_whatever_the_cluster_is_now(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, order: list[int], replicated: bool
) -> None:
    """1. A load is decided, and its driver ends. 2. The shards are written down in another order, or one is
    the cluster's no longer. 3. The load is started again."""
    place = nodes if replicated else nodes.one_each
    table = make_table(place, replicated=replicated)
    decided_and_not_moved(place, table, monkeypatch)
    now = replace(place, shards=[place.shards[number] for number in order])
    again = begin(now, table)
    assert again.before is Progress.DECIDED
    finish(again, [])
    assert is_once(place, table)
    given = {"table": table, "shards": place.option, "sharding_key": "cityHash64(a)", "job_id": "job"}
    found = outcome_of(Options.parse(given))
    assert found is not None and found.rows == 60
    assert place.staging() == []


def test_no_record_and_no_row_is_written_later_than_it_is_answered_whatever_profiles_say(
    nodes: Servers,
) -> None:
    """With `async_insert` and without `wait_for_async_insert` servers answer first, and a crash after that
    answer loses what a commit relies on."""
    table, inserts = make_table(nodes), list[bytes]()

    def passes(request: bytes) -> bool:
        inserts.extend(line for line in request.split(b"\r\n")[:1] if b"query=INSERT" in line)
        return False

    front = Front(nodes.shards[0][0], passes)
    with front.running():
        job = begin(replace(nodes, shards=[[front.server], nodes.shards[1]]), table)
        finish(job, [attempt(job, task=0, number=1)])
    into = {one for one in (b"jobs_", b"ledger", b"s_") if any(b"%60" + one in line for line in inserts)}
    assert into == {b"jobs_", b"ledger", b"s_"}
    assert [line for line in inserts if b"async_insert=0" not in line] == []


def test_a_job_that_is_done_needs_no_server_that_it_was_staged_on(nodes: Servers) -> None:
    """Such as one that has left the cluster since: a load that is run again changes nothing, and succeeds."""
    table = make_table(nodes)
    job = begin(nodes, table)
    plan = finish(job, [attempt(job, task=0, number=1)])
    job.decisions.forget(job.key)
    shards = (plan.shards[0], replace(plan.shards[1], host=GONE.host, port=GONE.port))
    job.decisions.decide(replace(plan, shards=shards))
    with pytest.raises(NodeUnavailable):
        finish(begin(nodes, table), [])
    job.decisions.record_done(job.key)
    again = begin(nodes, table)
    assert again.before is Progress.DONE
    finish(again, [])
    assert is_once(nodes, table)


def test_the_commit_asks_servers_as_the_attempts_did(nodes: Servers) -> None:
    """Also those that have a user of their own."""
    table = make_table(nodes)
    shards = ";".join(
        ",".join(f"http://default:@{one.host}:{one.port}" for one in shard) for shard in nodes.shards
    )
    given = {"table": table, "shards": shards, "sharding_key": "a", "user": "nobody", "password": "x"}
    options = Options.parse(given)
    job = begin(nodes, table, shards=shards, user="nobody")
    plan = finish(job, [attempt(job, task=0, number=1)])
    assert servers_of(plan, job.target, options, beside=None) == [
        shard.replica for shard in job.target.shards
    ]
    assert is_once(nodes, table)


def test_a_decided_job_whose_staged_rows_are_gone_says_what_is_to_be_done(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(nodes)
    job = decided_and_not_moved(nodes, table, monkeypatch)
    staging.sweep(nodes.all, job.key)
    with pytest.raises(RowsMissing, match="0 rows are staged") as lost:
        finish(begin(nodes, table), [])
    assert "ledger on each shard" in lost.value.hint
    assert sum(nodes.counts(table)) == 0
    staging.sweep(nodes.all, job.key)


def moved_and_not_recorded(servers: Servers, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `job`, some partitions of each shard."""
    job = begin(servers, table)
    messages = [attempt(job, task=0, number=1)]
    with monkeypatch.context() as patch:
        patch.setattr(Moves, "record_moved", lambda _, ids: _crash() if ids else None)
        end_before_done(patch)
        with pytest.raises(Crash):
            finish(job, messages)


@pytest.mark.extended
def test_parts_that_keeper_has_forgotten_are_not_added_again(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A table has been given a block. 2. A commit has added rows, and ends before that is recorded. 3. So
    many others write that Keeper forgets the parts, minutes later. 4. The load is started again."""
    settings = {
        "replicated_deduplication_window": 2,
        "merge_selecting_sleep_ms": 60_000,
        "cleanup_delay_period": 1,
        "cleanup_delay_period_random_add": 0,
        "max_cleanup_delay_period": 1,
    }
    given = ", ".join(f"{name} = {value}" for name, value in settings.items())
    table = nodes.table("a UInt32, s String", rest=f"PARTITION BY a % 2 ORDER BY a SETTINGS {given}")
    written = [shard[0] for shard in nodes.shards]
    for server in written:
        server.execute(f"INSERT INTO {table} VALUES (1000, 'before')")
    moved_and_not_recorded(nodes, table, monkeypatch)
    assert sum(nodes.counts(table)) == 62
    for server, path in zip(written, begin(nodes, table).target.keeper_paths, strict=True):
        for number in range(4):
            server.execute(f"INSERT INTO {table} VALUES ({2000 + number}, 'other')")
        forgotten = (
            f"SELECT count() FROM system.zookeeper WHERE path = '{path}/blocks' AND name LIKE '%replace%'"
        )
        while server.text(forgotten) != "0":
            time.sleep(0.1)
    again = begin(nodes, table)
    with pytest.raises(UnknownOutcome):
        finish(again, [])
    assert sum(nodes.counts(table)) == 70
    staging.sweep(nodes.all, again.key)


@pytest.mark.extended
def test_rows_that_merges_have_summed_are_not_added_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A table that sums has a load's keys already. 2. A commit has added rows, and ends before that is
    recorded. 3. They are merged: there are as many rows as before. 4. The load is started again, and a person
    records what is there as the error says."""
    place = servers.one_each
    table = f"d.{servers.kind}_sums"
    for server in place.all:
        engine = "SummingMergeTree(n) PARTITION BY a % 2 ORDER BY a"
        server.execute(f"CREATE TABLE {table} (a UInt32, s String, n UInt32 DEFAULT 1) ENGINE = {engine}")
        MADE.append((server, f"DROP TABLE {table}"))
    first = begin(place, table, job_id="first")
    finish(first, [attempt(first, task=0, number=1)])
    moved_and_not_recorded(place, table, monkeypatch)
    moved = place.ask(f"SELECT sum(n) FROM {table}")
    for server in place.all:
        server.execute(f"OPTIMIZE TABLE {table} FINAL")
    assert sum(place.counts(table)) == 60
    with pytest.raises(UnknownOutcome):
        finish(begin(place, table), [])
    assert place.ask(f"SELECT sum(n) FROM {table}") == moved
    for _ in place.shards:
        with pytest.raises(UnknownOutcome) as unknown:
            finish(begin(place, table), [])
        (there,) = (server for server in place.all if str(server) in unknown.value.message)
        there.execute(unknown.value.hint.partition("there: ")[2].partition(". Then")[0])
    finish(begin(place, table), [])
    assert sum(map(int, place.ask(f"SELECT sum(n) FROM {table}"))) == 120
    assert place.staging() == []


@pytest.mark.parametrize("job_id", few_first(["", "mine"], few=1))
@pytest.mark.extended
def test_a_load_that_failed_when_it_was_decided_says_what_finishes_it(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, job_id: str
) -> None:
    """Without a job_id nobody could name it, and the same load anew would write its rows a second time."""
    table = make_table(nodes)
    job = begin(nodes, table, job_id=job_id)
    messages = [attempt(job, task=0, number=1)]
    true_move = Moves.append

    def append(moves: Moves, ids: Sequence[str]) -> Sequence[str]:
        if moves.server == nodes.shards[1][0]:
            raise NodeUnavailable("away", hint="Start it.")
        return true_move(moves, ids)

    with monkeypatch.context() as patch:
        patch.setattr(Moves, "append", append)
        with pytest.raises(NodeUnavailable, match="run it again with the option job_id=") as failed:
            finish(job, messages)
    assert failed.value.hint.startswith("Start it. The load is decided")
    assert 0 < sum(nodes.counts(table)) < 60
    named = failed.value.hint.partition("job_id=")[2].partition(",")[0]
    again = begin(nodes, table, job_id=named)
    assert (again.before, named in ("mine", job.epoch)) == (Progress.DECIDED, True)
    finish(again, [])
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_what_the_ledger_says_of_a_year_ago_goes_where_a_server_knows_how(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.16 knows no TTL."""
    ledger = TableName(staging.DATABASE, f"ledger_{next(NUMBERS)}")
    monkeypatch.setattr(records, "_LEDGER", ledger)
    server = servers.shards[0][0]
    records.prepare(server)
    MADE.append((server, f"DROP TABLE IF EXISTS {ledger.quoted}"))
    for job, days in (("new", 300), ("old", 400)):
        server.execute(f"INSERT INTO {ledger.quoted} (job, at) VALUES ('{job}', now() - 86400 * {days})")
    server.execute(f"OPTIMIZE TABLE {ledger.quoted} FINAL")
    expected = "new" if servers.kind == "nodes" else "new\nold"
    assert server.text(f"SELECT job FROM {ledger.quoted} ORDER BY job").strip() == expected


@pytest.mark.extended
def test_a_replica_that_takes_no_rows_is_passed_over(
    nodes: Servers, running: tuple[LocalCluster, Call[None]]
) -> None:
    local, call = running
    table = make_table(nodes)
    first, second = nodes.shards[0]
    (path,) = first.text(f"SELECT replica_path FROM system.replicas WHERE table = '{table[2:]}'").split()

    async def lose_metadata() -> None:
        async with local.keeper() as keeper:
            await remove_recursive(keeper, path)

    call(lose_metadata())
    first.execute(f"SYSTEM RESTART REPLICA {table}")
    assert first.text(f"SELECT is_readonly FROM system.replicas WHERE table = '{table[2:]}'").strip() == "1"
    job = begin(nodes, table, job_id="")
    assert job.target.shards[0].replica == second
    finish(job, [attempt(job, task=0, number=1)])
    first.execute(f"SYSTEM RESTORE REPLICA {table}")
    first.execute(f"SYSTEM SYNC REPLICA {table}")
    assert is_once(nodes, table)
