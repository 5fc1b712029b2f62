"""The statement that creates a lost replica's table again, made of a healthy replica's.

Macros stay as they are, so that all hosts keep the same text. Where the text names the other replica, or has
no arguments, or a path with `{uuid}` (which would be another one), the arguments are written out.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.names import quote_string
from engine.sql import Token, TokenKind, literal_value, tokenize
from engine.sql.edit import Edit, apply_edits

_REPLICATED = "Replicated"


def create_for(sql: str, *, path: str, donor: str, replica: str) -> str:
    """`sql` is replica `donor`'s CREATE TABLE; the result creates `replica` at `path`.

    Raises SqlError 36 when the statement names no replicated engine.
    """
    tokens = [token for token in tokenize(sql) if token.is_significant]
    at = _engine_at(tokens)
    written = f"{quote_string(path)}, {quote_string(replica)}"
    if at + 1 >= len(tokens) or tokens[at + 1].text != "(":
        return apply_edits(sql, [Edit(tokens[at].end, tokens[at].end, f"({written})")])
    arguments = tokens[at + 2 : at + 5]
    if arguments and arguments[0].text == ")":
        return apply_edits(sql, [Edit(arguments[0].start, arguments[0].start, written)])
    is_place = (
        len(arguments) == 3
        and arguments[0].kind is TokenKind.STRING
        and arguments[1].text == ","
        and arguments[2].kind is TokenKind.STRING
    )
    if not is_place:
        return apply_edits(sql, [Edit(tokens[at + 1].end, tokens[at + 1].end, f"{written}, ")])
    edits = []
    if "{uuid}" in literal_value(arguments[0]):
        edits.append(Edit(arguments[0].start, arguments[0].end, quote_string(path)))
    if literal_value(arguments[2]) == donor != replica:
        edits.append(Edit(arguments[2].start, arguments[2].end, quote_string(replica)))
    return apply_edits(sql, edits)


def _engine_at(tokens: list[Token]) -> int:
    """Where the name of the replicated engine is."""
    for at, token in enumerate(tokens):
        if token.text.upper() == "ENGINE":
            name = at + 2 if at + 1 < len(tokens) and tokens[at + 1].text == "=" else at + 1
            if name < len(tokens) and tokens[name].text.startswith(_REPLICATED):
                return name
    raise SqlError(Code.BAD_ARGUMENTS, "The table's definition names no replicated engine")
