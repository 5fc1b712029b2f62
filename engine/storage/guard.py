"""Statements that chDB must not be given, because in a node they would do more than on a server.

chDB takes itself for a program of the person who calls it: it reads any file and runs any command that a
statement names. Table functions over files are refused by its grants; everything else is looked for here, in
the text, because it may stand anywhere in it.

The named collections by which this node logs in at other nodes are not for statements either: a URL given
beside one would have the password sent there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from engine.errors import Code, SqlError
from engine.sql import Statement, Token, TokenKind
from engine.sql.tokens import literal_value, scan

_FILE_ENGINES = frozenset(
    {
        *("File", "Filesystem", "FileLog", "Executable", "ExecutablePool", "SQLite"),
        *("IcebergLocal", "DeltaLakeLocal", "PaimonLocal"),
    }
)
_RUNNER_ENGINE = "QueryRunner"
_COMMAND_SOURCES = frozenset({"EXECUTABLE", "EXECUTABLE_POOL"})
_NEEDED_DATABASE = "default"
_TAKE_AWAY = ("DROP", "DETACH", "RENAME")
_FILE_SOURCES = frozenset({"FILE", "YAMLREGEXPTREE"})
_FILE_LAYOUTS = frozenset({"SSD_CACHE", "COMPLEX_KEY_SSD_CACHE"})
_LOCAL_DISKS = frozenset({"local", "local_blob_storage"})
_SETTINGS_WITH_EXPRESSIONS = frozenset(
    {"additional_table_filters", "additional_result_filter", "parallel_replicas_custom_key"}
)
OWN_COLLECTION = "oncluster_peer_"
"""How the names of named collections with this node's own passwords begin."""
_SUSPICIOUS = re.compile(
    r"file|attach|executable|sqlite|rocksdb|local|python|queryrunner|ssd_cache|yamlregexptree|disk|database|\\x",
    re.IGNORECASE,
)
"""Without any of it a text is fine."""
_PEERS = re.compile(rf"{OWN_COLLECTION}|\\x", re.IGNORECASE)
_BEFORE_NAMES = frozenset(
    {"INTO", "TABLE", "EXISTS", "VIEW", "DICTIONARY", "INDEX", "PROJECTION", "CONSTRAINT", "."}
)
"""What follows is a name and no function, also where a bracket comes next."""
_STRINGS = (TokenKind.STRING, TokenKind.HEREDOC)
_VALUES = (TokenKind.WORD, TokenKind.IDENTIFIER, *_STRINGS)


def check_statement(statement: Statement, sql: str, *, names_peers: bool = False) -> None:
    """Raises SqlError 358 for INTO OUTFILE, 1 for SYSTEM SHUTDOWN and KILL, which would end the process at
    once, 497 for this node's own named collections unless it has put them there itself, and as
    `check_text`."""
    if statement.into_outfile is not None:
        raise _writes_file()
    if statement.system_command.upper() in ("SHUTDOWN", "KILL"):
        raise SqlError(
            Code.UNSUPPORTED_METHOD,
            f"SYSTEM {statement.system_command.upper()} is not supported.",
            hint="Send the node's process SIGTERM.",
        )
    check_text(sql)
    if not names_peers and _PEERS.search(sql):
        _check_peers(_tokens(sql))


def check_settings(settings: Mapping[str, str]) -> None:
    """As `check_text`, of settings whose values are expressions."""
    for name in settings.keys() & _SETTINGS_WITH_EXPRESSIONS:
        _check_string(settings[name])


def check_text(sql: str) -> None:
    """Raises SqlError 497 for engines and functions over files of the machine and for ATTACH … FROM, which
    would move one of its directories, 482 for dictionaries whose source is a command, 48 for the end of
    database `default`, 358 for INTO OUTFILE and 78 for FROM INFILE, which may stand behind PARALLEL WITH,
    too."""
    if _SUSPICIOUS.search(sql):
        _check(_tokens(sql))


def denied(what: str) -> SqlError:
    """The error for something that is not for statements."""
    return SqlError(Code.ACCESS_DENIED, f"{what} would read or write files of the node's machine")


