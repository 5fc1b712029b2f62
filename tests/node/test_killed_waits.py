"""KILL QUERY and `system.processes` know a statement about a replicated table while it waits for others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.few import few_first
from tests.node.http_client import Reply
from tests.node.replicated_pair import Pair, error, eventually, json_rows, wait_for

pytestmark = pytest.mark.slow

_IDS = (f"waits {number}" for number in itertools.count())
QUORUM = "SETTINGS insert_quorum = 2, insert_quorum_timeout = 600000"


@contextmanager
def killed(pair: Pair, sql: str) -> Iterator[dict[str, object]]:
    """A statement on n1 that has no end but by KILL QUERY, as `system.processes` shows it."""
    query_id = next(_IDS)

    def shown() -> list[dict[str, object]]:
        return json_rows(pair.n1, f"SELECT * FROM system.processes WHERE query_id = '{query_id}'")

    with ThreadPoolExecutor(1) as thread:
        reply = thread.submit(lambda: _post(pair, sql, query_id))
        try:
            wait_for(lambda: len(shown()) == 1)
            yield shown()[0]
            assert f"finished\t{query_id}" in pair.n1.query(f"KILL QUERY WHERE query_id = '{query_id}' SYNC")
            assert error(reply.result()) == 394
            assert shown() == []
        finally:
            pair.n1.query(f"KILL QUERY WHERE query_id = '{query_id}'")


def _post(pair: Pair, sql: str, query_id: str) -> Reply:
    return pair.n1.post(sql, query_id=query_id, receive_timeout="600")


ALTERED = "ALTER TABLE {t} ADD COLUMN n UInt8 SETTINGS alter_sync = 2"


@pytest.mark.parametrize(
    ("stopped", "sql", "kind", "rows"),
    few_first(
        [
            ("FETCHES", f"INSERT INTO {{t}} {QUORUM} VALUES (3, 'c')", "Insert", "1\ta\n3\tc\n"),
            (
                "MERGES",
                "ALTER TABLE {t} UPDATE v = 'x' WHERE 1 SETTINGS mutations_sync = 2",
                "Alter",
                "1\tx\n",
            ),
            ("REPLICATION QUEUES", ALTERED, "Alter", "1\ta\t0\n"),
            ("REPLICATION QUEUES", "OPTIMIZE TABLE {t} FINAL SETTINGS alter_sync = 2", "Optimize", "1\ta\n"),
            ("FETCHES", f"INSERT INTO {{t}} SELECT 3, 'c' {QUORUM}", "Insert", "1\ta\n3\tc\n"),
            ("REPLICATION QUEUES", "TRUNCATE TABLE {t} SETTINGS alter_sync = 2", "Truncate", ""),
            ("REPLICATION QUEUES", "ALTER TABLE {t} DROP PARTITION 1 SETTINGS alter_sync = 2", "Alter", ""),
        ],
        few=4,
    ),
)
def test_a_statement_that_waits_for_the_other_replica_is_seen_and_killed(
    pair: Pair, stopped: str, sql: str, kind: str, rows: str
) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    pair.n2.query(f"SYSTEM STOP {stopped} {t}")
    with killed(pair, sql.format(t=t)) as shown:
        assert shown["query_kind"] == kind
        assert shown["query"] == sql.format(t=t)
    pair.n2.query(f"SYSTEM START {stopped} {t}")
    eventually(lambda: pair.n2.query(f"SELECT * FROM {t} ORDER BY ALL"), rows)  # what is in the log is done
    assert pair.rows(t) == rows


@pytest.mark.parametrize(
    ("stopped", "change"),
    [("REPLICATION QUEUES", "ADD COLUMN n UInt8"), ("MERGES", "UPDATE v = 'x' WHERE 1")],
)
def test_what_an_alter_changes_on_its_own_replica_does_not_wait_for_the_others(
    pair: Pair, stopped: str, change: str
) -> None:
    """What is killed is the waiting: all replicas do the rest."""
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    pair.n2.query(f"SYSTEM STOP {stopped} {t}")
    settings = "MODIFY COMMENT 'new', MODIFY SETTING parts_to_throw_insert = 77, remove_empty_parts = 0"
    with killed(
        pair, f"ALTER TABLE {t} {change}, {settings} SETTINGS alter_sync = 2, mutations_sync = 2"
    ) as shown:
        query = f"SELECT count() FROM system.replication_queue WHERE table = '{t}'"
        wait_for(lambda: pair.n2.query(query) != "0\n")
        assert shown["query_kind"] == "Alter"
    shown_create = pair.n1.query(f"SHOW CREATE TABLE {t} FORMAT TSVRaw")
    for part in ("parts_to_throw_insert = 77", "remove_empty_parts = 0", "COMMENT 'new'"):
        assert part in shown_create
    pair.n2.query(f"SYSTEM START {stopped} {t}")
    pair.synced(t)


def test_sync_replica_is_killed_and_can_be_repeated(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"SYSTEM STOP FETCHES {t}")
    pair.n2.query(f"INSERT INTO {t} VALUES (1, 'a')")
    with killed(pair, f"SYSTEM SYNC REPLICA {t}"):
        pass
    pair.n1.query(f"SYSTEM START FETCHES {t}")
    pair.n1.query(f"SYSTEM SYNC REPLICA {t}")
    assert pair.rows(t) == "1\ta\n"


def test_what_the_queue_executes_is_seen_and_killed_on_its_host(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    pair.synced(t)
    pair.n2.query(f"SYSTEM STOP MERGES {t}")
    sql = f"ALTER TABLE {t} ON CLUSTER all UPDATE v = 'x' WHERE 1 SETTINGS mutations_sync = 2"
    mine = f"query_kind = 'Alter' AND query LIKE '%ALTER TABLE default.{t} UPDATE%'"
    with ThreadPoolExecutor(1) as thread:
        reply = thread.submit(lambda: pair.n1.post(sql))
        executing = f"SELECT count() FROM system.processes WHERE {mine}"
        wait_for(lambda: pair.n1.query(executing) + pair.n2.query(executing) in ("1\n0\n", "0\n1\n"))
        for node in pair.both:
            node.query(f"KILL QUERY WHERE {mine} SYNC")
        assert error(reply.result()) == 394
    pair.n2.query(f"SYSTEM START MERGES {t}")
    pair.synced(t)
    wait_for(lambda: pair.n2.query(f"SELECT v FROM {t}") == "x\n")
