"""`system.zookeeper`: the children of the znodes that the WHERE clause names.

As in ClickHouse a query has to say which: `path = '…'` or `path IN ('…', …)`, with constant expressions and
subqueries in place of literals, which may use what WITH has named. A znode that is not there has no children.
Who may only read, by the profile or by SET, sees no secrets of statements in the values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.ddl.text import decode_bytes
from engine.errors import Code, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.node.keeper_access import KeeperAccess
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Provide, Row, provide_as_it_is
from engine.node.system.znode_redaction import redacted_value
from engine.sql import Token, TokenKind, parse_statement
from engine.sql.tokens import name_of
from engine.storage import Scope

_WAIT_S = 10.0
_END_WORDS = frozenset(
    {"AND", "OR", "GROUP", "ORDER", "LIMIT", "OFFSET", "FORMAT", "SETTINGS", "UNION", "HAVING", "EXCEPT"}
    | {"INTERSECT", "WINDOW", "QUALIFY", "XOR", "PREWHERE", "AS"}
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True, slots=True)
class PathExpression:
    """What `path` is compared with, and what the WITH clauses around it say, outermost first."""

    text: str
    clauses: tuple[str, ...] = ()

    @property
    def select(self) -> str:
        """Of its values, one a row."""
        before = f"WITH {', '.join(self.clauses)} " if self.clauses else ""
        text = self.text.strip()
        if text.lstrip("( ").upper().startswith(("SELECT", "WITH")):
            return f"{before}SELECT toString(*) FROM ({text})"
        return f"{before}SELECT arrayJoin(arrayFlatten([{text}]))::String"


class ZooKeeperTable:
    name = "zookeeper"
    columns = (
        "name String, value String, czxid Int64, mzxid Int64, ctime DateTime, mtime DateTime, "
        "version Int32, cversion Int32, aversion Int32, ephemeralOwner Int64, dataLength Int32, "
        "numChildren Int32, pzxid Int64, path String"
    )

    def __init__(self, keeper: KeeperAccess | None) -> None:
        self._keeper = keeper
        self.provide: Provide = provide_as_it_is
        """For subqueries that read tables of the node's own, such as this one."""

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        """Raises SqlError 36 without a condition on `path`, KeeperUnavailable."""
        expressions = path_expressions(asked.sql, tokens)
        if not expressions:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                "SELECT from system.zookeeper table must contain condition like path = 'path' or path IN "
                "('path1','path2'...) or path IN (subquery) in WHERE clause",
            )
        paths = [path for expression in expressions for path in await self._evaluate(asked, expression)]
        if self._keeper is None:
            raise SqlError(Code.NO_ZOOKEEPER, "There is no Zookeeper configuration in server config")
        keeper = await self._keeper.get(timeout_s=_WAIT_S)
        rows: list[dict[str, object]] = []
        for path in dict.fromkeys(paths):
            rows += await _children_rows(keeper, path)
        if asked.session.is_readonly:
            await asyncio.to_thread(_hide_secrets, rows)  # a long list takes its time
        return rows

    async def _evaluate(self, asked: Asked, expression: PathExpression) -> list[str]:
        """The values of a constant expression or subquery, by chDB."""
        inner = replace(asked, sql=expression.select, session=asked.session.clone())
        async with self.provide(inner, parse_statement(inner.sql)) as (sql, session):
            result = await session.query(
                sql, format="JSONCompactEachRow", params=asked.params, scope=Scope(database=asked.database)
            )
        # A path that is no UTF-8 is no znode's, and neither is one with a U+FFFD.
        return [json.loads(line.decode("utf-8", "replace"))[0] for line in result.data.splitlines()]


