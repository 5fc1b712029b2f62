"""Statements that chDB must not be given, because in a node they would do more than on a server.

chDB takes itself for a program of the person who calls it: it reads any file and runs any command that a
statement names. Table functions over files are refused by its grants, and its function `file` is replaced
(`shadowed_functions`); everything else is looked for here, in the text, because it may stand anywhere in it.
What is refused here is so before other hosts and Keeper hear of it.

Nor is the setting `database` for statements: with it chDB takes the names of one for those of another
database than the node does, which has looked for replicated and Distributed tables among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.errors import Code, SqlError
from engine.sql import Statement, Token
from engine.sql.tokens import literal_value, scan
from engine.storage.guard_arguments import (
    STRINGS,
    addresses,
    arguments_of,
    brackets,
    is_address,
    is_file_url,
    is_outside,
    is_parameter,
    names_path,
)
from engine.storage.guard_backups import SUSPICIOUS, check_definitions

_FILE_ENGINES = frozenset(
    {
        *("File", "Filesystem", "FileLog", "Executable", "ExecutablePool", "SQLite"),
        *("IcebergLocal", "DeltaLakeLocal", "PaimonLocal"),
    }
)
_RUNNER_ENGINE = "QueryRunner"
_COMMAND_SOURCES = frozenset({"EXECUTABLE", "EXECUTABLE_POOL"})
_NEEDED_DATABASE = "default"
_CURRENT_DATABASE = "database"
_IF_NOT_EXISTS = ("IF", "NOT", "EXISTS")
_TAKE_AWAY = ("DROP", "DETACH", "RENAME")
_FILE_SOURCES = frozenset({"FILE", "YAMLREGEXPTREE"})
_FILE_LAYOUTS = frozenset({"SSD_CACHE", "COMPLEX_KEY_SSD_CACHE"})
_SETTINGS_WITH_EXPRESSIONS = frozenset(
    {"additional_table_filters", "additional_result_filter", "parallel_replicas_custom_key"}
)
OWN_FUNCTIONS = "__oncluster_"
"""How the names of functions begin that texts of this node call: another one would be called instead."""
_SUSPICIOUS = re.compile(
    r"file|attach|executable|sqlite|rocksdb|local|python|queryrunner|ssd_cache|yamlregexptree|disk|database|\\x"
    rf"|\burl\b|handler|{OWN_FUNCTIONS}",
    re.IGNORECASE,
)
"""Without any of it a text is fine."""
_MAY_HOLD_TEXTS = re.compile(
    r"dictionary|collection|additional_|parallel_replicas_custom_key|\\x", re.IGNORECASE
)
"""Without any of it no string of a statement is one itself."""
_BEFORE_NAMES = frozenset(
    {"INTO", "TABLE", "EXISTS", "VIEW", "DICTIONARY", "INDEX", "PROJECTION", "CONSTRAINT", "."}
)
"""What follows is a name and no function, also where a bracket comes next."""


def check_statement(statement: Statement, sql: str, *, trusted_backups: Sequence[str] = ()) -> None:
    """Raises SqlError 358 for INTO OUTFILE, 1 for SYSTEM SHUTDOWN and KILL, which would end the process at
    once, 497 for definitions from elsewhere but for `trusted_backups`, and as `check_text`."""
    if statement.into_outfile is not None:
        raise _writes_file()
    if statement.system_command.upper() in ("SHUTDOWN", "KILL"):
        raise SqlError(
            Code.UNSUPPORTED_METHOD,
            f"SYSTEM {statement.system_command.upper()} is not supported.",
            hint="Send the node's process SIGTERM.",
        )
    check_text(sql)
    if SUSPICIOUS.search(sql):
        check_definitions(_tokens(sql), trusted_backups)
    if _MAY_HOLD_TEXTS.search(sql):
        _check_strings(_tokens(sql))


def check_settings(settings: Mapping[str, str]) -> None:
    """As `check_statement`, of settings whose values are expressions, and 452 for the setting `database`."""
    if _CURRENT_DATABASE in settings:
        raise _changes_database()
    for name in settings.keys() & _SETTINGS_WITH_EXPRESSIONS:
        _check_string(settings[name])


def check_text(sql: str) -> None:
    """Raises SqlError 497 for engines and functions over files of the machine and for ATTACH … FROM, which
    would move one of its directories, 482 for dictionaries whose source is a command, 48 for the end of
    database `default`, 452 for the setting `database`, 358 for INTO OUTFILE and 78 for FROM INFILE, which may
    stand behind PARALLEL WITH, too."""
    if _SUSPICIOUS.search(sql):
        _check(_tokens(sql))


def denied(what: str) -> SqlError:
    """The error for something that is not for statements."""
    return SqlError(Code.ACCESS_DENIED, f"{what} would read or write files of the node's machine")


def _writes_file() -> SqlError:
    return SqlError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")


def _changes_database() -> SqlError:
    return SqlError(
        Code.SETTING_CONSTRAINT_VIOLATION,
        f"Setting {_CURRENT_DATABASE} should not be changed.",
        hint="Name tables with their database, say USE, or give the request the parameter database.",
    )


def _tokens(sql: str) -> list[Token]:
    """As far as there are any: rows of VALUES may end them, and chDB's reading, too."""
    tokens = []
    try:
        for token in scan(sql):
            if token.is_significant:
                tokens.append(token)
    except SqlError:
        pass
    return tokens


