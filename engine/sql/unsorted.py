"""The engine of a MergeTree table that is made like another one, and keeps its rows as they come.

chDB takes for `CREATE TABLE x AS t ENGINE = MergeTree …` each clause of `t` that is not said anew: with ORDER
BY tuple() alone it refuses (36) where `t` has a PRIMARY KEY or SAMPLE BY of its own. No clause takes a SAMPLE
BY away; the setting lets it stand without its key.
"""

from __future__ import annotations


def unsorted_engine() -> str:
    """What stands behind ENGINE."""
    return (
        "MergeTree PARTITION BY tuple() PRIMARY KEY tuple() ORDER BY tuple() SETTINGS "
        "allow_nullable_key = 1, allow_floating_point_partition_key = 1, "
        "compatibility_allow_sampling_expression_not_in_primary_key = 1"
    )
