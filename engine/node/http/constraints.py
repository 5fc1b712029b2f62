"""Constraints of a user's profile hold for what it sets in a request: in its URL, by SET, by SETTINGS, and
for settings of tables that it makes or alters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.config.model import User
from engine.config.profiles import OF_TABLES
from engine.errors import SqlError
from engine.node.distributed.reading.chdb_request import DEPTH
from engine.node.http.query import HttpQuery
from engine.sql import StatementKind, parse_statement
from engine.sql.settings_clauses import all_settings, table_settings
from engine.storage.setting_rules import SettingRules

_SET_NONE_OF_TABLES = frozenset({StatementKind.SELECT, StatementKind.INSERT, StatementKind.SET})


class Constraints:
    """Who may change no setting at all (`readonly = 1`) is refused by chDB."""

    def __init__(self, rules: SettingRules, profiles: Mapping[str, Mapping[str, str]]) -> None:
        self._rules = rules
        self._profiles = profiles

    async def of_request(self, user: User, query: HttpQuery) -> HttpQuery:
        """The request, of its URL. Raises SqlError 452; what another node passes on with its part of a
        statement is left out instead, as ClickHouse clamps the settings of secondary queries."""
        if not query.settings or not self._concern(user):
            return query
        if DEPTH.match(query.query) is None:
            await self._rules.check(user.profile, query.settings.items())
            return query
        allowed: dict[str, str] = {}
        for name, value in query.settings.items():
            try:
                await self._rules.check(user.profile, [(name, value)])
            except SqlError:
                continue
            allowed[name] = value
        return replace(query, settings=allowed)

    async def of_statement(self, user: User, sql: str) -> None:
        """Raises SqlError 452."""
        if self._concern(user):
            settings = [(setting.name, setting.value) for setting in all_settings(sql)]
            if parse_statement(sql).kind not in _SET_NONE_OF_TABLES:
                settings += [(OF_TABLES + each.name, each.value) for each in table_settings(sql)]
            await self._rules.check(user.profile, settings)

    def _concern(self, user: User) -> bool:
        is_fixed = self._profiles.get(user.profile, {}).get("readonly") == "1"
        return not is_fixed and self._rules.concern(user.profile)