def _check(tokens: Sequence[Token]) -> None:
    names = [literal_value(token) if token.is_name else token.text for token in tokens]
    words = [name.upper() for name in names]
    for at, word in enumerate(words):
        check = _CHECKS.get(word)
        if check is not None:
            check(_Place(tokens, names, words, at))


def _check_strings(tokens: Sequence[Token]) -> None:
    """Those of a statement that may be, or hold, expressions: in settings, as the query of a dictionary, as
    a named collection that has one for a dictionary."""
    names = [literal_value(token) if token.is_name else token.text for token in tokens]
    words = [name.upper() for name in names]
    for at, name in enumerate(names):
        is_set = name in _SETTINGS_WITH_EXPRESSIONS and words[at + 1 : at + 2] == ["="]
        if is_set and is_parameter(tokens[at + 2 :]):
            raise SqlError(
                Code.ACCESS_DENIED,
                f"Setting {name} is an expression, which nobody would look at in a query parameter.",
                hint="Write it into the statement.",
            )
    pairs = set(pairwise(words))
    is_dictionary = "DICTIONARY" in words and ("SOURCE", "(") in pairs
    is_collection = ("NAMED", "COLLECTION") in pairs
    if is_dictionary or is_collection or _SETTINGS_WITH_EXPRESSIONS & set(names):
        for token in tokens:
            if token.kind in STRINGS:
                _check_string(literal_value(token))


def _check_string(text: str) -> None:
    check_text(text)
    if "'" in text or "$" in text:
        for token in _tokens(text):
            if token.kind in STRINGS:
                _check_string(literal_value(token))


@dataclass(frozen=True, slots=True)
class _Place:
    """A word of a statement, with what stands around it."""

    tokens: Sequence[Token]
    names: Sequence[str]
    words: Sequence[str]
    at: int

    @property
    def before(self) -> str:
        return self.words[self.at - 1] if self.at else ""

    @property
    def behind(self) -> Sequence[Token]:
        return self.tokens[self.at + 1 :]

    @property
    def opens(self) -> bool:
        """Whether a bracket follows."""
        return self.words[self.at + 1 : self.at + 2] == ["("]

    @property
    def first_argument(self) -> str:
        """The word behind that bracket."""
        return "".join(self.words[self.at + 2 : self.at + 3])

    @property
    def is_function(self) -> bool:
        before = list(self.words[max(0, self.at - 2) : self.at])
        if before[-1:] == ["APPLY"] or before == ["APPLY", "("]:
            return True
        return self.opens and self.before not in _BEFORE_NAMES


def _file_function(place: _Place) -> None:
    if place.names[place.at] == "file" and place.is_function:
        raise denied("Function file")


def _engine(place: _Place) -> None:
    behind = place.behind
    if behind and behind[0].text == "=":
        behind = behind[1:]
    name = literal_value(behind[0]) if behind and behind[0].is_name else ""
    if name == _RUNNER_ENGINE:
        raise SqlError(
            Code.ACCESS_DENIED, f"Engine {name} would run texts that nobody has looked at as statements"
        )
    arguments = arguments_of(behind[1:])
    if name == "URL" and not all(map(is_address, addresses(arguments))):
        raise denied(f"Engine {name} with an address that begins with file:, or that is computed,")
    has_path = name == "EmbeddedRocksDB" and any(token.kind in STRINGS for token in arguments)
    if name in _FILE_ENGINES or has_path:
        raise denied(f"Engine {name}")


