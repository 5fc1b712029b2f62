"""SET, read back, because a session has to know what it was set to; and what KILL QUERY means by an id."""

from __future__ import annotations

from dataclasses import replace

from engine.node.statements.statement import Asked
from engine.setting_values import plain_number
from engine.sql import Statement, StatementKind
from engine.sql.edit import apply_edits
from engine.sql.settings_clauses import all_settings
from engine.sql.tokens import Token, TokenKind, literal_value, name_of, tokenize
from engine.storage.text_limits import MAX_QUERY_SIZE


def settings_of_set(sql: str) -> dict[str, str | None]:
    """`SET a = 1, b = 'x', c = DEFAULT` as a mapping of texts, None for DEFAULT. What is no `name = value` is
    left out."""
    tokens = [token for token in tokenize(sql) if token.is_significant and token.text != ";"]
    settings: dict[str, str | None] = {}
    for clause in split_at_commas(tokens[1:]):
        if len(clause) >= 3 and clause[1].text == "=":
            name = literal_value(clause[0])
            is_default = _is_default(clause[2:]) and not name.startswith("param_")
            settings[name] = None if is_default else _value(clause[2:])
        elif len(clause) == 1 and clause[0].kind is TokenKind.WORD:
            settings[clause[0].text] = "1"
    return settings


def of_session(asked: Asked, statement: Statement) -> Asked:
    """What USE and SET change is the session's, and stays: not what the request says of the same."""
    if statement.kind is StatementKind.USE:
        return replace(asked, database=statement.database or "")
    if statement.kind is StatementKind.SET:
        changed = settings_of_set(asked.sql)
        return replace(asked, settings={k: v for k, v in asked.settings.items() if k not in changed})
    return asked


def of_any_size(sql: str, asked: Asked, statement: Statement) -> str:
    """The text as chDB runs it, which a SET does not tell how long texts may be: the node sees to that. Who
    may set nothing is refused by chDB."""
    if (
        statement.kind is not StatementKind.SET
        or MAX_QUERY_SIZE not in sql
        or not asked.session.takes_settings
    ):
        return sql
    return apply_edits(sql, [each.set_to("0") for each in all_settings(sql) if each.name == MAX_QUERY_SIZE])


def split_at_commas(tokens: list[Token]) -> list[list[Token]]:
    """At the commas outside brackets."""
    clauses: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.PUNCTUATION:
            depth += (token.text in "([{") - (token.text in ")]}")
            if token.text == "," and depth == 0:
                clauses.append([])
                continue
        clauses[-1].append(token)
    return clauses


def _is_default(tokens: list[Token]) -> bool:
    return [token.text.upper() for token in tokens if token.kind is TokenKind.WORD] == ["DEFAULT"]


def _value(tokens: list[Token]) -> str:
    if len(tokens) == 1 and tokens[0].kind is not TokenKind.NUMBER:
        return literal_value(tokens[0])
    return plain_number("".join(token.text for token in tokens))


def trailing_settings(sql: str) -> dict[str, str]:
    """The settings of a DDL statement's last clause, as far as they are about ON CLUSTER itself.

    `… SETTINGS distributed_ddl_task_timeout = 10` may stand among the settings of a table's engine or behind
    FORMAT; what belongs to the table is left alone.
    """
    if "distributed_ddl_" not in sql:
        return {}
    tokens = [token for token in tokenize(sql) if token.is_significant and token.text != ";"]
    found: dict[str, str] = {}
    for at, token in enumerate(tokens[:-2]):
        name = name_of(token)
        if name.startswith("distributed_ddl_") and tokens[at + 1].text == "=":
            value = tokens[at + 2 : at + 4] if tokens[at + 2].text == "-" else tokens[at + 2 : at + 3]
            found[name] = _value(value)
    return found


def by_our_query_id(sql: str) -> str:
    """KILL QUERY WHERE query_id = …, for ids that clients gave: chDB makes up its own, and ours is each
    statement's `log_comment`."""
    pieces = []
    at = 0
    for token in tokenize(sql):
        if name_of(token) == "query_id":
            pieces += [sql[at : token.start], "Settings['log_comment']"]
            at = token.end
    return "".join([*pieces, sql[at:]])
