"""Which neighbouring parts to merge next: by the ratio of sizes, softened by age and by the number of parts.

A merge is worth its writing when the sum of its parts is several times the largest of them: then every row is
rewritten about log(total / insert) times. The factor is `base` for few and fresh parts and goes down to 2 as
parts grow old or many, so that a quiet table ends with few parts. Among the allowed ranges the one with the
lowest cost per part saved wins. Whoever wants old parts merged whatever it costs says from which age on: a
range in which all are that old is always worth it (`forced_age_s`), or, where nothing else is worth its
writing, a partition in which all are (`select_old_partition`).

Pure: the caller says which parts may be neighbours (see `log` predicates) and which are busy; nothing here
looks at a clock. Model: ClickHouse's SimpleMergeSelector, with its constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.replication.part_name import PartName

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


@dataclass(frozen=True, slots=True)
class Candidate:
    """A part that may be merged: what it weighs, and how long it has existed."""

    part: PartName
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """Sizes in bytes, ages in seconds. The age after which the base begins to go down, and at which it has
    gone all the way, depend on the size of the merge, between two sizes on a logarithmic scale."""

    base: float = 5.0
    lowest_base: float = 2.0
    max_parts_at_once: int = 100
    min_parts_at_once: int = 2
    """Fewer only where all of them are `forced_age_s` old."""
    max_total_bytes: int = 150 * _GIB
    small_bytes: int = _MIB
    large_bytes: int = 100 * _GIB
    age_begins_small_s: float = 10.0
    age_begins_large_s: float = 10.0
    age_ends_small_s: float = 3600.0
    age_ends_large_s: float = 30 * 86400.0
    parts_begin: int = 10
    parts_end: int = 50
    forced_age_s: float = math.inf
    fixed_cost_bytes: int = 5 * _MIB
    """What a part costs beyond its bytes: files, seeks. Keeps small parts from being rewritten one by one."""
    small_at_right_ratio: float = 0.01
    """A part at the right end smaller than this share of the range is left to a later merge…"""
    leaves_small_at_right: bool = True
    """… if this says so."""
    align_min_ratio: float = 0.9
    align_max_powers_of_two: float = 0.5
    align_max_gain: float = 0.75
    max_parts_looked_at: int = 1000
    """In one run of parts, from the newest; more than that is an overload where anything will do."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A range worth merging. A lower `score` is better; scores of different partitions compare."""

    candidates: tuple[Candidate, ...]
    score: float

    @property
    def parts(self) -> tuple[PartName, ...]:
        return tuple(candidate.part for candidate in self.candidates)

    @property
    def size_bytes(self) -> int:
        return sum(candidate.size_bytes for candidate in self.candidates)


def select_merge(
    runs: Sequence[Sequence[Candidate]],
    settings: SelectorSettings = SelectorSettings(),
) -> Selected | None:
    """The best merge, or None if none is worth it.

    Each run holds parts of one partition in order, of which any neighbours may be merged: the caller has cut
    a partition wherever that is not so. A range never reaches over the end of a run.
    """
    return min(worth_merging(runs, settings), key=lambda each: each.score, default=None)


def worth_merging(
    runs: Sequence[Sequence[Candidate]], settings: SelectorSettings = SelectorSettings()
) -> list[Selected]:
    """The best merge of each run that has one; as for `select_merge`."""
    found = (_best_of_run(run, settings) for run in runs)
    return [each for each in found if each is not None]


def select_old_partition(
    runs: Sequence[Sequence[Candidate]], parts: Mapping[str, int], forced_age_s: float, max_total_bytes: int
) -> Selected | None:
    """All parts of a partition of which even the youngest is `forced_age_s` old: of several the one whose
    youngest is oldest.

    `parts` says how many each partition has: a run that has fewer is not all of it.
    """
    old = [
        run
        for run in runs
        if 1 < len(run) == parts[run[0].part.partition_id]
        and min(candidate.age_s for candidate in run) >= forced_age_s
        and sum(candidate.size_bytes for candidate in run) <= max_total_bytes
    ]
    if not old:
        return None
    return Selected(tuple(max(old, key=lambda run: min(each.age_s for each in run))), 0.0)


def _best_of_run(run: Sequence[Candidate], settings: SelectorSettings) -> Selected | None:
    count = len(run)
    start_at = max(0, count - settings.max_parts_looked_at)
    crowding = _unit(count, settings.parts_begin, settings.parts_end)
    best_score, best_range = math.inf, (0, 0)
    for start in range(start_at, count - 1):
        total = largest = 0
        youngest_s = math.inf
        for end in range(start + 1, min(count, start + settings.max_parts_at_once) + 1):
            last = run[end - 1]
            total += last.size_bytes
            largest = max(largest, last.size_bytes)
            youngest_s = min(youngest_s, last.age_s)
            if total > settings.max_total_bytes:
                break
            parts = end - start
            if parts < 2 or not _is_worth_it(total, largest, parts, youngest_s, crowding, settings):
                continue
            is_small = last.size_bytes < settings.small_at_right_ratio * total
            if is_small and parts > 2 and settings.leaves_small_at_right:
                continue
            before = run[start - 1].size_bytes if start else 0
            score = _score(parts, total, before, settings)
            if score < best_score:
                best_score, best_range = score, (start, end)
    if math.isinf(best_score):
        return None
    return Selected(tuple(run[best_range[0] : best_range[1]]), best_score)


def _is_worth_it(
    total: int, largest: int, parts: int, youngest_s: float, crowding: float, settings: SelectorSettings
) -> bool:
    ratio = (total + parts * settings.fixed_cost_bytes) / (largest + settings.fixed_cost_bytes)
    if youngest_s >= settings.forced_age_s:
        return True
    if parts < settings.min_parts_at_once:
        return False
    if ratio >= settings.base:
        return True
    if ratio < settings.lowest_base:
        return False
    scale = _unit(math.log1p(total), math.log1p(settings.small_bytes), math.log1p(settings.large_bytes))
    begins = _between(settings.age_begins_small_s, settings.age_begins_large_s, scale)
    ends = _between(settings.age_ends_small_s, settings.age_ends_large_s, scale)
    softened = min(1.0, _unit(youngest_s, begins, ends) + crowding)
    return ratio >= _between(settings.base, settings.lowest_base, softened)


def _score(parts: int, total: int, before: int, settings: SelectorSettings) -> float:
    """Bytes written per part saved. A result about as large as its left neighbour is a good one: the two will
    be merged next, at no loss."""
    score = (total + parts * settings.fixed_cost_bytes) / (parts - 1.9)
    if before and total > before * settings.align_min_ratio:
        distance = abs(math.log2(total / before))
        if distance < settings.align_max_powers_of_two:
            nearness = 1 - distance / settings.align_max_powers_of_two
            score *= _between(1.0, settings.align_max_gain, nearness)
    return score


def _unit(value: float, low: float, high: float) -> float:
    """Where `value` lies between `low` (0) and `high` (1)."""
    if value <= low:
        return 0.0
    return 1.0 if value >= high else (value - low) / (high - low)


def _between(low: float, high: float, ratio: float) -> float:
    return low + (high - low) * ratio
