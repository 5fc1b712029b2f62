"""Which shard a row belongs to. One function for node, Spark and server.

A shard owns as many consecutive slots as its weight says; a row goes to the shard that owns slot
`key mod number of slots`. The key is any integer expression and is evaluated by ClickHouse itself; here is
only the text around it. A signed key counts as unsigned: of 32 bits up to that width, of 64 bits above.

Source: ClickHouse's createBlockSelector and Cluster (slot_to_shard), versions 18.16 to 26.9 alike.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from engine.errors import Code, SqlError

_INTEGER = re.compile(r"(U?)Int(8|16|32|64)\Z")
_BOOL = {"Bool": "UInt8"}
_FEW_SLOTS = 1000
_AROUND = re.compile(r"(?:LowCardinality\(|SimpleAggregateFunction\(\w+(?:\([^()]*\))?, )(.*)\)\Z", re.DOTALL)
"""Types that are stored as the one in them."""


def slots(weights: Sequence[int]) -> tuple[int, ...]:
    """By slot, the index (from 0) of the shard that owns it. A shard of weight 0 owns none.

    Raises SqlError 36 when no shard owns any.
    """
    slot_count(weights)
    return tuple(shard for shard, weight in enumerate(weights) for _ in range(weight))


def slot_count(weights: Sequence[int]) -> int:
    """How many slots there are, which may be billions. Raises SqlError 36 when there is none."""
    count = sum(weights)
    if not count:
        raise SqlError(Code.BAD_ARGUMENTS, "Every shard of the cluster has weight 0: no row can be written.")
    return count


def owner_of(slot: int, weights: Sequence[int]) -> int:
    """The index (from 0) of the shard that owns a slot."""
    return bisect_right(list(accumulate(weights)), slot)


def owner_expression(slot: str, weights: Sequence[int]) -> str:
    """SQL for the same, where `slot` is SQL for the slot. It is evaluated once: it may be `rand()`."""
    if all(weight == 1 for weight in weights):
        return slot
    if slot_count(weights) <= _FEW_SLOTS:
        return f"toUInt32([{', '.join(map(str, slots(weights)))}][{slot} + 1])"
    ends = [
        (end, at) for at, (end, weight) in enumerate(zip(accumulate(weights), weights, strict=True)) if weight
    ]
    below = ", ".join(f"slot < {end}, {at}" for end, at in ends[:-1])
    last = ends[-1][1]
    return f"toUInt32(arrayMap(slot -> {f'multiIf({below}, {last})' if below else last}, [{slot}])[1])"


def slot_expression(key: str, key_type: str, slot_count: int) -> str:
    """SQL for the slot of a row. `key` is the sharding expression, `key_type` its type (`toTypeName`).

    Raises SqlError 53 TYPE_MISMATCH for a key that is no integer of 8 to 64 bits.
    """
    inner = _AROUND.match(key_type)
    match = _INTEGER.match(_BOOL.get(key_type, inner.group(1) if inner else key_type))
    if match is None:
        raise SqlError(
            Code.TYPE_MISMATCH,
            f"Sharding expression has type {key_type}, but should be one of integer type",
            hint="Wrap it in a hash, such as cityHash64(…), or in toUInt64(…).",
        )
    is_unsigned, bits = match.group(1) == "U", int(match.group(2))
    if is_unsigned:
        number = f"({key})"
    else:
        number = f"{'toUInt64' if bits == 64 else 'toUInt32'}({key})"
    return f"{'toUInt32' if slot_count <= 1 << 32 else 'toUInt64'}({number} % {slot_count})"
