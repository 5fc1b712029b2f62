"""Which shards a SELECT needs: `optimize_skip_unused_shards` leaves out those that can have none of its rows.

A shard is left out only where the statement compares the columns of the sharding key with constants, and the
key gives the same shard for the same values every time. Else all shards are read, which is always right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.distributed.peers import PeerShard
from engine.distributed.select import RemoteSelect
from engine.distributed.select.deterministic import is_deterministic
from engine.distributed.select.shard_choice import IS_EXACT, key_columns, rows_of_constants
from engine.distributed.sharding import owner_of, slot_count, slot_expression
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.distributed.reading.zones import has_session_zone
from engine.node.statements.asked_settings import flag, number
from engine.storage import ChdbPool

_ANY_KEY = "allow_nondeterministic_optimize_skip_unused_shards"


async def needed_shards(
    shards: Sequence[PeerShard],
    select: RemoteSelect,
    sharding_key: str,
    column_types: Mapping[str, str],
    settings: Mapping[str, str],
    pool: ChdbPool,
) -> Sequence[PeerShard]:
    """Raises SqlError 507 where none can be left out and `force_optimize_skip_unused_shards` insists."""
    if not flag(settings, "optimize_skip_unused_shards", False):
        return shards
    why = "No sharding key"
    if sharding_key:
        why = "Sharding key is not deterministic"
        if flag(settings, _ANY_KEY, False) or is_deterministic(sharding_key, column_types):
            why = f"Sharding key {sharding_key} is not used"
            weights = [shard.weight for shard in shards]
            numbers = await _owners(weights, select, sharding_key, column_types, settings, pool)
            if numbers is not None:
                return [shard for at, shard in enumerate(shards) if at in numbers]
    force = int(number(settings, "force_optimize_skip_unused_shards", 0))
    if force == 2 or (force == 1 and sharding_key):
        raise SqlError(Code.UNABLE_TO_SKIP_UNUSED_SHARDS, why)
    return shards


async def _owners(
    weights: Sequence[int],
    select: RemoteSelect,
    sharding_key: str,
    column_types: Mapping[str, str],
    settings: Mapping[str, str],
    pool: ChdbPool,
) -> set[int] | None:
    """The shards (counted from 0) that own rows with these constants; None where that is not known."""
    wanted = key_columns(sharding_key, column_types)
    rows = rows_of_constants(select.pruned_by, wanted, column_types)
    if not rows:
        return None
    types = ", ".join(
        f"defaultValueOfTypeName({quote_string(column_types[name])}) AS {quote_identifier(name)}"
        for name in wanted
    )
    limit = int(number(settings, "optimize_skip_unused_shards_limit", 1000))
    zone = settings.get("session_timezone", "")
    if zone and any(has_session_zone(column_types[name]) for name in wanted):
        return None  # the key may have been evaluated in another zone
    try:
        asked = f"SELECT toTypeName({sharding_key}) FROM (SELECT {types})"
        key_type = (await pool.query(asked, format="TSVRaw")).text.strip()
        slot = slot_expression(sharding_key, key_type, slot_count(weights))
        asked = f"SELECT {slot}, {IS_EXACT} FROM {rows} LIMIT {limit + 1}"
        in_zone = {"session_timezone": zone} if zone else {}
        found = await pool.query(asked, format="TSVRaw", settings=in_zone)
    except SqlError:
        return None
    lines = [line.split("\t") for line in found.text.splitlines()]
    if len(lines) > limit or any(is_exact != "1" for _, is_exact in lines):
        return None
    return {owner_of(int(at), weights) for at, _ in lines}
