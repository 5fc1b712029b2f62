"""Readers never see rows doubled or missing while parts change: two real nodes are asked all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pytest

from tests.node.http_client import HttpAt
from tests.node.replicated_pair import Pair

pytestmark = pytest.mark.slow

IS_RIGHT = Callable[[str, str], bool]
"""Of an answer and the one before it on the same node, which is empty at first."""
WAITING = "SETTINGS alter_sync = 2, mutations_sync = 2"


class Reader(threading.Thread):
    """Asks one node the same question again and again."""

    def __init__(self, node: HttpAt, sql: str, is_right: IS_RIGHT) -> None:
        super().__init__(daemon=True)
        self._node, self._sql, self._is_right = node, sql, is_right
        self.is_over = False
        self.answers: dict[str, int] = {}
        self.wrong = ""

    def run(self) -> None:
        before = ""
        while not self.wrong:
            is_last = self.is_over
            reply = self._node.post(self._sql)
            if reply.status != 200 or not self._is_right(reply.text, before):
                self.wrong = f"{reply.text!r} after {before!r}, answers: {self.answers}"
            before = reply.text
            self.answers[before] = self.answers.get(before, 0) + 1
            if is_last:
                return


@contextmanager
def reading(pair: Pair, sql: str, is_right: IS_RIGHT) -> Iterator[list[Reader]]:
    """Both nodes are asked from before the block's beginning until behind its end."""
    readers = [Reader(node, sql, is_right) for node in pair.both]
    for node, reader in zip(pair.both, readers, strict=True):
        assert is_right(node.query(sql), "")
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.is_over = True
        for reader in readers:
            reader.join()
    for reader in readers:
        assert not reader.wrong, f"{reader._node.url}: {reader.wrong}"
        print(sum(reader.answers.values()), "answers")


def one_of(answers: Collection[str]) -> IS_RIGHT:
    return lambda answer, before: answer in answers


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


def test_inserts_are_seen_whole_and_merges_not_at_all(pair: Pair) -> None:
    t = table(pair)

    def is_right(answer: str, before: str) -> bool:
        count, keys, total = map(int, answer.split())
        return count == keys and count % 10 == total == 0 and count >= int(before.split()[0] if before else 0)

    with reading(pair, f"SELECT count(), uniqExact(k), sum(v) FROM {t}", is_right):
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
    with reading(pair, sql, one_of({"60\t60\t1\n"})):
        for number in range(1, 4):
            pair.both[number % 2].query(f"ALTER TABLE {t} UPDATE g = {number} WHERE true {WAITING}")
    assert pair.same(f"SELECT DISTINCT g FROM {t}") == "3\n"


@pytest.mark.extended
def test_a_renamed_column_has_its_values_at_every_moment(pair: Pair) -> None:
    t = filled(pair, parts=4)
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = k WHERE true {WAITING}")
    sql = f"SELECT count(), uniqExact(k), sum(COLUMNS('^(v|w)$')) FROM {t}"
    with reading(pair, sql, one_of({"40\t40\t780\n"})):
        for number in range(4):
            old, new = ("v", "w") if number % 2 == 0 else ("w", "v")
            pair.both[number % 2].query(f"ALTER TABLE {t} RENAME COLUMN {old} TO {new} {WAITING}")
    pair.rows(t)


def test_a_partition_is_replaced_at_one_moment(pair: Pair) -> None:
    t = filled(pair, parts=2, g=9, first=900)
    sources = [filled(pair, parts=parts, g=parts, first=100 * parts) for parts in (2, 3)]
    answers = {"20\t20\t1\t9\n", "20\t20\t1\t2\n", "30\t30\t1\t3\n"}
    sql = f"SELECT count(), uniqExact(k), uniqExact(g), max(g) FROM {t}"
    with reading(pair, sql, one_of(answers)):
        for number in range(4):
            source = sources[number % 2]
            pair.both[number % 2].query(f"ALTER TABLE {t} REPLACE PARTITION 0 FROM {source} {WAITING}")
    assert pair.same(sql) == "30\t30\t1\t3\n"


@pytest.mark.extended
def test_a_partition_is_moved_at_one_moment_of_each_table(pair: Pair) -> None:
    here, there = filled(pair, parts=3), table(pair)
    answers = one_of({"30\t30\n", "0\t0\n"})
    sql = "SELECT count(), uniqExact(k) FROM {}"
    with reading(pair, sql.format(here), answers), reading(pair, sql.format(there), answers):
        for number in range(4):
            source, target = (here, there) if number % 2 == 0 else (there, here)
            pair.both[number % 2].query(f"ALTER TABLE {source} MOVE PARTITION 0 TO TABLE {target} {WAITING}")
            pair.synced(target)
    assert pair.same(sql.format(here)) == "30\t30\n"


@pytest.mark.extended
def test_a_part_goes_and_comes_as_a_whole(pair: Pair) -> None:
    t = filled(pair, parts=3)
    names = f"SELECT name FROM system.parts WHERE table = '{t}' AND active ORDER BY min_block_number"
    with reading(pair, f"SELECT count(), uniqExact(k) FROM {t}", one_of({"30\t30\n", "20\t20\n"})):
        for number in range(3):
            node = pair.both[number % 2]
            part = node.query(names).split()[number % 3]
            node.query(f"ALTER TABLE {t} DETACH PART '{part}' {WAITING}")
            node.query(f"ALTER TABLE {t} ATTACH PART '{part}' {WAITING}")
        part = pair.n1.query(names).split()[0]
        pair.n1.query(f"ALTER TABLE {t} DROP PART '{part}' {WAITING}")
    assert pair.same(f"SELECT count(), uniqExact(k), sum(v) FROM {t}") == "20\t20\t0\n"
