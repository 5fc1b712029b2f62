"""Servers that have definitions and nothing else, for tests of drift and of the standby cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.client.node_client import QueryRows
from engine.errors import NodeUnavailable, SqlError
from engine.operations.drift.gather import _WANTED
from engine.sql import parse_statement

_FROM = re.compile(r"FROM system\.(\w+)")


@dataclass
class FakeServer:
    """`tables` maps "db.table" to (engine, text). What is run is kept in `ran`; `effects` maps a statement's
    beginning to what it makes of a table."""

    url: str = "http://fake"
    tables: dict[str, tuple[str, str]] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=lambda: {"d": "Atomic"})
    replicas: dict[str, tuple[str, str]] = field(default_factory=dict)
    macros: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    effects: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    server_version: tuple[int, ...] = (26, 9, 1)
    missing: frozenset[tuple[str, str]] = frozenset()
    is_down: bool = False
    answers: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)

    async def version(self) -> tuple[int, ...]:
        if self.is_down:
            raise NodeUnavailable("Connection refused.")
        return self.server_version

    async def query_rows(self, sql: str, **_: Any) -> QueryRows:
        if self.is_down:
            raise NodeUnavailable("Connection refused.")
        table = _FROM.search(sql)
        assert table is not None, sql
        rows = self._rows(table[1])
        for column in ("name", "database"):
            wanted = re.search(rf"\b{column} = '([^']*)'", sql)
            if wanted and table[1] != "columns":
                rows = [row for row in rows if row[column] == wanted[1]]
        names = [name.strip() for name in sql.partition("SELECT")[2].partition("FROM")[0].split(",")]
        columns = tuple((name, "String") for name in names)
        return QueryRows(columns, tuple(tuple(row.get(name, "") for name in names) for row in rows))

    def _rows(self, table: str) -> list[dict[str, Any]]:
        match table:
            case _ if table in self.answers:
                return self.answers[table]
            case "columns":
                pairs = [(of, name) for of, names in _WANTED.items() for name in names]
                return [{"table": of, "name": name} for of, name in pairs if (of, name) not in self.missing]
            case "databases":
                return [{"name": name, "engine": engine} for name, engine in self.databases.items()]
            case "tables":
                return [
                    {
                        "database": name.partition(".")[0],
                        "name": name.partition(".")[2],
                        "engine": engine,
                        "create_table_query": text,
                    }
                    for name, (engine, text) in self.tables.items()
                ]
            case "functions":
                return [
                    {"name": name, "create_query": text, "origin": "SQLUserDefined"}
                    for name, text in self.functions.items()
                ]
            case "replicas":
                return [
                    {
                        "database": name.partition(".")[0],
                        "table": name.partition(".")[2],
                        "zookeeper_path": path,
                        "replica_name": replica,
                    }
                    for name, (path, replica) in self.replicas.items()
                ]
            case "settings":
                return []
            case "macros":
                return [{"macro": name, "substitution": value} for name, value in self.macros.items()]
        raise SqlError(60, f"Table system.{table} does not exist")

    async def command(self, sql: str, **_: Any) -> str:
        self.ran.append(sql)
        for beginning, (name, engine, text) in self.effects.items():
            if sql.startswith(beginning):
                self.tables[name] = (engine, text)
                return ""
        statement = parse_statement(sql)
        if statement.kind.value == "CREATE DATABASE":
            self.databases[statement.database or ""] = "Atomic"
        elif statement.tables:
            table = statement.tables[0]
            plain = sql.replace(" IF NOT EXISTS", "")
            self.tables[f"{table.database}.{table.table}"] = (statement.engine or "View", plain)
        return ""
