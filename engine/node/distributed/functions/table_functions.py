"""`cluster()`, `clusterAllReplicas()`, `remote()`, `remoteSecure()` in FROM and INSERT INTO: found on tokens.

An address of `remote()` is a host id of `remote_servers` where there is one with that host and port; any
other is taken for the address of an HTTP interface (port 8123 by default, 8443 with TLS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.sql.cursor import Cursor, Role
from engine.sql.tokens import Token, TokenKind, literal_value

_FUNCTIONS = frozenset({"CLUSTER", "CLUSTERALLREPLICAS", "REMOTE", "REMOTESECURE"})
_BEFORE = frozenset({"FROM", "JOIN", ",", "(", "TABLE", "DESCRIBE", "DESC"})
_LITERALS = (TokenKind.STRING, TokenKind.HEREDOC)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_PORT = 65535
_ONE = TableName("system", "one")
"""What is read where a call names no table."""
FUNCTION_PLACE = "oncluster table function {}"
"""The name, with a number, that stands for a table function in the place of a table (`inner_calls`)."""
_FUNCTION_PLACE = re.compile(FUNCTION_PLACE.format(r"\d+"))


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A call in the text. `cluster` is what it reads; its `name` is empty for `remote()`. `table` may be a
    name that stands for a table function (`InnerCalls`)."""

    start: int
    end: int
    cluster: Cluster
    table: TableName
    sharding_key: str = ""


def table_functions(
    sql: str, topology: Callable[[], Topology], current_database: str
) -> Sequence[TableFunction]:
    """All calls in the order of the text, in which `InnerCalls` has put names in the places of table
    functions. Raises SqlError 701 for a cluster that is not there, 42 and 36 for wrong arguments."""
    cursor = Cursor(sql)
    calls = (_call(cursor, at, topology(), current_database) for at in outer_calls(cursor))
    return [call for call in calls if call is not None]


def refused_to_readers() -> SqlError:
    """To be raised before anything is asked of another server: a user who may only read could have the node
    connect to any address, with any password."""
    return SqlError(Code.READONLY, "Cannot read other servers by a table function in readonly mode.")


def outer_calls(cursor: Cursor) -> Iterator[int]:
    """The tokens of the functions' names, without those inside of another call."""
    behind = 0
    for at, word in enumerate(cursor.words):
        if at <= behind or word not in _FUNCTIONS or cursor.words[at + 1 : at + 2] != ["("]:
            continue
        if cursor.words[at - 1] not in _BEFORE:
            continue
        cursor.at = at + 1
        if cursor.skip_brackets():
            behind = cursor.at - 1
            yield at


def calls_of(cursor: Cursor) -> Iterator[int]:
    """The same, also of what an INSERT writes to."""
    behind = 0
    for at, word in enumerate(cursor.words):
        if at <= behind or word not in _FUNCTIONS or cursor.words[at + 1 : at + 2] != ["("]:
            continue
        cursor.at = at + 1
        if cursor.words[at - 1] in (*_BEFORE, "FUNCTION") and cursor.skip_brackets():
            behind = cursor.at - 1
            yield at


def arguments_of(cursor: Cursor, at: int) -> Sequence[tuple[Token, ...]]:
    """Those of the call whose name is token `at`."""
    cursor.at = at + 1
    cursor.skip_brackets()
    return _arguments(cursor, at + 2, cursor.at - 1)


def any_cluster_function(sql: str, *, of_create: bool) -> str:
    """The name of a call that names a cluster; `of_create`: only one that a CREATE TABLE makes a table of,
    also one of addresses. chDB would write through such a table by itself, past Keeper."""
    cursor = Cursor(sql)
    before = ("AS",) if of_create else (*_BEFORE, "AS")
    names = ("CLUSTER", "CLUSTERALLREPLICAS", *(("REMOTE", "REMOTESECURE") if of_create else ()))
    for at, word in enumerate(cursor.words):
        is_call = word in names and cursor.words[at + 1 : at + 2] == ["("]
        if is_call and at and cursor.words[at - 1] in before:
            return cursor.tokens[at].text
    return ""


