"""Arguments of `cluster()` and its kin that are expressions, as in `cluster('c', concat('d', '1'), t)`.

ClickHouse takes any constant expression for the cluster or the addresses, the database and the table. What
each is chDB says, as the user who asks, and the value takes its place before anybody else looks at the
statement. What stands behind the table, the sharding key, stays an expression.
Source: TableFunctionRemote::parseArguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.names import quote_string
from engine.node.distributed.functions.table_functions import arguments_of, calls_of
from engine.node.statements.asked_settings import usual_answers
from engine.node.statements.statement import Asked
from engine.sql.cursor import Cursor
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import Token
from engine.storage import Scope

_SINGLE = 1
_WHOLE_NAME = 3
"""`database.table`, in tokens."""


async def with_constants(asked: Asked, sql: str) -> str:
    """The statement with a literal for each such expression. Raises chDB's SqlError for one that is none."""
    cursor = Cursor(sql)
    edits: list[Edit] = []
    for at in calls_of(cursor):
        arguments = arguments_of(cursor, at)
        for number, argument in enumerate(arguments[:3]):
            if number == 2 and _names_table(sql, arguments[1], edits):
                break
            if not _is_expression(argument) or (number == 1 and await _is_table_function(asked, argument)):
                continue
            start, end = argument[0].start, argument[-1].end
            edits.append(Edit(start, end, quote_string(await _value(asked, sql[start:end]))))
    return apply_edits(sql, edits) if edits else sql


def _is_expression(argument: Sequence[Token]) -> bool:
    if len(argument) <= _SINGLE or (len(argument) == _WHOLE_NAME and argument[1].text == "."):
        return False
    return "".join(token.text for token in argument).lower() != "currentdatabase()"


def _names_table(sql: str, argument: Sequence[Token], edits: Sequence[Edit]) -> bool:
    """Whether the second argument says all of `database.table`, so that the third one is the sharding key."""
    if not argument:
        return False  # `remote('h',, t)` is refused by who reads the arguments
    if len(argument) == _WHOLE_NAME and argument[1].text == ".":
        return True
    changed = [edit.text for edit in edits if edit.start == argument[0].start]
    is_call = len(argument) > 1 and argument[1].text == "(" and not changed
    text = changed[0] if changed else sql[argument[0].start : argument[-1].end]
    return "." in text or (is_call and argument[0].text.lower() != "currentdatabase")


async def _is_table_function(asked: Asked, argument: Sequence[Token]) -> bool:
    if argument[1].text != "(" or not argument[0].is_name:
        return False
    # What chDB does not know at all may be a table function of the shards' version.
    found = await _ask(
        asked,
        f"SELECT count() FROM system.functions WHERE lower(name) = {quote_string(argument[0].text.lower())} "
        "AND lower(name) NOT IN (SELECT lower(name) FROM system.table_functions)",
    )
    return found == "0"


async def _value(asked: Asked, expression: str) -> str:
    return await _ask(asked, f"SELECT CAST({expression}, 'String')")


async def _ask(asked: Asked, sql: str) -> str:
    session = asked.session.clone()
    try:
        scope = Scope(settings=usual_answers(asked))
        found = await session.query(sql, format="TSVRaw", params=asked.params, scope=scope)
    finally:
        await session.close()
    return found.text.removesuffix("\n")
