"""ON CLUSTER: taking it out, putting it in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import StatementKind
from engine.sql.parse import draft_of
from engine.sql.statement import Statement

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BEGINS_NAME = re.compile(r"[A-Za-z0-9_$'`\"]")
_MACRO = re.compile(r"\{([^{}]*)\}")


def without_on_cluster(sql: str) -> str:
    """`sql` without its ON CLUSTER clause; unchanged where there is none."""
    return _without_on_cluster(sql, draft_of(sql))


def before_on_cluster(sql: str, text: str) -> str:
    """`sql` with `text` right before its ON CLUSTER clause; unchanged where there is none."""
    span = draft_of(sql).cluster_span
    return sql if span is None else apply_edits(sql, [Edit(span[0], span[0], text)])


def without_uuid(sql: str) -> str:
    """`sql` without the UUID of the object that it makes; unchanged where there is none."""
    span = draft_of(sql).uuid_span
    return sql if span is None else apply_edits(sql, [Edit(*span, "")])


def parse_and_strip(sql: str) -> tuple[Statement, str]:
    """What `parse_statement` and `without_on_cluster` give, for the price of one."""
    d = draft_of(sql)
    return d.statement(), _without_on_cluster(sql, d)


def _without_on_cluster(sql: str, d: Draft) -> str:
    if d.cluster_span is None:
        return sql
    start, end = d.cluster_span
    # The space before the clause goes with it, unless it is all that would part two words.
    if sql[start - 1] == " " and not _BEGINS_NAME.match(sql, end):
        start -= 1
    return apply_edits(sql, [Edit(start, end, "")])


def with_on_cluster(sql: str, cluster: str) -> str:
    """`sql` with ON CLUSTER where the grammar of its kind wants it; unchanged if it names `cluster` already.

    `cluster` is a value: it is quoted as needed, and `{macro}` may stand in it. A clause that names another
    cluster, or a macro, is rewritten in its place: whether that is right is the caller's question. Raises
    SqlError 48 when the statement cannot have the clause.
    """
    d = draft_of(sql)
    if d.cluster_span is not None:
        if d.on_cluster == cluster:
            return sql
        return apply_edits(sql, [Edit(*d.cluster_span, f"ON CLUSTER {cluster_name(cluster)}")])
    if d.cluster_at is None:
        hint = f"The statement was read as: {d.kind}."
        if d.kind is StatementKind.OTHER:
            hint = "No statement is known that begins like that: is a word misspelt?"
        raise SqlError(
            Code.NOT_IMPLEMENTED, "Distributed execution is not supported for such DDL queries", hint=hint
        )
    return apply_edits(sql, [Edit(d.cluster_at, d.cluster_at, f" ON CLUSTER {cluster_name(cluster)}")])


def cluster_name(cluster: str) -> str:
    """A cluster's name as SQL: plain if it can be, else quoted."""
    return cluster if _PLAIN.match(cluster) else quote_identifier(cluster)


def macros_in(text: str) -> list[str]:
    """The names of the macros in `text`, in their order."""
    return _MACRO.findall(text)


def expand_macros(text: str, macros: Mapping[str, str]) -> str:
    """`text` with every `{name}` replaced by the macro's value; values are not expanded again.

    Raises SqlError 139 on an unknown macro, naming the known ones.
    """

    def value(match: re.Match[str]) -> str:
        try:
            return macros[match.group(1)]
        except KeyError:
            known = ", ".join(sorted(macros)) or "none"
            raise SqlError(
                Code.NO_ELEMENTS_IN_CONFIG,
                f"No macro '{match.group(1)}' in config while processing substitutions in '{text}' "
                f"at '{match.start(1)}' or macro is not supported here.",
                hint=f"Known macros: {known}.",
            ) from None

    return _MACRO.sub(value, text)