def _attach(place: _Place) -> None:
    """ATTACH of a table, FROM 'path'."""
    behind = place.behind
    if not behind or behind[0].text.upper() not in ("TABLE", "TEMPORARY"):
        return
    for token, following in pairwise(behind):
        if token.text == "(":
            return
        if token.text.upper() == "FROM" and following.kind in STRINGS:
            raise denied("ATTACH … FROM")


def _file_clause(place: _Place) -> None:
    if not place.behind or place.behind[0].kind not in STRINGS:
        return
    clause = (place.before, place.words[place.at])
    if clause == ("INTO", "OUTFILE"):
        raise _writes_file()
    if clause == ("FROM", "INFILE"):
        raise SqlError(Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server")


def _database(place: _Place) -> None:
    """The names behind DROP, DETACH and RENAME DATABASE."""
    if place.before not in _TAKE_AWAY:
        return
    for before, name in pairwise(["", *place.names[place.at + 1 :]]):
        if before.upper() in ("PARALLEL", "SETTINGS", "ON"):
            return
        if name == _NEEDED_DATABASE and before.upper() != "TO":
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Database {name} cannot be dropped, detached or renamed: nobody could connect without it.",
                hint=f"TRUNCATE DATABASE {name} drops the tables in it.",
            )


def _settings(place: _Place) -> None:
    """`SET name = value, …`, and the same behind SETTINGS."""
    if place.words[place.at] == "SET" and place.at:  # of an UPDATE, or of a named collection
        return
    words, at = place.words, place.at + 1
    while list(words[at + 1 : at + 2]) == ["="]:
        if place.names[at] == _CURRENT_DATABASE:
            raise _changes_database()
        at += 3 if words[at + 2 : at + 3] == ["-"] else 2
        at += len(brackets(place.tokens[at:])) or 1
        at += len(brackets(place.tokens[at:]))
        if words[at : at + 1] != [","]:
            return
        at += 1


def _function(place: _Place) -> None:
    """CREATE FUNCTION, whatever stands in front of the name."""
    name = next((name for name in place.names[place.at + 1 :] if name.upper() not in _IF_NOT_EXISTS), "")
    if place.before in ("CREATE", "REPLACE") and name.startswith(OWN_FUNCTIONS):
        raise SqlError(Code.ACCESS_DENIED, f"Functions {OWN_FUNCTIONS}… are the node's own")


def _handler(place: _Place) -> None:
    if place.before in ("CREATE", "REPLACE") and place.at in (1, 3):
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            "Handlers are not supported: a node's HTTP interface answers at its usual paths only.",
        )


def _collection(place: _Place) -> None:
    if place.before == "NAMED" and any(map(is_file_url, place.tokens)):
        raise denied("A named collection with this URL")


def _sqlite_function(place: _Place) -> None:
    if place.opens:
        raise denied("Function sqlite")


def _python_function(place: _Place) -> None:
    if place.opens and place.is_function:
        raise SqlError(Code.ACCESS_DENIED, "Function Python would read the node's own variables")


def _source(place: _Place) -> None:
    if place.opens and place.first_argument in _COMMAND_SOURCES:
        raise SqlError(
            Code.DICTIONARY_ACCESS_DENIED,
            "Dictionaries with executable dictionary source are not allowed to be created from DDL query",
        )
    if place.opens and place.first_argument in _FILE_SOURCES:
        raise denied("A dictionary with this source")


def _layout(place: _Place) -> None:
    if place.opens and place.first_argument in _FILE_LAYOUTS:
        raise denied("A dictionary with this layout")


def _disk(place: _Place) -> None:
    arguments = arguments_of(place.behind) if place.opens else ()
    if any(map(is_outside, arguments)) or any(map(names_path, arguments, arguments[1:], arguments[2:])):
        raise denied("A disk of the table's own")


_CHECKS: Mapping[str, Callable[[_Place], None]] = {
    "FILE": _file_function,
    "ENGINE": _engine,
    "ATTACH": _attach,
    "INFILE": _file_clause,
    "OUTFILE": _file_clause,
    "DATABASE": _database,
    "COLLECTION": _collection,
    "SQLITE": _sqlite_function,
    "PYTHON": _python_function,
    "SOURCE": _source,
    "LAYOUT": _layout,
    "DISK": _disk,
    "HANDLER": _handler,
    "FUNCTION": _function,
    "SET": _settings,
    "SETTINGS": _settings,
}
"""What is looked at where a word stands, whether it is a keyword there or a name."""
