"""What stands behind the name of an engine, a disk or a setting, as tokens: see `guard`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.sql import Token, TokenKind
from engine.sql.tokens import literal_value

STRINGS = (TokenKind.STRING, TokenKind.HEREDOC)
VALUES = (TokenKind.WORD, TokenKind.IDENTIFIER, *STRINGS)
_OF_PATHS = ("path", "_dir", "_directory", "_file")
_LOCAL_DISKS = frozenset({"local", "local_blob_storage"})
_COMMA = Token(TokenKind.PUNCTUATION, ",", 0)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def is_outside(token: Token) -> bool:
    """Of the arguments of a disk: it is one of the machine's, or climbs out of one of the node's."""
    value = literal_value(token)
    return value in _LOCAL_DISKS or ".." in value.split("/")


def names_path(name: Token, equals: Token, value: Token) -> bool:
    """Of the arguments of a disk: where on the machine it keeps something, unless below the node's."""
    argument = literal_value(name) if name.is_name and equals.text == "=" else ""
    is_relative = argument == "path" and not literal_value(value).startswith("/")
    return argument.endswith(_OF_PATHS) and not is_relative


def is_parameter(tokens: Sequence[Token]) -> bool:
    """Whether they begin with `{name:Type}`; a map's first key is a string."""
    return len(tokens) > 1 and tokens[0].text == "{" and tokens[1].is_name


def addresses(arguments: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Of engine URL: its first argument, and a collection's address that is given anew."""
    depth, begin = 0, 0
    for at, token in enumerate([*arguments, _COMMA]):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text != "," or depth:
            continue
        argument = arguments[begin:at]
        if len(argument) > 1 and argument[1].text == "=":
            if literal_value(argument[0]).lower() == "url":
                yield argument[2:]
        elif begin == 0 and argument:
            yield argument
        begin = at + 1


def is_address(argument: Sequence[Token]) -> bool:
    """A text, or the name of a collection. chDB evaluates anything else, to whatever address."""
    return len(argument) == 1 and argument[0].kind in VALUES and not is_file_url(argument[0])


def is_file_url(token: Token) -> bool:
    return token.kind in STRINGS and literal_value(token).strip().lower().startswith("file:")


def arguments_of(tokens: Sequence[Token]) -> Sequence[Token]:
    """What stands in the round brackets that `tokens` begin with; nothing if they begin otherwise."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return tokens[1:at]
    return tokens[1:]


def brackets(tokens: Sequence[Token]) -> Sequence[Token]:
    """The brackets, of any kind, that `tokens` begin with; nothing if they begin otherwise."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth == 0:
            return tokens[: at + 1] if at else []
    return tokens
