"""Which parts are merged: properties of every choice, and of many choices in a row."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.replication.merge_selector import (
    Candidate,
    SelectorSettings,
    select_merge,
    select_old_partition,
)
from engine.replication.part_name import PartName, inserted, merged

MIB = 1024 * 1024
FRESH_S, OLD_S = 0.0, 90 * 86400.0


def run_of(sizes: Sequence[int], *, age_s: float = FRESH_S, partition: str = "all") -> list[Candidate]:
    return [Candidate(inserted(partition, n), size, age_s) for n, size in enumerate(sizes)]


runs = st.lists(
    st.lists(st.tuples(st.integers(0, 2**36), st.floats(0, 10**7)), max_size=30).map(
        lambda items: [Candidate(inserted("all", n), size, age) for n, (size, age) in enumerate(items)]
    ),
    max_size=3,
)


@given(runs, st.integers(2, 20), st.integers(1, 2**37))
def test_a_choice_is_two_or_more_neighbours_of_one_run_within_the_limits(
    parts: list[list[Candidate]], most: int, limit: int
) -> None:
    chosen = select_merge(parts, SelectorSettings(max_parts_at_once=most, max_total_bytes=limit))
    if chosen is None:
        return
    assert 2 <= len(chosen.candidates) <= most
    assert chosen.size_bytes <= limit
    assert any(
        list(chosen.candidates) == run[start : start + len(chosen.candidates)]
        for run in parts
        for start in range(len(run))
    )
    merged(chosen.parts)  # raises unless they are neighbours in order


@given(runs)
def test_the_same_parts_give_the_same_choice(parts: list[list[Candidate]]) -> None:
    assert select_merge(parts) == select_merge([list(run) for run in parts])


@pytest.mark.parametrize("parts", [[], [[]], [run_of([5])], [run_of([5]), run_of([5])]])
def test_fewer_than_two_neighbours_are_never_merged(parts: list[list[Candidate]]) -> None:
    assert select_merge(parts) is None


def test_equal_fresh_parts_wait_until_the_base_is_reached() -> None:
    assert select_merge([run_of([100 * MIB] * 4)]) is None
    chosen = select_merge([run_of([100 * MIB] * 5)])
    assert chosen is not None and len(chosen.candidates) == 5


def test_fewer_parts_than_wanted_are_merged_only_where_their_age_forces_it() -> None:
    wanted = SelectorSettings(min_parts_at_once=6)
    assert select_merge([run_of([100 * MIB] * 5, age_s=OLD_S)], wanted) is None
    chosen = select_merge([run_of([100 * MIB] * 6)], wanted)
    assert chosen is not None and len(chosen.candidates) == 6
    forced = select_merge([run_of([100 * MIB] * 2, age_s=OLD_S)], replace(wanted, forced_age_s=OLD_S))
    assert forced is not None and len(forced.candidates) == 2


def test_a_few_old_parts_are_merged_though_they_are_few() -> None:
    assert select_merge([run_of([100 * MIB] * 2, age_s=FRESH_S)]) is None
    chosen = select_merge([run_of([100 * MIB] * 2, age_s=OLD_S)])
    assert chosen is not None and len(chosen.candidates) == 2


def test_a_large_part_is_not_rewritten_for_a_small_one_however_old() -> None:
    assert select_merge([run_of([10_000 * MIB, MIB], age_s=OLD_S)]) is None
    chosen = select_merge([run_of([10_000 * MIB, *[MIB] * 6])])
    assert chosen is not None and chosen.parts[0] == PartName("all", 1, 1, 0)


def test_a_small_part_at_the_right_end_is_left_for_later() -> None:
    chosen = select_merge([run_of([1000 * MIB] * 6 + [1])])
    assert chosen is not None and len(chosen.candidates) == 6


def test_many_parts_are_merged_though_they_are_fresh_and_unlike() -> None:
    sizes = [2 ** (n % 7) * 50 * MIB for n in range(60)]
    chosen = select_merge([run_of(sizes)])
    assert chosen is not None and len(chosen.candidates) >= 2


def test_the_partition_that_gains_most_goes_first() -> None:
    heavy = run_of([500 * MIB] * 6, partition="a")
    light = run_of([MIB] * 6, partition="b")
    chosen = select_merge([heavy, light])
    assert chosen is not None and chosen.parts[0].partition_id == "b"


# --- many choices in a row --------------------------------------------------------------------------------


@dataclass
class Table:
    """A partition into which parts are inserted, and in which up to `slots` merges run at a time."""

    slots: int
    seconds_per_insert: float
    parts: list[tuple[PartName, int, float]]
    running: list[tuple[PartName, tuple[PartName, ...], int, float]]
    now_s: float = 0.0
    inserted_bytes: int = 0
    written_bytes: int = 0
    most_parts: int = 0

    def insert(self, number: int, size: int) -> None:
        self.parts.append((inserted("all", number), size, self.now_s))
        self.inserted_bytes += size
        self.now_s += self.seconds_per_insert
        self.work()
        self.most_parts = max(self.most_parts, len(self.parts))

    def idle_runs(self) -> list[list[Candidate]]:
        busy = {part for _, sources, _, _ in self.running for part in sources}
        out: list[list[Candidate]] = [[]]
        for part, size, born in self.parts:
            if part in busy:
                out.append([])
            else:
                out[-1].append(Candidate(part, size, self.now_s - born))
        return out

    def work(self) -> None:
        for task in [task for task in self.running if task[3] <= self.now_s]:
            self.finish(task)
        while len(self.running) < self.slots:
            chosen = select_merge(self.idle_runs())
            if chosen is None:
                return
            busy = {part for _, sources, _, _ in self.running for part in sources}
            assert not busy & set(chosen.parts)
            ends_s = self.now_s + chosen.size_bytes / (100 * MIB)
            self.running.append((merged(chosen.parts), chosen.parts, chosen.size_bytes, ends_s))

    def finish(self, task: tuple[PartName, tuple[PartName, ...], int, float]) -> None:
        result, sources, size, _ = task
        self.running.remove(task)
        at = next(i for i, (part, _, _) in enumerate(self.parts) if part == sources[0])
        assert tuple(part for part, _, _ in self.parts[at : at + len(sources)]) == sources
        self.parts[at : at + len(sources)] = [(result, size, self.now_s)]
        self.written_bytes += size


def test_parts_that_are_all_old_enough_are_merged_whatever_it_costs() -> None:
    parts = run_of([1000 * MIB, MIB], age_s=100)
    assert select_merge([parts]) is None
    assert select_merge([parts], SelectorSettings(forced_age_s=101)) is None
    chosen = select_merge([parts], SelectorSettings(forced_age_s=100))
    assert chosen is not None and len(chosen.parts) == 2
    one_is_young = [parts[0], Candidate(parts[1].part, MIB, 99)]
    assert select_merge([one_is_young], SelectorSettings(forced_age_s=100)) is None
    assert select_merge([parts], SelectorSettings(forced_age_s=100, max_total_bytes=1000 * MIB)) is None


def test_of_partitions_that_are_old_as_a_whole_the_oldest_is_merged() -> None:
    runs = [
        run_of([MIB, MIB], age_s=100, partition="a"),
        run_of([MIB, MIB, MIB], age_s=200, partition="b"),
        run_of([MIB, MIB], age_s=300, partition="c"),  # not all of it: a third part may not be merged now
        run_of([MIB], age_s=400, partition="d"),
        run_of([MIB, 900 * MIB], age_s=500, partition="e"),
    ]
    parts = {"a": 2, "b": 3, "c": 3, "d": 1, "e": 2}
    chosen = select_old_partition(runs, parts, 100, 500 * MIB)
    assert chosen is not None and list(chosen.candidates) == runs[1]
    assert select_old_partition(runs[:1], parts, 101, 500 * MIB) is None
    assert select_old_partition(runs, parts, 501, 500 * MIB) is None


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3]), st.sampled_from(["equal", "mixed"]))
def test_a_stream_of_inserts_keeps_few_parts_and_rewrites_each_byte_a_few_times(
    seed: int, slots: int, kind: str
) -> None:
    rng = random.Random(seed)
    table = Table(slots, 1.0, [], [])
    inserts = 400
    for number in range(inserts):
        table.insert(number, MIB if kind == "equal" else int(MIB * 2 ** rng.uniform(0, 6)))
    # Written once per level of merges; with a factor of two to five a level there are at most log2 of them.
    assert table.written_bytes <= table.inserted_bytes * math.log2(inserts)
    # Never more than one merge may take: the selector keeps up with the stream.
    assert table.most_parts <= 100
    assert next(part.min_block for part, _, _ in table.parts) == 0
    for (left, _, _), (right, _, _) in zip(table.parts, table.parts[1:], strict=False):
        assert left.max_block + 1 == right.min_block


def test_a_table_left_alone_ends_with_a_few_parts_of_growing_size() -> None:
    table = Table(2, 1.0, [], [])
    for number in range(300):
        table.insert(number, 10 * MIB)
    for _ in range(200):
        table.now_s += 86400.0
        table.work()
    assert not table.running and len(table.parts) <= 3
    assert sum(size for _, size, _ in table.parts) == table.inserted_bytes
