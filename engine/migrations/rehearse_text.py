"""The text of a statement as a lone chDB can carry it out. Pure.

ON CLUSTER goes. A replicated engine becomes its plain family, without the arguments for Keeper. An engine
that reaches other servers becomes `Null`, which has the same columns and holds nothing. What has no
counterpart in one process, such as SYSTEM or users, is not rehearsed and says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.sql import StatementKind, Token, TokenKind, parse_statement, tokenize, without_on_cluster

_REPLICATED = re.compile(r"(?:Replicated|Shared)(\w*MergeTree)\Z")
_FAR = frozenset(
    {
        *("Distributed", "Kafka", "RabbitMQ", "NATS", "MySQL", "PostgreSQL", "MongoDB", "Redis", "S3Queue"),
        *("MaterializedPostgreSQL", "JDBC", "ODBC", "HDFS", "AzureQueue", "ZooKeeper", "KeeperMap"),
    }
)
_ACCESS = re.compile(
    r"(?:CREATE|ALTER|DROP) (?:USER|ROLE|QUOTA|ROW POLICY|MASKING POLICY|SETTINGS PROFILE)|GRANT|REVOKE|"
    r"MOVE ACCESS ENTITY"
)
_ELSEWHERE = frozenset(
    {
        *(StatementKind.SYSTEM, StatementKind.KILL_QUERY, StatementKind.KILL_MUTATION, StatementKind.BACKUP),
        *(StatementKind.RESTORE, StatementKind.KILL_OTHER),
    }
)


@dataclass(frozen=True, slots=True)
class Rehearsable:
    """`sql` to run, or None and the reason in `note`. With both, `note` says what was replaced."""

    sql: str | None
    note: str = ""


def for_rehearsal(sql: str) -> Rehearsable:
    """`sql` as it would be sent, databases and macros filled in."""
    parsed = parse_statement(sql)
    if parsed.kind in _ELSEWHERE:
        return Rehearsable(None, f"{parsed.kind} concerns the server, not the schema")
    if _ACCESS.match(parsed.kind.value):
        return Rehearsable(None, "users and rights are the server's")
    plain = without_on_cluster(sql)
    engine = parsed.engine or ""
    replicated = _REPLICATED.match(engine)
    if replicated:
        return Rehearsable(
            _replace_engine(plain, engine, replicated[1], drops_keeper_arguments=True),
            f"{engine} as {replicated[1]}",
        )
    if engine == "Replicated":
        return Rehearsable(_drop_engine(plain, engine), "Replicated database as the default engine")
    if engine in _FAR:
        return _without_far_engine(plain, engine)
    return Rehearsable(plain)


def _without_far_engine(sql: str, engine: str) -> Rehearsable:
    words = [token.text.upper() for token in tokenize(sql) if token.is_significant]
    before_engine = words[: words.index(engine.upper())]
    if "(" not in before_engine and "AS" not in before_engine:
        return Rehearsable(None, f"{engine} takes its columns from another server")
    return Rehearsable(
        _replace_engine(sql, engine, "Null", drops_all=True), f"{engine} as Null: its columns are rehearsed"
    )


def _replace_engine(
    sql: str, engine: str, by: str, *, drops_keeper_arguments: bool = False, drops_all: bool = False
) -> str:
    """The engine's name in the ENGINE clause and, as asked, its first string arguments or all arguments."""
    tokens = tokenize(sql)
    at = _engine_at(tokens, engine)
    if at is None:
        return sql
    significant = [token for token in tokens[at:] if token.is_significant]
    end = tokens[at].end
    arguments = ""
    if len(significant) > 1 and significant[1].text == "(":
        close = _closing(significant)
        end = significant[close].end
        inner = significant[2:close]
        if not drops_all:
            if drops_keeper_arguments:
                inner = _after_strings(inner)
            if inner:
                arguments = f"({sql[inner[0].start : inner[-1].end]})"
    tail = sql[end:]
    if drops_all:
        # ORDER BY and the like belong to no engine that holds nothing; AS SELECT and COMMENT may stay.
        tail = re.sub(r"(?is)^\s*SETTINGS\b.*?(?=\bAS\b|\bCOMMENT\b|$)", " ", tail)
    return sql[: tokens[at].start] + by + arguments + tail


def _drop_engine(sql: str, engine: str) -> str:
    """Without the whole clause `ENGINE = engine(…)`."""
    tokens = tokenize(sql)
    at = _engine_at(tokens, engine)
    if at is None:
        return sql
    start = next(t.start for t in reversed(tokens[:at]) if t.is_significant and t.text.upper() == "ENGINE")
    significant = [token for token in tokens[at:] if token.is_significant]
    end = tokens[at].end
    if len(significant) > 1 and significant[1].text == "(":
        end = significant[_closing(significant)].end
    return sql[:start] + sql[end:]


def _engine_at(tokens: list[Token], engine: str) -> int | None:
    """The index of the engine's name: behind ENGINE, with or without `=`."""
    before: list[str] = []
    for at, token in enumerate(tokens):
        if not token.is_significant:
            continue
        if token.text == engine and [w for w in before[-2:] if w != "="][-1:] == ["ENGINE"]:
            return at
        before.append(token.text.upper())
    return None


def _closing(significant: list[Token]) -> int:
    """The index of the parenthesis that closes the one at index 1."""
    depth = 0
    for at, token in enumerate(significant[1:], start=1):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return at
    return len(significant) - 1


def _after_strings(inner: list[Token]) -> list[Token]:
    """Engine arguments without the leading path and name of the replica."""
    at = 0
    for _ in range(2):
        if at < len(inner) and inner[at].kind is TokenKind.STRING:
            at += 1
            if at < len(inner) and inner[at].text == ",":
                at += 1
        else:
            break
    return inner[at:]
