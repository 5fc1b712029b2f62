"""The text of a statement as a lone chDB can carry it out. Pure.

What runs here must reach nothing but this process, because nobody has approved it yet: emptying a table of
the engine S3 empties the bucket. So an engine that reaches other servers, or files, becomes `Null`, which has
the same columns and holds nothing; tables are made without the rows of their SELECT; and disks, volumes and
storage policies, which are the servers', become the default ones.

ON CLUSTER goes. A replicated engine becomes its plain family, without the arguments for Keeper. What has no
counterpart in one process, such as SYSTEM or users, is not rehearsed and says why.

A Distributed table is made over the scratch's cluster, which nobody reaches: what it is made of (its sharding
key, arguments and settings), and every ALTER of it, chDB judges as a host does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.names import quote_string
from engine.sql import (
    AlterCommand,
    Statement,
    StatementKind,
    Token,
    TokenKind,
    parse_statement,
    tokenize,
    without_on_cluster,
)
from engine.sql.edit import Edit, apply_edits
from engine.sql.engine_clause import engine_at
from engine.storage.scratch import UNREACHABLE_CLUSTER

_REPLICATED = re.compile(r"(?:Replicated|Shared)(\w*MergeTree)\Z")
_HERE = re.compile(
    r"(?:\w*MergeTree|Memory|Null|Set|Join|(?:Tiny|Stripe)?Log|EmbeddedRocksDB|Buffer|Merge|Alias|Dictionary"
    r"|GenerateRandom|Fuzz\w+|TimeSeries|Atomic|Ordinary|Lazy)\Z"
)
"""Engines of tables and databases that keep what they hold in this process."""
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
_BEHIND_ENGINES = frozenset({"AS", "EMPTY", "CLONE", "COMMENT"})
_STORAGE = frozenset({"storage_policy", "disk"})


@dataclass(frozen=True, slots=True)
class Rehearsable:
    """`sql` to run, or None and the reason in `note`. With both, `note` says what was replaced.

    `far_engine` was replaced by Null (`rehearse_engines`).
    """

    sql: str | None
    note: str = ""
    far_engine: str = ""


def for_rehearsal(sql: str) -> Rehearsable:
    """`sql` as it would be sent, databases and macros filled in."""
    parsed = parse_statement(sql)
    if parsed.kind in _ELSEWHERE:
        return Rehearsable(None, f"{parsed.kind} concerns the server, not the schema")
    if _ACCESS.match(parsed.kind.value):
        return Rehearsable(None, "users and rights are the server's")
    if parsed.alter_commands and set(parsed.alter_commands) == {AlterCommand.MOVE_PARTITION}:
        return Rehearsable(None, "disks and volumes are the server's")
    plain = without_on_cluster(sql)
    if parsed.kind is StatementKind.CREATE_TABLE and _is_of_table_function(plain):
        return Rehearsable(None, "a table function may reach other servers")
    plain = apply_edits(plain, [*_without_rows(plain, parsed), *_on_the_default_disk(plain)])
    engine = parsed.engine or ""
    replicated = _REPLICATED.match(engine)
    if replicated:
        return Rehearsable(
            _replace_engine(plain, engine, replicated[1], drops_keeper_arguments=True),
            f"{engine} as {replicated[1]}",
        )
    if engine == "Replicated":
        return Rehearsable(_drop_engine(plain, engine), "Replicated database as the default engine")
    if engine and not _HERE.match(engine):
        if not _says_columns(plain, engine):
            return Rehearsable(None, f"{engine} takes its columns from another server")
        if engine == "Distributed":
            return Rehearsable(_over_the_scratch_s_cluster(plain), "Distributed over a cluster without hosts")
        null = _replace_engine(plain, engine, "Null", drops_all=True)
        return Rehearsable(null, f"{engine} as Null: its columns are rehearsed", far_engine=engine)
    return Rehearsable(plain)


def _is_of_table_function(sql: str) -> bool:
    """`CREATE TABLE t AS s3(…)`: what is done to such a table is done there."""
    words = list(_outermost(sql))
    return any(
        word.text.upper() == "AS" and name.is_name and behind.text == "("
        for word, name, behind in zip(words, words[1:], words[2:], strict=False)
        if name.text.upper() not in ("SELECT", "WITH")
    )


def _without_rows(sql: str, parsed: Statement) -> Iterator[Edit]:
    """EMPTY before AS SELECT; POPULATE goes."""
    makes_table = parsed.kind is StatementKind.CREATE_TABLE
    if not makes_table and parsed.kind is not StatementKind.CREATE_MATERIALIZED_VIEW:
        return
    words = list(_outermost(sql))
    refreshes = any(word.text.upper() == "REFRESH" for word in words)
    populate: list[Edit] = []
    for before, word, behind in zip(words, words[1:], words[2:], strict=False):
        if not makes_table and word.text.upper() == "POPULATE":
            populate = [Edit(word.start, word.end, "")]  # before it a column may have that name
        if word.text.upper() == "AS" and behind.text.upper() in ("SELECT", "WITH", "("):
            if (makes_table or refreshes) and before.text.upper() != "EMPTY":
                yield Edit(word.start, word.start, "EMPTY ")
            yield from populate
            return


def _on_the_default_disk(sql: str) -> Iterator[Edit]:
    """`TO VOLUME 'cold'` in a TTL, and the settings that say where a table's data is."""
    words = list(_outermost(sql))
    in_settings = False
    for at, word in enumerate(words[:-2]):
        text = word.text.upper()
        in_settings = in_settings or text in ("SETTING", "SETTINGS")
        value = words[at + 2]
        if text == "TO" and words[at + 1].text.upper() in ("DISK", "VOLUME"):
            yield Edit(value.start, value.end, "'default'")
        elif in_settings and word.text in _STORAGE and words[at + 1].text == "=":
            closing = words[at + 4] if words[at + 3 : at + 4] and words[at + 3].text == "(" else value
            yield Edit(value.start, closing.end, "'default'")