def path_expressions(sql: str, tokens: list[Token]) -> list[PathExpression]:
    """What `path` is compared with: behind `path =`, before `= path`, and in `path IN (…)`."""
    found = []
    for at, token in enumerate(tokens):
        is_path = name_of(token) == "path"
        if not is_path or (at + 1 < len(tokens) and tokens[at + 1].text == "."):
            continue
        following = tokens[at + 1].text.upper() if at + 1 < len(tokens) else ""
        text = ""
        if following in ("=", "=="):
            text = _text(sql, tokens, at + 2)
        elif following == "IN":
            text = _text(sql, tokens, at + 2)
            if text[:1] in "([":
                text = text[1:-1]
        elif at >= 2 and tokens[at - 1].text in ("=", "==") and tokens[at - 2].kind is TokenKind.STRING:
            text = tokens[at - 2].text
        if text:
            clauses = _with_clauses(sql, tokens, at)
            found.append(PathExpression(text if clauses else _literal_called(text, tokens), clauses))
    return found


def _literal_called(name: str, tokens: list[Token]) -> str:
    """The string that SELECT calls so (`SELECT '/a' AS p … WHERE path = p`), else the name itself."""
    for literal, word, alias in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if literal.kind is TokenKind.STRING and word.text.upper() == "AS" and alias.text == name:
            return literal.text
    return name


def _with_clauses(sql: str, tokens: list[Token], at: int) -> tuple[str, ...]:
    """What stands between WITH and SELECT, for each SELECT around a token."""
    found: list[str] = []
    depth, select_at = 0, 0
    for index in range(at - 1, -1, -1):
        token = tokens[index]
        if token.kind is TokenKind.PUNCTUATION and token.text in _CLOSE:
            depth += 1
        elif token.kind is TokenKind.PUNCTUATION and token.text in _OPEN:
            if depth == 0:
                select_at = 0  # from here on it is the statement around this one
            depth = max(0, depth - 1)
        elif depth == 0 and token.kind is TokenKind.WORD:
            match token.text.upper():
                case "SELECT":
                    select_at = index
                case "WITH" if select_at > index + 1:
                    found.insert(0, sql[tokens[index + 1].start : tokens[select_at - 1].end])
                    select_at = 0
                case _:
                    pass
    return tuple(found)


def _text(sql: str, tokens: list[Token], start: int) -> str:
    """One operand: up to a word that ends it, or the bracket around it."""
    depth = 0
    end = start
    while end < len(tokens):
        token = tokens[end]
        if token.kind is TokenKind.PUNCTUATION:
            if token.text in _OPEN:
                depth += 1
            elif token.text in _CLOSE:
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0 and token.text in (",", ";"):
                break
        elif depth == 0 and token.kind is TokenKind.WORD and token.text.upper() in _END_WORDS:
            break
        end += 1
    return sql[tokens[start].start : tokens[end - 1].end] if end > start else ""


async def _children_rows(keeper: Keeper, path: str) -> list[dict[str, object]]:
    znode = path.rstrip("/") or "/"
    [children] = await keeper.children_many([znode])
    if not isinstance(children, Children):
        return []
    prefix = "/" if znode == "/" else f"{znode}/"
    nodes = await keeper.get_many([prefix + name for name in children.names])
    return [
        _row(path, name, node)
        for name, node in zip(children.names, nodes, strict=True)
        if isinstance(node, Node)  # else removed while we were reading
    ]


def _hide_secrets(rows: list[dict[str, object]]) -> None:
    for row in rows:
        row["value"] = redacted_value(str(row["value"]))


def _row(path: str, name: str, node: Node) -> dict[str, object]:
    stat = node.stat
    return {
        "name": name,
        "value": decode_bytes(node.data),
        "czxid": stat.czxid,
        "mzxid": stat.mzxid,
        "ctime": stat.ctime_ms // 1000,
        "mtime": stat.mtime_ms // 1000,
        "version": stat.version,
        "cversion": stat.cversion,
        "aversion": stat.aversion,
        "ephemeralOwner": stat.ephemeral_owner,
        "dataLength": stat.data_length,
        "numChildren": stat.num_children,
        "pzxid": stat.pzxid,
        "path": path,
    }