def inner_function(cursor: Cursor, at: int) -> Sequence[Token]:
    """The tokens of a table function in the place of the table, of the call whose name is token `at`."""
    cursor.at = at + 1
    cursor.skip_brackets()
    arguments = _arguments(cursor, at + 2, cursor.at - 1)
    table = arguments[1] if len(arguments) > 1 else ()
    if [token.text for token in table[1:2]] != ["("] or not table[0].is_name:
        return ()
    return () if _source(cursor.sql, table).lower() == "currentdatabase()" else table


def target_function(
    sql: str, topology: Callable[[], Topology], current_database: str
) -> TableFunction | None:
    """What INSERT INTO [TABLE] FUNCTION writes to; `start` is that of TABLE or FUNCTION. None for any other
    INSERT. Raises as `table_functions`, and SqlError 48 for a table function in the place of a table."""
    cursor = Cursor(sql)
    if not cursor.accept("INSERT", "INTO"):
        return None
    start = cursor.token.start
    cursor.accept("TABLE")
    if not cursor.accept("FUNCTION") or cursor.word not in _FUNCTIONS:
        return None
    call = _call(cursor, cursor.at, topology(), current_database)
    return None if call is None else replace(call, start=start)


def described_function(
    sql: str, topology: Callable[[], Topology], current_database: str
) -> TableFunction | None:
    """What DESCRIBE [TABLE] is about; None for any other statement. Raises as `table_functions`."""
    cursor = Cursor(sql)
    if not (cursor.accept("DESCRIBE") or cursor.accept("DESC")):
        return None
    cursor.accept("TABLE")
    return _call(cursor, cursor.at, topology(), current_database) if cursor.word in _FUNCTIONS else None


def _call(cursor: Cursor, at: int, topology: Topology, current_database: str) -> TableFunction | None:
    sql, word = cursor.sql, cursor.words[at]
    cursor.at = at + 1
    if not cursor.skip_brackets():
        return None
    end = cursor.at
    arguments = _arguments(cursor, at + 2, end - 1)
    of = _of_cluster if word.startswith("CLUSTER") else _of_addresses
    cluster, table, key = of(sql, word, arguments, topology, current_database)
    return TableFunction(cursor.tokens[at].start, cursor.tokens[end - 1].end, cluster, table, key)


def _arguments(cursor: Cursor, begin: int, end: int) -> list[tuple[Token, ...]]:
    arguments: list[tuple[Token, ...]] = []
    cursor.at = start = begin
    while cursor.at < end:
        if cursor.word == ",":
            arguments.append(tuple(cursor.tokens[start : cursor.at]))
            start = cursor.at = cursor.at + 1
        elif not cursor.skip_brackets():
            cursor.at += 1
    return [*arguments, tuple(cursor.tokens[start:end])] if end > begin else []


def _of_cluster(
    sql: str, word: str, arguments: list[tuple[Token, ...]], topology: Topology, current: str
) -> tuple[Cluster, TableName, str]:
    if not 1 <= len(arguments) <= 4:
        raise _wrong_number(word)
    cluster = topology.cluster(_macros(_text(sql, arguments[0]), topology))
    table, used = _table(sql, arguments[1:], current) if len(arguments) > 1 else (_ONE, 0)
    key = _source(sql, arguments[1 + used]) if len(arguments) > 1 + used else ""
    if word == "CLUSTERALLREPLICAS":
        replicas = cluster.replicas
        shards = tuple(Shard(number, (replica,)) for number, replica in enumerate(replicas, start=1))
        cluster = Cluster(cluster.name, shards)
    return cluster, table, key


