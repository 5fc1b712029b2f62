"""Which shard a row belongs to, and in which order replicas are tried."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from engine.distributed.replica_choice import (
    Candidate,
    ErrorLimits,
    LoadBalancing,
    ReplicaErrors,
    ReplicaOrder,
)
from engine.distributed.sharding import owner_expression, owner_of, slot_count, slot_expression, slots
from engine.errors import Code, SqlError
from engine.storage import ChdbPool


def order(seed: int = 1) -> ReplicaOrder:
    return ReplicaOrder(own_host="node02.east", rng=random.Random(seed))


def hosts(*names: str) -> list[Candidate]:
    return [Candidate(name) for name in names]


async def numbers_of(path: Path, select: str) -> list[int]:
    pool = await ChdbPool.open(path / "data")
    try:
        return list(map(int, (await pool.query(select)).text.split()))
    finally:
        await pool.close()


def test_a_shard_owns_as_many_slots_in_a_row_as_its_weight() -> None:
    assert slots([1, 1]) == (0, 1)
    assert slots([2, 0, 3]) == (0, 0, 2, 2, 2)


@pytest.mark.parametrize("weights", [[1, 1], [2, 0, 3], [0, 700, 0, 1, 400, 0], [1, 1, 0], [0, 3]])
async def test_the_owner_of_a_slot_is_the_same_however_it_is_found(
    tmp_path: Path, weights: list[int]
) -> None:
    slot = "toUInt32(number)"
    select = f"SELECT {owner_expression(slot, weights)} FROM numbers({sum(weights)}) ORDER BY number"
    found = tuple(await numbers_of(tmp_path, select))
    assert found == slots(weights)
    assert found == tuple(owner_of(number, weights) for number in range(sum(weights)))


async def test_shards_may_have_weights_of_billions(tmp_path: Path) -> None:
    weights = [4_294_967_295, 0, 1, 4_294_967_295]
    assert slot_count(weights) == 8_589_934_591
    slots_of = {0: 0, 4_294_967_294: 0, 4_294_967_295: 2, 4_294_967_296: 3, 8_589_934_590: 3}
    assert {slot: owner_of(slot, weights) for slot in slots_of} == slots_of
    slot = slot_expression("k", "UInt64", slot_count(weights))
    listed = ", ".join(map(str, slots_of))
    select = f"SELECT {owner_expression(slot, weights)} FROM (SELECT arrayJoin([{listed}]) AS k) ORDER BY k"
    assert await numbers_of(tmp_path, select) == list(slots_of.values())


def test_a_cluster_in_which_nobody_may_be_written_to_is_refused() -> None:
    with pytest.raises(SqlError) as raised:
        slots([0, 0])
    assert raised.value.code == Code.BAD_ARGUMENTS


@pytest.mark.parametrize(
    ("key_type", "text"),
    [
        ("UInt64", "toUInt32((k) % 5)"),
        ("UInt8", "toUInt32((k) % 5)"),
        ("Int64", "toUInt32(toUInt64(k) % 5)"),
        ("Int8", "toUInt32(toUInt32(k) % 5)"),
        ("Int32", "toUInt32(toUInt32(k) % 5)"),
        ("LowCardinality(Int16)", "toUInt32(toUInt32(k) % 5)"),
    ],
)
def test_a_signed_key_counts_as_unsigned(key_type: str, text: str) -> None:
    assert slot_expression("k", key_type, 5) == text


@pytest.mark.parametrize("key_type", ["String", "Float64", "Nullable(UInt64)", "UInt128", "DateTime"])
def test_a_key_that_is_no_integer_is_refused(key_type: str) -> None:
    with pytest.raises(SqlError) as raised:
        slot_expression("k", key_type, 2)
    assert raised.value.code == Code.TYPE_MISMATCH


def test_errors_count_up_to_the_cap_and_halve_with_time() -> None:
    errors = ReplicaErrors(ErrorLimits(half_life_s=60, cap=8))
    for _ in range(20):
        errors.failed(0.0)
    assert errors.count(59.0) == 8
    assert errors.count(60.0) == 4
    assert errors.count(180.0) == 1
    assert errors.count(10_000.0) == 0


def test_the_time_until_errors_are_forgotten_is_as_many_half_lives_as_they_have_bits() -> None:
    errors = ReplicaErrors(ErrorLimits(half_life_s=60))
    assert errors.recovery_s(0.0) == 0
    for _ in range(5):
        errors.failed(0.0)
    assert errors.recovery_s(10.0) == 170
    assert errors.recovery_s(60.0) == 120
    assert errors.count(181.0) == 0 == errors.recovery_s(181.0)


def test_without_a_half_life_an_error_is_forgotten_at_once() -> None:
    errors = ReplicaErrors(ErrorLimits(half_life_s=0))
    errors.failed(0.0)
    assert errors.count(0.1) == 0


def test_who_failed_goes_behind_whatever_the_policy_says() -> None:
    replicas = [Candidate("a", errors=1), Candidate("b"), Candidate("c")]
    assert order().of(replicas, LoadBalancing.IN_ORDER) == (1, 2, 0)
    assert order().of(replicas, LoadBalancing.IN_ORDER, max_ignored_errors=1) == (0, 1, 2)


def test_priority_goes_before_policy() -> None:
    replicas = [Candidate("a", priority=2), Candidate("b", priority=1)]
    assert order().of(replicas, LoadBalancing.IN_ORDER) == (1, 0)


def test_nearest_hostname_counts_characters_that_differ() -> None:
    names = hosts("other1.west", "node01.east", "node17.west")
    assert order().of(names, LoadBalancing.NEAREST_HOSTNAME)[0] == 1


def test_levenshtein_forgives_a_shift() -> None:
    names = hosts("xnode02.east", "nodeab.west")
    assert order().of(names, LoadBalancing.HOSTNAME_LEVENSHTEIN_DISTANCE)[0] == 0


def test_common_beginnings_and_ends_are_counted_in_characters() -> None:
    names = hosts("xnode02.east", "node01.north", "n.east")
    assert order().of(names, LoadBalancing.HOSTNAME_LONGEST_COMMON_PREFIX)[0] == 1
    assert order().of(names, LoadBalancing.HOSTNAME_LONGEST_COMMON_SUFFIX)[0] == 0


def test_first_or_random_begins_with_the_one_at_the_offset() -> None:
    names = hosts("a", "b", "c")
    seconds = Counter(
        order(seed).of(names, LoadBalancing.FIRST_OR_RANDOM, first_offset=4)[:2] for seed in range(60)
    )
    assert set(seconds) == {(1, 0), (1, 2)}


def test_round_robin_gives_everybody_a_turn() -> None:
    turns, names = order(), hosts("a", "b", "c")
    firsts = [turns.of(names, LoadBalancing.ROUND_ROBIN)[0] for _ in range(6)]
    assert sorted(firsts[:3]) == [0, 1, 2]
    assert firsts[:3] == firsts[3:]


def test_random_reaches_everybody() -> None:
    firsts = {order(seed).of(hosts("a", "b", "c"))[0] for seed in range(60)}
    assert firsts == {0, 1, 2}
