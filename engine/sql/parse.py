"""From text to `Statement`: the first words decide which grammar reads the rest."""

from __future__ import annotations

from collections.abc import Callable

from engine.sql import grammar_access, grammar_objects, grammar_other
from engine.sql.cursor import Cursor
from engine.sql.draft import Draft
from engine.sql.grammar_alter import alter
from engine.sql.grammar_system import system
from engine.sql.insert_with import insert_behind_with
from engine.sql.kinds import StatementKind as K
from engine.sql.statement import Statement

_GRAMMARS: dict[str, Callable[[Draft], None]] = {
    "CREATE": lambda d: grammar_objects.create(d, "CREATE"),
    "REPLACE": lambda d: grammar_objects.create(d, "REPLACE"),
    "ATTACH": lambda d: grammar_objects.create(d, "ATTACH"),
    "DROP": lambda d: grammar_objects.drop(d, "DROP"),
    "DETACH": lambda d: grammar_objects.drop(d, "DETACH"),
    "TRUNCATE": grammar_objects.truncate,
    "UNDROP": grammar_objects.undrop,
    "RENAME": grammar_objects.rename,
    "EXCHANGE": grammar_objects.exchange,
    "ALTER": alter,
    "OPTIMIZE": grammar_other.optimize,
    "DELETE": grammar_other.delete,
    "UPDATE": grammar_other.update,
    "KILL": grammar_other.kill,
    "SYSTEM": system,
    "GRANT": lambda d: grammar_access.grant(d, "GRANT"),
    "REVOKE": lambda d: grammar_access.grant(d, "REVOKE"),
    "MOVE": grammar_access.move_access,
    "BACKUP": lambda d: grammar_other.backup(d, "BACKUP"),
    "RESTORE": lambda d: grammar_other.backup(d, "RESTORE"),
    "INSERT": grammar_other.insert,
    "CHECK": grammar_other.check,
    "SET": grammar_other.set_command,
    "USE": grammar_other.use,
    "DESCRIBE": grammar_other.describe,
    "DESC": grammar_other.describe,
    "EXISTS": grammar_other.exists,
}
_READERS = {
    "SELECT": K.SELECT,
    "WITH": K.SELECT,
    "FROM": K.SELECT,
    "(": K.SELECT,
    "EXPLAIN": K.EXPLAIN,
    "SHOW": K.SHOW,
    "WATCH": K.WATCH,
    "BEGIN": K.TRANSACTION,
    "COMMIT": K.TRANSACTION,
    "ROLLBACK": K.TRANSACTION,
    "EXECUTE": K.EXECUTE_AS,
}
_PARALLEL_VERBS = frozenset({*_GRAMMARS, *_READERS}) - {"(", "WITH", "FROM"}
_OF_A_NAME = frozenset({"INTO", "TABLE", "."})
"""Behind these PARALLEL is a table's name, and WITH begins a SELECT."""
_HAVE_OUTPUT = frozenset({K.SELECT, K.EXPLAIN, K.SHOW, K.WATCH, K.EMPTY})
"""ClickHouse combines none of them with others."""


def draft_of(sql: str) -> Draft:
    """Parse one statement and keep the positions, for the rewriters. Raises SqlError 62 as `tokenize`."""
    d = Draft(sql)
    first = d.word
    if not d.tokens:
        d.kind = K.EMPTY
        return d
    grammar = _GRAMMARS.get(first)
    if grammar is not None:
        d.at = 1
        grammar(d)
    elif (insert := insert_behind_with(d)) is not None:
        d.at = insert + 1
        grammar_other.insert(d)
    elif first in _READERS:
        d.kind = _READERS[first]
        d.body = d.tail = 0
    if d.tail is not None:
        _output_clauses(d)
    if d.kind not in _HAVE_OUTPUT and "PARALLEL" in d.words and len(_verbs(d)) > 1:
        d.kind = K.PARALLEL_WITH
        d.cluster_at = None
        d.discards = any(parse_statement(piece).is_destructive for piece in _parallel(d))
    return d


def parse_statement(sql: str) -> Statement:
    """Classify one statement.

    Raises SqlError 62 only where `tokenize` does. Odd SQL, which only ClickHouse can judge, gives kind OTHER
    or a statement with what could be told.
    """
    return draft_of(sql).statement()


def parallel_statements(sql: str) -> list[str]:
    """The statements of one with PARALLEL WITH, in order; of any other the statement itself."""
    return _parallel(Draft(sql))


def _parallel(d: Draft) -> list[str]:
    verbs = _verbs(d)
    starts = [d.tokens[at].start for at in verbs]
    ends = [d.tokens[at - 2].start for at in verbs[1:]]
    return [d.sql[start:end] for start, end in zip(starts, [*ends, len(d.sql)], strict=True)]


def _verbs(d: Draft) -> list[int]:
    """Where the statements of one with PARALLEL WITH begin. What stands behind FORMAT, or VALUES without a
    SELECT, is data."""
    words = d.words
    found = [0]
    cursor = Cursor(d.sql)
    is_select = words[0] != "INSERT"
    while cursor.skip_to("PARALLEL", "SELECT", "VALUES", "FORMAT"):
        at = cursor.at
        if words[at] == "SELECT":
            is_select = True
        elif words[at] == "PARALLEL":
            is_next = words[at + 1 : at + 2] == ["WITH"] and set(words[at + 2 : at + 3]) & _PARALLEL_VERBS
            if is_next and at > 1 and words[at - 1] not in _OF_A_NAME:
                found.append(at + 2)
                is_select = words[at + 2] != "INSERT"
                cursor.at += 1
        elif words[found[-1]] == "INSERT" and (words[at] == "FORMAT" or not is_select):
            break
        cursor.at += 1
    return found


def _output_clauses(d: Draft) -> None:
    """Note FORMAT and INTO OUTFILE, which stand outside all brackets near the end."""
    assert d.tail is not None
    d.at = d.tail
    while d.skip_to("FORMAT", "INTO"):
        start = d.at
        if d.accept("INTO", "OUTFILE"):
            d.into_outfile = d.identifier_or_string()
        elif d.accept("FORMAT") and d.format is None and _ends_like_format(d):
            d.format = d.identifier()
        else:
            d.at = start + 1


def _ends_like_format(d: Draft) -> bool:
    """FORMAT name, then the end or SETTINGS: a column called `format` has something else behind it."""
    if d.at_end or d.word in ("=", ","):
        return False
    return d.words[d.at + 1 : d.at + 2] in ([], ["SETTINGS"], ["INTO"])
