"""Readers never see rows doubled or missing while parts change: two real nodes are asked all the time."""

from __future__ import annotations

import http.client

import pytest

from tests.node.http_client import HttpAt
from tests.node.readers import one_of, reading
from tests.node.replicated_pair import Pair, wait_for

pytestmark = pytest.mark.slow

WAITING = "SETTINGS alter_sync = 2, mutations_sync = 2"
LONG_ROW = 8 + 1 + 2 + 1000


def rows(first: int, *, p: int = 0, g: int = 0) -> str:
    """Ten rows with keys of their own, that sum up to zero."""
    return f"SELECT {first} + number, {p}, {g}, if(number % 2, 1, -1) FROM numbers(10)"


def table(pair: Pair) -> str:
    return pair.table("k UInt64, p UInt8, g UInt8, v Int64", rest="PARTITION BY p ORDER BY k")


def filled(pair: Pair, *, parts: int, p: int = 0, g: int = 0, first: int = 0) -> str:
    """A table with so many parts of ten rows on both nodes."""
    t = table(pair)
    for number in range(parts):
        pair.both[number % 2].query(f"INSERT INTO {t} {rows(first + 10 * number, p=p, g=g)}")
    pair.synced(t)
    return t


def begun(node: HttpAt, sql: str) -> http.client.HTTPResponse:
    """The answer to a SELECT, of which nothing is read yet."""
    connection = http.client.HTTPConnection(node.url.removeprefix("http://"))
    connection.request("POST", "/?max_threads=1&http_send_timeout=600", sql)
    reply = connection.getresponse()
    assert reply.status == 200
    return reply


def test_inserts_are_seen_whole_and_merges_not_at_all(pair: Pair) -> None:
    t = table(pair)

    def is_right(answer: str, before: str) -> bool:
        count, keys, total = map(int, answer.split())
        return count == keys and count % 10 == total == 0 and count >= int(before.split()[0] if before else 0)

    with reading(pair.both, f"SELECT count(), uniqExact(k), sum(v) FROM {t}", is_right):
        for number in range(12):
            pair.both[number % 2].query(f"INSERT INTO {t} {rows(10 * number)}")
            if number % 6 == 5:
                pair.n1.query(f"OPTIMIZE TABLE {t} FINAL {WAITING}")
        pair.synced(t)
    assert (
        pair.same(f"SELECT count(), max(level) > 1 FROM {t}, system.parts WHERE table = '{t}'") == "120\t1\n"
    )


def test_a_part_is_mutated_at_one_moment(pair: Pair) -> None:
    t = filled(pair, parts=6)
    sql = (
        "SELECT sum(c), uniqExactMerge(keys), min(is_whole) FROM (SELECT count() AS c, uniqExactState(k) AS "
        f"keys, uniqExact(g) = 1 AS is_whole FROM {t} GROUP BY _part)"
    )
    with reading(pair.both, sql, one_of({"60\t60\t1\n"})):
        for number in range(1, 4):
            pair.both[number % 2].query(f"ALTER TABLE {t} UPDATE g = {number} WHERE true {WAITING}")
    assert pair.same(f"SELECT DISTINCT g FROM {t}") == "3\n"


@pytest.mark.extended
def test_a_renamed_column_has_its_values_at_every_moment(pair: Pair) -> None:
    t = filled(pair, parts=4)
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = k WHERE true {WAITING}")
    sql = f"SELECT count(), uniqExact(k), sum(COLUMNS('^(v|w)$')) FROM {t}"
    with reading(pair.both, sql, one_of({"40\t40\t780\n"})):
        for number in range(4):
            old, new = ("v", "w") if number % 2 == 0 else ("w", "v")
            pair.both[number % 2].query(f"ALTER TABLE {t} RENAME COLUMN {old} TO {new} {WAITING}")
    pair.rows(t)


def test_a_partition_is_replaced_at_one_moment(pair: Pair) -> None:
    t = filled(pair, parts=2, g=9, first=900)
    sources = [filled(pair, parts=parts, g=parts, first=100 * parts) for parts in (2, 3)]
    answers = {"20\t20\t1\t9\n", "20\t20\t1\t2\n", "30\t30\t1\t3\n"}
    sql = f"SELECT count(), uniqExact(k), uniqExact(g), max(g) FROM {t}"
    with reading(pair.both, sql, one_of(answers)):
        for number in range(4):
            source = sources[number % 2]
            pair.both[number % 2].query(f"ALTER TABLE {t} REPLACE PARTITION 0 FROM {source} {WAITING}")
    assert pair.same(sql) == "30\t30\t1\t3\n"


