"""The text of a migration taken apart: its statements, and the options in its comments."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.migrations.no_op import is_no_op
from engine.migrations.options import Directive, Options, Scope, merged, parse_comment
from engine.sql.tokens import Token, TokenKind, scan


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement: the line of its first word, its text without comments around it, its significant tokens,
    and the options that stand before it."""

    line: int
    sql: str
    words: tuple[Token, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class ScriptText:
    """What stands in a file. `options` are the file's, `no_ops` counts its `SELECT 1;`. `problems` are lines,
    and errors of the options there: with any of them the rest is not to be used."""

    statements: tuple[StatementText, ...]
    options: Options
    no_ops: int
    problems: tuple[tuple[int, SqlError], ...]


def take_apart(text: str, tokens: list[Token]) -> ScriptText:
    """`tokens` are all of `text`, comments too."""
    reader = _Reader(text)
    for token in tokens:
        reader.take(token)
    return reader.end()


def unclosed_line(text: str) -> int:
    """The line of the token that is never closed: where the scan stops."""
    end = 0
    try:
        for token in scan(text):
            end = token.end
    except SqlError:
        pass
    return text.count("\n", 0, end) + 1


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = _NewLines(text)
        self._statements: list[StatementText] = []
        self._of_file: list[Options] = []
        self._of_next: list[Options] = []
        self._words: list[Token] = []
        """Significant tokens since the last semicolon."""
        self._line = 0
        """Where the first of them stands."""
        self._no_ops = 0
        self._problems: list[tuple[int, SqlError]] = []

    def take(self, token: Token) -> None:
        if token.kind is TokenKind.PUNCTUATION and token.text == ";":
            self._end_statement()
        elif token.kind is TokenKind.COMMENT:
            line = self._lines.line_of(token.start)
            try:
                directive = parse_comment(token.text)
                if directive is not None:
                    self._heed(directive)
            except SqlError as error:
                self._problems.append((line, error))
        elif token.is_significant:
            if not self._words:
                self._line = self._lines.line_of(token.start)
            self._words.append(token)

    def end(self) -> ScriptText:
        self._end_statement()
        if self._of_next:
            line = self._text.count("\n") + 1
            self._problems.append((line, SqlError(Code.OK, "no statement follows these options")))
        return ScriptText(tuple(self._statements), merged(self._of_file), self._no_ops, tuple(self._problems))

    def _heed(self, directive: Directive) -> None:
        if self._words:
            raise SqlError(Code.BAD_ARGUMENTS, "Options stand before a statement, not inside it.")
        if directive.scope is Scope.NEXT:
            self._of_next.append(directive.options)
        elif self._statements:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                "Options of the file stand before its first statement; "
                "write `-- oncluster-next:` for the next statement.",
            )
        else:
            self._of_file.append(directive.options)

    def _end_statement(self) -> None:
        words, self._words = tuple(self._words), []
        if not words:
            return
        if is_no_op(words):
            self._no_ops += 1
        else:
            sql = self._text[words[0].start : words[-1].end]
            self._statements.append(StatementText(self._line, sql, words, merged(self._of_next)))
        self._of_next.clear()


class _NewLines:
    """Line numbers of offsets, which are asked for in ascending order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def line_of(self, offset: int) -> int:
        self._line += self._text.count("\n", self._at, offset)
        self._at = offset
        return self._line