def _outermost(sql: str) -> Iterator[Token]:
    """The significant tokens that stand in no brackets, and the brackets."""
    return _outermost_of(tokenize(sql))


def _outermost_of(tokens: Iterable[Token]) -> Iterator[Token]:
    depth = 0
    for token in tokens:
        depth -= token.text == ")"
        if token.is_significant and not depth:
            yield token
        depth += token.text == "("


def _says_columns(sql: str, engine: str) -> bool:
    tokens = tokenize(sql)
    before_engine = {token.text.upper() for token in tokens[: engine_at(tokens, engine)]}
    return not before_engine.isdisjoint(("(", "AS"))


def _over_the_scratch_s_cluster(sql: str) -> str:
    """A Distributed table without its own cluster, whatever its name is made of, and storage policy."""
    tokens = tokenize(sql)
    at = engine_at(tokens, "Distributed")
    words = [token for token in tokens[at:] if token.is_significant] if at is not None else []
    if len(words) < 3 or words[1].text != "(":
        return sql
    commas = [word for word in _outermost_of(words[2 : _closing(words)]) if word.text == ","]
    ends = [*commas, words[_closing(words)]]
    edits = [Edit(words[2].start, ends[0].start, quote_string(UNREACHABLE_CLUSTER))]
    if len(ends) > 4:
        edits.append(Edit(commas[3].end, ends[4].start, " 'default'"))
    return apply_edits(sql, edits)


def _replace_engine(
    sql: str, engine: str, by: str, *, drops_keeper_arguments: bool = False, drops_all: bool = False
) -> str:
    """The engine's name in the ENGINE clause and, as asked, its first string arguments or all arguments."""
    tokens = tokenize(sql)
    at = engine_at(tokens, engine)
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
        # Keys and settings belong to no engine that holds nothing; AS SELECT and COMMENT may stay.
        kept = (word.start for word in _outermost(tail) if word.text.upper() in _BEHIND_ENGINES)
        tail = f" {tail[next(kept, len(tail)) :]}"
    return sql[: tokens[at].start] + by + arguments + tail


def _drop_engine(sql: str, engine: str) -> str:
    """Without the whole clause `ENGINE = engine(…)`."""
    tokens = tokenize(sql)
    at = engine_at(tokens, engine)
    if at is None:
        return sql
    start = next(t.start for t in reversed(tokens[:at]) if t.is_significant and t.text.upper() == "ENGINE")
    significant = [token for token in tokens[at:] if token.is_significant]
    end = tokens[at].end
    if len(significant) > 1 and significant[1].text == "(":
        end = significant[_closing(significant)].end
    return sql[:start] + sql[end:]


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
