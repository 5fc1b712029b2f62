"""One sharding key, one shard for a row: whoever evaluates it, on values of the same types.

A node evaluates it on values as the Distributed table declares them, Spark and the check of what was staged
on those that the local tables store. Hashes of one number in two types differ.
"""

from __future__ import annotations

import re

from engine.errors import ConfigError
from engine.names import quote_identifier
from engine.sql.tokens import literal_value, tokenize
from spark_apps.clickhouse_cluster.options import Placement
from spark_apps.clickhouse_cluster.target import Target

_LOW_CARDINALITY = re.compile(r"^LowCardinality\((.*)\)$")


def require_types_of_key(target: Target) -> None:
    """Raises ConfigError where a column of the key has another type in the local tables."""
    if target.placement is not Placement.BY_KEY or len(target.shards) == 1:
        return
    in_key = {literal_value(token) for token in tokenize(target.sharding_key) if token.is_name}
    for declared in target.columns_of_distributed:
        stored = target.column(declared.name)
        if declared.name not in in_key or stored is None or _hashed(declared.type) == _hashed(stored.type):
            continue
        raise ConfigError(
            f"{declared.name} of the sharding key {target.sharding_key} is {declared.type} in {target.name} "
            f"and {stored.type} in {target.table}: an INSERT and Spark would choose other shards for a row.",
            hint=f"Give it one type: ALTER TABLE {target.name.quoted} MODIFY COLUMN "
            f"{quote_identifier(declared.name)} {stored.type} on every node.",
        )


def _hashed(type_: str) -> str:
    """The type as far as a hash of its values depends on it."""
    return _LOW_CARDINALITY.sub(r"\1", type_)