def _of_addresses(
    sql: str, word: str, arguments: list[tuple[Token, ...]], topology: Topology, current: str
) -> tuple[Cluster, TableName, str]:
    if not 1 <= len(arguments) <= 6:
        raise _wrong_number(word)
    table, used = _table(sql, arguments[1:], current) if len(arguments) > 1 else (_ONE, 0)
    others = arguments[1 + used :]
    key = ""
    if others and not (len(others[-1]) == 1 and others[-1][0].kind in _LITERALS):
        key = _source(sql, others.pop())
    rest = [_text(sql, argument) for argument in others]
    user, password = (rest[0] if rest else ""), (rest[1] if len(rest) > 1 else "")
    name = _text(sql, arguments[0])
    if name in topology.clusters and arguments[0][0].kind is not TokenKind.STRING:
        return topology.cluster(name), table, key
    shards = []
    for number, shard in enumerate(_expanded(name), start=1):
        replicas = tuple(
            _replica(address, user, password, topology, is_secure=word == "REMOTESECURE")
            for address in shard.split("|")
        )
        shards.append(Shard(number, replicas))
    return Cluster("", tuple(shards)), table, key


def _replica(address: str, user: str, password: str, topology: Topology, *, is_secure: bool) -> Replica:
    host, colon, text = address.strip().rpartition(":")
    if not colon or text.endswith("]"):
        host, text = address.strip(), ""
    elif not text.isdigit() or int(text) > _MAX_PORT:
        raise SqlError(Code.BAD_ARGUMENTS, f"'{text}' in the address {address.strip()} is no port")
    for cluster in topology.clusters.values():
        for replica in cluster.replicas:
            if replica.host == host and text in ("", str(replica.port)):
                return Replica(
                    replica.host,
                    replica.port,
                    user=user or replica.user,
                    password=password if user else replica.password,
                    default_database=replica.default_database,
                    secure=replica.secure,
                    http_host=replica.http_host,
                    http_port=replica.http_port,
                )
    port = int(text) if text else 0
    return Replica(host, port, user=user or "default", password=password, secure=is_secure, http_port=port)


def _expanded(text: str) -> list[str]:
    """Addresses with commas between; `{1..3}` and `{a,b}` stand for several."""
    found = [""]
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    expanded: list[str] = []
    for one in found:
        expanded += _alternatives(one)
    return expanded


def _alternatives(text: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        return [text]
    numbers = _RANGE.fullmatch(match.group())
    words = [str(n) for n in range(int(numbers[1]), int(numbers[2]) + 1)] if numbers else match[1].split(",")
    return [
        one for word in words for one in _alternatives(text[: match.start()] + word + text[match.end() :])
    ]


def _table(sql: str, arguments: Sequence[tuple[Token, ...]], current: str) -> tuple[TableName, int]:
    """The table, and how many arguments name it: `db.t`, or `db, t`."""
    first = Cursor(_source(sql, arguments[0]))
    ref = first.table(Role.SOURCE)
    if ref is not None and first.at_end and ref.name.database:
        return ref.name, 1
    text = _text(sql, arguments[0])
    if _FUNCTION_PLACE.fullmatch(text):
        return TableName("", text), 1
    is_current = text.lower() == "currentdatabase()"
    if not is_current and [token.text for token in arguments[0][1:2]] == ["("]:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"INSERT INTO FUNCTION cannot write to the table function {text} on other nodes.",
            hint="Give the name of a table there.",
        )
    if len(arguments) > 1:
        return TableName(current if is_current else text, _text(sql, arguments[1])), 2
    database, dot, table = text.partition(".")
    return (TableName(database, table), 1) if dot else (TableName(current, text), 1)


def _text(sql: str, argument: tuple[Token, ...]) -> str:
    if len(argument) == 1 and argument[0].kind is not TokenKind.NUMBER:
        return literal_value(argument[0])
    return _source(sql, argument)


def _source(sql: str, argument: tuple[Token, ...]) -> str:
    if not argument:
        raise SqlError(Code.BAD_ARGUMENTS, "An argument of a table function is empty")
    return sql[argument[0].start : argument[-1].end]


def _macros(name: str, topology: Topology) -> str:
    for macro, value in topology.macros.items():
        name = name.replace(f"{{{macro}}}", value)
    return name


def _wrong_number(word: str) -> SqlError:
    return SqlError(
        Code.NUMBER_OF_ARGUMENTS_DOESNT_MATCH,
        f"Table function '{word.lower()}' takes a cluster or addresses, and a table: database.table or "
        "database, table.",
    )