@pytest.mark.extended
def test_a_partition_is_moved_at_one_moment_of_each_table(pair: Pair) -> None:
    here, there = filled(pair, parts=3), table(pair)
    answers = one_of({"30\t30\n", "0\t0\n"})
    sql = "SELECT count(), uniqExact(k) FROM {}"
    with reading(pair.both, sql.format(here), answers), reading(pair.both, sql.format(there), answers):
        for number in range(4):
            source, target = (here, there) if number % 2 == 0 else (there, here)
            pair.both[number % 2].query(f"ALTER TABLE {source} MOVE PARTITION 0 TO TABLE {target} {WAITING}")
            pair.synced(target)
    assert pair.same(sql.format(here)) == "30\t30\n"


@pytest.mark.extended
def test_a_part_goes_and_comes_as_a_whole(pair: Pair) -> None:
    t = filled(pair, parts=3)
    names = f"SELECT name FROM system.parts WHERE table = '{t}' AND active ORDER BY min_block_number"
    with reading(pair.both, f"SELECT count(), uniqExact(k) FROM {t}", one_of({"30\t30\n", "20\t20\n"})):
        for number in range(3):
            node = pair.both[number % 2]
            part = node.query(names).split()[number % 3]
            node.query(f"ALTER TABLE {t} DETACH PART '{part}' {WAITING}")
            node.query(f"ALTER TABLE {t} ATTACH PART '{part}' {WAITING}")
        part = pair.n1.query(names).split()[0]
        pair.n1.query(f"ALTER TABLE {t} DROP PART '{part}' {WAITING}")
    assert pair.same(f"SELECT count(), uniqExact(k), sum(v) FROM {t}") == "20\t20\t0\n"


@pytest.mark.extended
def test_each_partition_gets_its_rows_of_an_insert_at_one_moment(pair: Pair) -> None:
    t = table(pair)

    def is_right(answer: str, before: str) -> bool:
        return all(int(line.split()[0]) % 10 == 0 == int(line.split()[1]) for line in answer.splitlines())

    with reading(pair.both, f"SELECT count(), sum(v) FROM {t} GROUP BY p", is_right):
        for number in range(6):
            inserted = " UNION ALL ".join(rows(100 * number + 10 * p, p=p) for p in range(3))
            pair.both[number % 2].query(f"INSERT INTO {t} {inserted}")
        pair.synced(t)
    assert pair.same(f"SELECT p, count(), sum(v) FROM {t} GROUP BY p ORDER BY p") == (
        "0\t60\t0\n1\t60\t0\n2\t60\t0\n"
    )


@pytest.mark.extended
def test_a_partition_goes_at_one_moment_and_comes_back_part_by_part(pair: Pair) -> None:
    t = filled(pair, parts=3)

    def is_right(answer: str, before: str) -> bool:
        is_more = int(before or 0) <= int(answer)
        return answer in {"0\n", "30\n"} or (answer in {"10\n", "20\n"} and is_more)

    looks = (f"SELECT count() FROM {t}", f"SELECT sum(rows) FROM system.parts WHERE table = '{t}' AND active")
    with reading(pair.both, looks[0], is_right), reading(pair.both, looks[1], is_right):
        for number in range(4):
            node = pair.both[number % 2]
            node.query(f"ALTER TABLE {t} DETACH PARTITION 0 {WAITING}")
            node.query(f"ALTER TABLE {t} ATTACH PARTITION 0 {WAITING}")
            assert pair.same(looks[0]) == "30\n"
    with reading(pair.both, looks[0], one_of({"30\n", "0\n"})):
        pair.n2.query(f"ALTER TABLE {t} DROP PARTITION 0 {WAITING}")


@pytest.mark.extended
def test_a_partition_of_another_table_comes_at_one_moment(pair: Pair) -> None:
    t = filled(pair, parts=1, first=900)
    sources = [filled(pair, parts=3, first=100 * number) for number in range(3)]
    with reading(pair.both, f"SELECT count() FROM {t}", one_of({f"{n}\n" for n in (10, 40, 70, 100)})):
        for number, source in enumerate(sources):
            pair.both[number % 2].query(f"ALTER TABLE {t} ATTACH PARTITION 0 FROM {source} {WAITING}")
            pair.n1.query(f"OPTIMIZE TABLE {t} FINAL {WAITING}")
    assert pair.same(f"SELECT count(), uniqExact(k) FROM {t}") == "100\t100\n"


