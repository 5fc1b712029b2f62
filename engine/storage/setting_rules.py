"""Constraints of profiles, asked of chDB: it has each as a profile of its own, without settings.

What a client wants to set is tried in a connection with the settings and the constraints of its user's
profile, before its statement runs in one without constraints: there the node sets things, too. What was
allowed once is remembered.

Source: ClickHouse's SettingsConstraints::check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from engine.config.profiles import Constraint
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.storage.chdb_pool import ChdbPool
from engine.storage.errors import translated
from engine.storage.layout import rules_profile
from engine.storage.scope import set_statement
from engine.storage.statement_text import sendable

_MOST_REMEMBERED = 10_000
_NONE: Mapping[str, Any] = MappingProxyType({})


class SettingRules:
    """Of one node, by profile."""

    def __init__(
        self,
        pool: ChdbPool,
        constraints: Mapping[str, Mapping[str, Constraint]] = _NONE,
        profiles: Mapping[str, Mapping[str, str]] = _NONE,
        *,
        aliases: Mapping[str, str] = _NONE,
        usual: Mapping[str, str] = _NONE,
    ) -> None:
        """`constraints` and settings (`profiles`) by profile. `aliases`: other names of settings that are
        constrained. `usual`: what DEFAULT makes of them."""
        self._pool = pool
        self._profiles = profiles
        self._aliases = aliases
        self._usual = usual
        self._names = {
            profile: frozenset(aliases.get(name, name) for name in rules)
            for profile, rules in constraints.items()
        }
        self._chdb_profiles = {each: rules_profile(at, each) for at, each in enumerate(constraints)}
        self._allowed: set[tuple[str, str, str]] = set()

    @classmethod
    async def open(
        cls,
        pool: ChdbPool,
        constraints: Mapping[str, Mapping[str, Constraint]],
        profiles: Mapping[str, Mapping[str, str]],
    ) -> Self:
        """`constraints` are those that chDB was started with."""
        names = sorted({name for rules in constraints.values() for name in rules})
        if not names:
            return cls(pool)
        said = ", ".join(map(quote_string, names))
        real = f"SELECT if(alias_for = '', name, alias_for) FROM system.settings WHERE name IN ({said})"
        result = await pool.query(
            "SELECT name, alias_for, default FROM system.settings "
            f"WHERE name IN ({real}) OR alias_for IN ({real})",
            format="JSONCompactEachRow",
        )
        rows = [json.loads(line) for line in result.data.splitlines()]
        return cls(
            pool,
            constraints,
            profiles,
            aliases={name: alias_for for name, alias_for, _ in rows if alias_for},
            usual={name: default for name, _, default in rows},
        )

    def concern(self, profile: str) -> bool:
        """Whether the profile has any."""
        return profile in self._names

    async def check(self, profile: str, settings: Iterable[tuple[str, str]]) -> None:
        """What a user of the profile sets, as name and text; DEFAULT is one. Raises SqlError 452."""
        names = self._names.get(profile)
        if names is None:
            return
        changes = [self._change(profile, name, value) for name, value in settings]
        new = [each for each in changes if each[1] in names and each not in self._allowed]
        if not new:
            return
        await self._pool.control(partial(self._try, profile, new))
        if len(self._allowed) > _MOST_REMEMBERED:
            self._allowed.clear()
        self._allowed.update(new)

    def _change(self, profile: str, name: str, value: str) -> tuple[str, str, str]:
        name = self._aliases.get(name, name)
        return profile, name, self._usual.get(name, value) if value.upper() == "DEFAULT" else value

    def _try(self, profile: str, changes: Iterable[tuple[str, str, str]]) -> None:
        given = {k: v for k, v in self._profiles.get(profile, {}).items() if k != "readonly"}
        rules = {"profile": self._chdb_profiles[profile]}
        connection = self._pool.connect()
        try:
            for each in (given, rules):
                if each:
                    connection.query(sendable(set_statement(each)))
            for _, name, value in changes:
                sql = f"SET {quote_identifier(name)} = {quote_string(value)}"
                try:
                    translated(partial(connection.query, sendable(sql)))
                except SqlError as error:
                    if error.code == Code.SETTING_CONSTRAINT_VIOLATION:
                        raise
                    # Whatever else is wrong with the value, the statement itself says it.
        finally:
            connection.close()
