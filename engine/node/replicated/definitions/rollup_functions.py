"""Aggregate functions in rollup rules by their own names: the hash of the rules is made of those.

A configuration may say `SUM` or `any_value`; ClickHouse hashes `sum` and `any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.config.graphite import GraphitePattern, GraphiteRollup
from engine.node.replicated.running.local_tables import LocalTables


async def with_own_names(
    rollups: Mapping[str, GraphiteRollup], local: LocalTables
) -> Mapping[str, GraphiteRollup]:
    """The same rules; a function that chDB does not know stays as it is, and CREATE TABLE complains."""
    if not rollups:
        return rollups
    rows = await local.rows(
        "SELECT name, if(alias_to = '', name, alias_to), case_insensitive FROM system.functions "
        "WHERE is_aggregate"
    )
    own = {str(name): str(real) for name, real, _ in rows}
    in_any_case = {str(name).lower(): str(real) for name, real, is_any_case in rows if int(is_any_case)}

    def named(pattern: GraphitePattern) -> GraphitePattern:
        name, bracket, parameters = pattern.function.partition("(")
        name = name.strip()
        real = own.get(name) or in_any_case.get(name.lower(), name)
        real = own.get(real, real)  # a name may lead to another name for the same function
        return replace(pattern, function=f"{real}{bracket}{parameters}")

    return {
        section: replace(
            rollup,
            patterns=tuple(map(named, rollup.patterns)),
            default=None if rollup.default is None else named(rollup.default),
        )
        for section, rollup in rollups.items()
    }
