"""Merges because of a TTL: which parts, in which order, how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.part_storage.part_ttl import ttl_in
from engine.replication.log_actions import MergeType
from engine.replication.merge_selector import Candidate
from engine.replication.part_name import PartName
from engine.replication.part_store import Part, PartTtl
from engine.replication.replica.merging.recompression import (
    Codec,
    Recompression,
    due_since_s,
    recompressions_of,
)
from engine.replication.replica.merging.ttl_merges import TtlMerges
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from engine.replication.table_definition import TableDefinition
from engine.testing.replication.disk import StoreDisk
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation import SimulationEnv
from tests.unit.replication.live_support import Live, LiveReplica, P, run

SETTINGS = ReplicatedSettings(replicated_can_become_leader=0, merge_with_ttl_timeout=1000)
"""Nothing is assigned but what a test asks for."""


class ExpiringStore(MemoryPartStore):
    """Its parts expire as `ttls` says."""

    def __init__(self, disk: StoreDisk, env: SimulationEnv) -> None:
        super().__init__(disk, env)
        self.ttls: dict[PartName, PartTtl] = {}

    @property
    def active(self) -> Mapping[PartName, Part]:
        return {name: replace(part, ttl=self.ttls.get(name)) for name, part in super().active.items()}


async def expiring(live: Live, **dates: tuple[float, float]) -> LiveReplica:
    """A replica with parts all_0_0_0 … all_3_3_0 and p_0_0_0; `dates` are seconds from now: first, whole."""
    replica = await live.replica(settings=SETTINGS, make_store=ExpiringStore)
    for value in range(4):
        await replica.insert(value)
    await replica.insert(9, partition="p")
    now = int(live.env.now_s())
    store = replica.store
    assert isinstance(store, ExpiringStore)
    store.ttls = {
        P(name): PartTtl(now + int(first) if first else 0, now + int(whole) if whole else 0)
        for name, (first, whole) in dates.items()
    }
    return replica


def chosen(merges: TtlMerges, replica: LiveReplica) -> tuple[MergeType, list[str]] | None:
    """And counts as assigned."""
    by_partition: dict[str, list[Candidate]] = {}
    for name in sorted(replica.store.active):
        by_partition.setdefault(name.partition_id, []).append(Candidate(name, 1, 0.0))
    action = merges.choose(replica.ctx, list(by_partition.values()))
    if action is None:
        return None
    merges.assigned(replica.ctx, action)
    return action.merge_type, [str(part) for part in action.sources]


def test_the_earliest_goes_first_with_its_expired_neighbours() -> None:
    async def main(live: Live) -> None:
        r = await expiring(
            live, all_0_0_0=(50, 0), all_1_1_0=(-5, 0), all_2_2_0=(-9, 50), all_3_3_0=(-1, 0), p_0_0_0=(-3, 0)
        )
        merges = TtlMerges()
        assert chosen(merges, r) == (MergeType.TTL_DELETE, ["all_1_1_0", "all_2_2_0", "all_3_3_0"])
        assert chosen(merges, r) == (MergeType.TTL_DELETE, ["p_0_0_0"])
        assert chosen(merges, r) is None
        await live.env.sleep(999)
        assert chosen(merges, r) is None  # all_0_0_0 has expired, too, and its partition has to wait
        await live.env.sleep(2)
        assert chosen(merges, r) is not None

    run(main)


def test_whole_parts_go_before_everything_else_and_soon_again() -> None:
    async def main(live: Live) -> None:
        r = await expiring(live, all_0_0_0=(-100, 0), all_2_2_0=(-9, -5), all_3_3_0=(-8, -6))
        merges = TtlMerges()
        assert chosen(merges, r) == (MergeType.TTL_DROP, ["all_2_2_0", "all_3_3_0"])
        assert chosen(merges, r) is None
        await live.env.sleep(61)
        assert chosen(merges, r) == (MergeType.TTL_DROP, ["all_2_2_0", "all_3_3_0"])

    run(main)


def test_only_whole_parts_where_the_table_says_so_and_none_while_stopped() -> None:
    async def main(live: Live) -> None:
        r = await expiring(live, all_0_0_0=(-100, 10))
        r.ctx.settings = replace(SETTINGS, ttl_only_drop_parts=1)
        merges = TtlMerges()
        assert chosen(merges, r) is None
        await live.env.sleep(11)
        assert merges.may_choose(r.ctx)
        r.ctx.switches.stop(Activity.TTL_MERGES)
        assert not merges.may_choose(r.ctx)
        r.ctx.switches.start(Activity.TTL_MERGES)
        assert chosen(merges, r) == (MergeType.TTL_DROP, ["all_0_0_0"])

    run(main)


def test_nothing_is_chosen_where_nothing_has_expired() -> None:
    async def main(live: Live) -> None:
        r = await expiring(live, all_0_0_0=(1, 2), all_1_1_0=(0, 0))
        assert chosen(TtlMerges(), r) is None

    run(main)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"table":{"min":5,"max":9,"finished":0}}', PartTtl(5, 9)),
        ('{"table":{"min":5,"max":9}}', PartTtl(5, 9)),
        (
            '{"columns":[{"name":"v","min":3,"max":3,"finished":0}],"table":{"min":5,"max":9,"finished":0}}',
            PartTtl(3, 9),
        ),
        ('{"columns":[{"name":"v","min":0,"max":0,"finished":1}]}', None),
        ('{"rows_where":[{"expression":"d","min":4,"max":8,"finished":0}]}', PartTtl(4, 0)),
        (
            '{"moves":[{"expression":"d","min":4,"max":8}],"recompression":[{"expression":"d","min":1,"max":2}]}',
            PartTtl(0, 0, (("d", 2),), "CODEC(ZSTD(9))"),
        ),
        ('{"recompression":[{"min":1,"max":1}]}', None),
        ("{}", None),
        ("{", None),
        ('{"table":3}', None),
        ("[]", None),
    ],
)
def test_the_dates_of_a_part(tmp_path: Path, text: str, expected: PartTtl | None) -> None:
    (tmp_path / "ttl.txt").write_text(f"ttl format version: 1\n{text}")
    (tmp_path / "default_compression_codec.txt").write_text("CODEC(ZSTD(9))")
    assert ttl_in(tmp_path) == expected


def test_a_part_without_dates_and_one_of_another_version(tmp_path: Path) -> None:
    assert ttl_in(tmp_path) is None
    (tmp_path / "ttl.txt").write_text("ttl format version: 2\n{}")
    assert ttl_in(tmp_path) is None


RULES = (
    "a RECOMPRESS CODEC(ZSTD), b + toIntervalDay(1) RECOMPRESS CODEC(Delta(8), LZ4HC(9)), "
    "d + toIntervalYear(2), concat(s, ',') RECOMPRESS CODEC(Default)"
)


def test_the_rules_of_a_ttl_clause() -> None:
    assert recompressions_of(RULES) == (
        Recompression("a", (Codec("ZSTD"),)),
        Recompression("b + toIntervalDay(1)", (Codec("DELTA", "(8)"), Codec("LZ4HC", "(9)"))),
        Recompression("concat(s, ',')", (Codec("DEFAULT"),)),
    )
    assert recompressions_of("") == recompressions_of("d + toIntervalYear(2)") == ()


@pytest.mark.parametrize(
    ("dates", "codec", "expected"),
    [
        ((("a", 5),), "CODEC(LZ4)", 5),
        ((("a", 5),), "CODEC(ZSTD(3))", 5),
        ((("a", 15),), "CODEC(LZ4)", 0),  # not yet
        ((("other", 5),), "CODEC(LZ4)", 0),  # of a rule that was removed
        ((("a", 5), ("b + toIntervalDay(1)", 15)), "CODEC(LZ4)", 5),
        ((("a", 5), ("b + toIntervalDay(1)", 7)), "CODEC(ZSTD(1))", 7),
        ((("a", 5), ("b + toIntervalDay(1)", 7)), "CODEC(Delta(8), LZ4HC(9))", 0),
        ((("a", 5), ("b + toIntervalDay(1)", 7)), "CODEC(Delta(8), LZ4HC(3))", 7),
        ((("a", 5),), "CODEC(ZSTD(1))", 0),  # what ZSTD means
        ((("concat(s, ',')", 5),), "CODEC(LZ4)", 5),  # no part says Default: due again and again
        ((), "CODEC(LZ4)", 0),
    ],
)
def test_a_part_is_due_for_the_latest_rule_whose_time_has_come(
    dates: tuple[tuple[str, int], ...], codec: str, expected: int
) -> None:
    assert due_since_s(PartTtl(0, 0, dates, codec), recompressions_of(RULES), 10.0) == expected


def test_a_part_is_recompressed_alone_or_with_its_neighbours_and_waits_for_itself() -> None:
    async def main(live: Live) -> None:
        r = await expiring(live, all_3_3_0=(-1, 0))
        definition = await r.store.definition()
        metadata = replace(definition.metadata, ttl="d RECOMPRESS CODEC(ZSTD(5))")

        async def changed() -> TableDefinition:
            return replace(definition, metadata=metadata)

        r.store.definition = changed  # type: ignore[method-assign]
        now = int(live.env.now_s())
        assert isinstance(r.store, ExpiringStore)
        for name, codec in [("all_0_0_0", "LZ4"), ("all_1_1_0", "LZ4"), ("all_2_2_0", "ZSTD(5)")]:
            r.store.ttls[P(name)] = PartTtl(0, 0, (("d", now - 5),), f"CODEC({codec})")
        merges = TtlMerges()
        assert chosen(merges, r) == (MergeType.TTL_DELETE, ["all_3_3_0"])
        assert chosen(merges, r) is None  # what the table says is not known yet
        await merges.learn(r.ctx)
        assert chosen(merges, r) == (MergeType.TTL_RECOMPRESS, ["all_0_0_0", "all_1_1_0"])
        assert chosen(merges, r) is None
        await live.env.sleep(SETTINGS.merge_with_recompression_ttl_timeout + 1)
        r.ctx.settings = replace(SETTINGS, ttl_only_drop_parts=1)
        assert chosen(merges, r) == (MergeType.TTL_RECOMPRESS, ["all_0_0_0", "all_1_1_0"])

    run(main)
