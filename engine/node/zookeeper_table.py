"""`system.zookeeper`: the children of the znodes that the WHERE clause names.

As in ClickHouse a query has to say which: `path = '…'` or `path IN ('…', …)`, with constant expressions and
subqueries in place of literals. A znode that is not there has no children.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from engine.errors import Code, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.node.keeper_access import KeeperAccess
from engine.node.statement import Asked
from engine.node.system_tables import Row
from engine.sql import Token, TokenKind
from engine.sql.tokens import literal_value
from engine.storage import Scope

_WAIT_S = 10.0
_END_WORDS = frozenset(
    {"AND", "OR", "GROUP", "ORDER", "LIMIT", "OFFSET", "FORMAT", "SETTINGS", "UNION", "HAVING", "EXCEPT"}
    | {"INTERSECT", "WINDOW", "QUALIFY", "XOR", "PREWHERE", "AS"}
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


class ZooKeeperTable:
    name = "zookeeper"
    columns = (
        "name String, value String, czxid Int64, mzxid Int64, ctime DateTime, mtime DateTime, "
        "version Int32, cversion Int32, aversion Int32, ephemeralOwner Int64, dataLength Int32, "
        "numChildren Int32, pzxid Int64, path String"
    )

    def __init__(self, keeper: KeeperAccess | None) -> None:
        self._keeper = keeper

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
        rows: list[Row] = []
        for path in dict.fromkeys(paths):
            rows += await _children_rows(keeper, path)
        return rows

    async def _evaluate(self, asked: Asked, expression: str) -> list[str]:
        """The values of a constant expression or subquery, by chDB."""
        session = asked.session.clone()
        scope = Scope(database=asked.database)
        result = await session.query(
            f"SELECT arrayJoin(arrayFlatten([{expression}]))::String"
            if not expression.lstrip("( ").upper().startswith(("SELECT", "WITH"))
            else f"SELECT toString(*) FROM ({expression.strip()})",
            format="JSONCompactEachRow",
            params=asked.params,
            scope=scope,
        )
        return [json.loads(line)[0] for line in result.data.splitlines()]


def path_expressions(sql: str, tokens: list[Token]) -> list[str]:
    """The texts that `path` is compared with: behind `path =`, before `= path`, and in `path IN (…)`."""
    found = []
    for at, token in enumerate(tokens):
        is_path = token.kind in (TokenKind.WORD, TokenKind.IDENTIFIER) and literal_value(token) == "path"
        if not is_path or (at + 1 < len(tokens) and tokens[at + 1].text == "."):
            continue
        following = tokens[at + 1].text.upper() if at + 1 < len(tokens) else ""
        if following in ("=", "=="):
            found.append(_text(sql, tokens, at + 2))
        elif following == "IN":
            inner = _text(sql, tokens, at + 2)
            if inner[:1] in "([":
                inner = inner[1:-1]
            found.append(inner)
        elif at >= 2 and tokens[at - 1].text in ("=", "==") and tokens[at - 2].kind is TokenKind.STRING:
            found.append(tokens[at - 2].text)
    return [text for text in found if text]


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


async def _children_rows(keeper: Keeper, path: str) -> list[Row]:
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


def _row(path: str, name: str, node: Node) -> Row:
    stat = node.stat
    return {
        "name": name,
        "value": node.data.decode("utf-8", "surrogateescape"),
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