@pytest.mark.extended
def test_a_column_has_its_values_while_its_type_changes(pair: Pair) -> None:
    t = filled(pair, parts=4)
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = k WHERE true {WAITING}")
    sql = f"SELECT count(), sum(toInt64(v)) FROM {t} WHERE toInt64(v) >= 0"
    with reading(pair.both, sql, one_of({"40\t780\n"})):
        for number, kind in enumerate(("String", "LowCardinality(String)", "Int32", "Int64")):
            pair.both[number % 2].query(f"ALTER TABLE {t} MODIFY COLUMN v {kind} {WAITING}")
    pair.rows(t)


@pytest.mark.extended
@pytest.mark.parametrize("waits", [0, 2])
def test_a_column_that_was_dropped_and_made_anew_has_no_old_value(pair: Pair, waits: int) -> None:
    t = filled(pair, parts=3, g=7)

    def is_right(answer: str, before: str) -> bool:
        return answer in {"0\n", "error 47"} or (answer == "210\n" and before in {"210\n", ""})

    with reading(pair.both, f"SELECT sum(g) FROM {t}", is_right):
        pair.n1.query(f"ALTER TABLE {t} DROP COLUMN g SETTINGS alter_sync = {waits}")
        add = f"ALTER TABLE {t} ADD COLUMN g UInt8 SETTINGS alter_sync = {waits}"
        wait_for(lambda: pair.n1.post(add).code == 0)  # where nobody waits, the old one may be there still
        pair.synced(t)
        assert pair.same(f"SELECT sum(g) FROM {t}") == "0\n"


@pytest.mark.extended
def test_tables_are_exchanged_and_replaced_at_one_moment(pair: Pair) -> None:
    ten, twenty = (filled(pair, parts=parts) for parts in (1, 2))
    with reading(pair.both, f"SELECT count() FROM {ten}", one_of({"10\n", "20\n"})):
        for _ in range(4):
            for node in pair.both:
                node.query(f"EXCHANGE TABLES {ten} AND {twenty}")
        for number, node in enumerate(pair.both):
            node.query(
                f"CREATE OR REPLACE TABLE {ten} (k UInt64) ENGINE = ReplicatedMergeTree("
                f"'/tables/of_{number}/{ten}', 'r') ORDER BY k AS SELECT number FROM numbers(20)"
            )
    assert pair.same(f"SELECT count() FROM {ten}") == "20\n"


@pytest.mark.extended
def test_a_long_select_goes_on_with_what_it_began_with(pair: Pair) -> None:
    t = pair.table(
        "k UInt64, g UInt8, s String",
        rest="ORDER BY k SETTINGS min_bytes_for_wide_part = 0, old_parts_lifetime = 1",
    )
    for number in range(4):  # together far more than stays in buffers on the way
        pair.both[number % 2].query(
            f"INSERT INTO {t} SELECT number + {10_000 * number}, 0, randomPrintableASCII(1000) "
            "FROM numbers(10000)"
        )
    pair.synced(t)
    replies = [begun(node, f"SELECT k, g, s FROM {t} FORMAT RowBinary") for node in pair.both]
    for sql in (
        f"ALTER TABLE {t} UPDATE g = 1 WHERE true {WAITING}",
        f"OPTIMIZE TABLE {t} FINAL {WAITING}",
        f"ALTER TABLE {t} MODIFY COLUMN g String {WAITING}",
        f"ALTER TABLE {t} DROP COLUMN s {WAITING}",
        f"TRUNCATE TABLE {t} {WAITING}",
        f"SYSTEM RESTART REPLICA {t}",
    ):
        pair.n1.query(sql)
    pair.n2.query(f"SYSTEM RESTART REPLICA {t}")
    assert pair.same(f"SELECT count() FROM {t}") == "0\n"
    for node in pair.both:
        node.query(f"DROP TABLE {t}")
        running = f"SELECT count() FROM system.processes WHERE startsWith(query, 'SELECT k, g, s FROM {t}')"
        assert node.query(running) == "1\n"
    for reply in replies:
        body = reply.read()
        keys = {int.from_bytes(body[at : at + 8], "little") for at in range(0, len(body), LONG_ROW)}
        assert (len(body), keys) == (40_000 * LONG_ROW, set(range(40_000)))
