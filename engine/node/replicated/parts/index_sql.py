"""CREATE INDEX and DROP INDEX as ALTERs, which are what they are for a table.

Of what other databases have and ClickHouse has not, it takes the words and does without: an order of columns,
and where settings say so UNIQUE, and an index without a type, which is none.

Source: ClickHouse's InterpreterCreateIndexQuery.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Asked
from engine.part_storage.alter_statements import split_by_commas
from engine.sql import Statement, StatementKind
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits

_UNIQUE, _NO_TYPE = "create_index_ignore_unique", "allow_create_index_without_type"


def index_command(asked: Asked, statement: Statement, behind: str) -> str | None:
    """`behind` stands behind the table's name. None: there is nothing to be done. Raises SqlError 48, 80."""
    name = quote_identifier(statement.name or "")
    if statement.kind is StatementKind.DROP_INDEX:
        return f"DROP INDEX {'IF EXISTS ' if statement.if_exists else ''}{name}"
    settings = settings_of(asked)
    if Cursor(asked.sql).words[1:2] == ["UNIQUE"] and not flag(settings, _UNIQUE, False):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"CREATE UNIQUE INDEX is not supported. SET {_UNIQUE}=1 to ignore this UNIQUE keyword.",
        )
    if not Cursor(behind).skip_to("TYPE"):
        if flag(settings, _NO_TYPE, False):
            return None
        raise SqlError(
            Code.INCORRECT_QUERY,
            f"CREATE INDEX without TYPE is forbidden. SET {_NO_TYPE}=1 to ignore this statements.",
        )
    existing = "IF NOT EXISTS " if statement.if_not_exists else ""
    return f"ADD INDEX {existing}{name} {_expression_first(behind)}"


def _expression_first(behind: str) -> str:
    """Without the order of columns in a list, and without its brackets if they are not an expression's."""
    c = Cursor(behind)
    if not c.skip_brackets():
        return behind
    last = c.at - 1
    around = [(c.words[at - 1], at, c.words[at + 1]) for at in range(2, last)]
    left_out = [
        at
        for before, at, after in around
        if c.words[at] in ("ASC", "DESC") and before not in (",", "(") and after in (",", ")")
    ]
    if len(split_by_commas(behind[1 : c.last_end - 1])) == 1:
        left_out += [0, last]
    return apply_edits(behind, [Edit(c.tokens[at].start, c.tokens[at].end, "") for at in left_out])