def _writes_file() -> SqlError:
    return SqlError(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed")


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


def _check_peers(tokens: Sequence[Token]) -> None:
    if any(literal_value(token).startswith(OWN_COLLECTION) for token in tokens if token.kind in _VALUES):
        raise SqlError(Code.ACCESS_DENIED, f"Named collections {OWN_COLLECTION}… are for the node alone")


def _check(tokens: Sequence[Token]) -> None:
    names = [literal_value(token) if token.is_name else token.text for token in tokens]
    words = [name.upper() for name in names]
    for at, word in enumerate(words):
        if word == "FILE":
            if names[at] == "file" and _is_function(words, at):
                raise denied("Function file")
        elif word == "ENGINE":
            _check_engine(tokens[at + 1 + (words[at + 1 : at + 2] == ["="]) :])
        elif word == "ATTACH":
            if _has_path(tokens[at + 1 :]):
                raise denied("ATTACH … FROM")
        elif word in ("INFILE", "OUTFILE"):
            _check_clause(word, words[at - 1], tokens[at + 1 :])
        elif word == "DATABASE" and words[at - 1] in _TAKE_AWAY:
            _check_taken_away(names[at + 1 :])
        elif word == "COLLECTION" and words[at - 1] == "NAMED":
            if any(_is_file_url(token) for token in tokens):
                raise denied("A named collection with this URL")
        elif words[at + 1 : at + 2] == ["("]:
            if word == "SQLITE":
                raise denied("Function sqlite")
            if word == "PYTHON" and _is_function(words, at):
                raise SqlError(Code.ACCESS_DENIED, "Function Python would read the node's own variables")
            if word == "SOURCE" and _begins_with(words[at + 2 :], _COMMAND_SOURCES):
                raise SqlError(
                    Code.DICTIONARY_ACCESS_DENIED,
                    "Dictionaries with executable dictionary source are not allowed to be created from DDL "
                    "query",
                )
            if word == "SOURCE" and _begins_with(words[at + 2 :], _FILE_SOURCES):
                raise denied("A dictionary with this source")
            if word == "LAYOUT" and _begins_with(words[at + 2 :], _FILE_LAYOUTS):
                raise denied("A dictionary with this layout")
            if word == "DISK" and any(map(_is_outside, _arguments(tokens[at + 1 :]))):
                raise denied("A disk of the table's own")
    if _SETTINGS_WITH_EXPRESSIONS & set(names) or ("DICTIONARY" in words[:6] and "SOURCE" in words):
        for token in tokens:
            _check_string(literal_value(token) if token.kind in _STRINGS else "")


def _check_string(text: str) -> None:
    """A string that is, or holds, an expression."""
    check_text(text)
    if "'" in text or "$" in text:
        for token in _tokens(text):
            _check_string(literal_value(token) if token.kind in _STRINGS else "")


def _is_function(words: Sequence[str], at: int) -> bool:
    before = list(words[max(0, at - 2) : at])
    if before[-1:] == ["APPLY"] or before == ["APPLY", "("]:
        return True
    return words[at + 1 : at + 2] == ["("] and not _BEFORE_NAMES.intersection(before[-1:])


def _has_path(behind: Sequence[Token]) -> bool:
    """Whether ATTACH is one of a table, FROM 'path'."""
    if not behind or behind[0].text.upper() not in ("TABLE", "TEMPORARY"):
        return False
    for token, following in pairwise(behind):
        if token.text == "(":
            return False
        if token.text.upper() == "FROM" and following.kind in _STRINGS:
            return True
    return False


def _check_taken_away(behind: Sequence[str]) -> None:
    """Of the names behind DROP, DETACH and RENAME DATABASE."""
    for before, name in pairwise(["", *behind]):
        if before.upper() in ("PARALLEL", "SETTINGS", "ON"):
            return
        if name == _NEEDED_DATABASE and before.upper() != "TO":
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"Database {name} cannot be dropped, detached or renamed: nobody could connect without it.",
                hint=f"TRUNCATE DATABASE {name} drops the tables in it.",
            )


def _check_clause(word: str, before: str, behind: Sequence[Token]) -> None:
    if not behind or behind[0].kind not in _STRINGS:
        return
    if (before, word) == ("INTO", "OUTFILE"):
        raise _writes_file()
    if (before, word) == ("FROM", "INFILE"):
        raise SqlError(Code.UNKNOWN_TYPE_OF_QUERY, "Query has infile and was send directly to server")


def _begins_with(words: Sequence[str], any_of: frozenset[str]) -> bool:
    return not any_of.isdisjoint(words[:1])


def _is_outside(token: Token) -> bool:
    """Of the arguments of a disk: it is one of the machine's, or climbs out of one of the node's."""
    value = literal_value(token)
    return value in _LOCAL_DISKS or ".." in value.split("/")


def _check_engine(tokens: Sequence[Token]) -> None:
    """`tokens` begin with the engine's name."""
    name = literal_value(tokens[0]) if tokens and tokens[0].is_name else ""
    if name == _RUNNER_ENGINE:
        raise SqlError(
            Code.ACCESS_DENIED, f"Engine {name} would run texts that nobody has looked at as statements"
        )
    strings = [token for token in _arguments(tokens[1:]) if token.kind in _STRINGS]
    has_path = (name == "URL" and any(map(_is_file_url, strings))) or (name == "EmbeddedRocksDB" and strings)
    if name in _FILE_ENGINES or has_path:
        raise denied(f"Engine {name}")


def _is_file_url(token: Token) -> bool:
    return token.kind in _STRINGS and literal_value(token).strip().lower().startswith("file:")


def _arguments(tokens: Sequence[Token]) -> Sequence[Token]:
    """What stands in the brackets that `tokens` begin with; nothing if they begin otherwise."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return tokens[1:at]
    return tokens[1:]
