"""The rules of `engine.migrations.lint` that look at one statement. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from engine.distributed.definition import DistributedDefinition
from engine.errors import Code, SqlError
from engine.migrations.files import Direction, Script, ScriptStatement
from engine.migrations.replica_places import TELLS_SHARDS_APART
from engine.migrations.statements import ADVICE, Surroundings, check_length
from engine.sql import (
    AlterCommand,
    Statement,
    StatementKind,
    Token,
    TokenKind,
    literal_value,
    parse_statement,
    redact,
    tokenize,
)
from engine.sql.engine_clause import behind_engine, string_arguments

Note = tuple[str, str, int]
"""Rule, message, ClickHouse's code or 0."""

_K = StatementKind
_DATA = frozenset({_K.SELECT, _K.INSERT, _K.SHOW, _K.DESCRIBE, _K.EXISTS, _K.EXPLAIN, _K.SET, _K.USE})
_MAKES = frozenset(
    {
        *(_K.CREATE_TABLE, _K.CREATE_VIEW, _K.CREATE_MATERIALIZED_VIEW, _K.CREATE_DICTIONARY),
        *(_K.CREATE_DATABASE, _K.CREATE_FUNCTION, _K.CREATE_INDEX, _K.CREATE_NAMED_COLLECTION),
        *(_K.CREATE_USER, _K.CREATE_ROLE, _K.CREATE_QUOTA, _K.CREATE_ROW_POLICY, _K.CREATE_SETTINGS_PROFILE),
    }
)
_REMOVES = frozenset(
    {
        *(_K.DROP_TABLE, _K.DROP_VIEW, _K.DROP_DICTIONARY, _K.DROP_DATABASE, _K.DROP_FUNCTION, _K.DROP_INDEX),
        *(_K.DROP_NAMED_COLLECTION, _K.DROP_USER, _K.DROP_ROLE, _K.DROP_QUOTA, _K.DROP_ROW_POLICY),
        *(
            _K.DROP_SETTINGS_PROFILE,
            _K.DETACH_TABLE,
            _K.DETACH_VIEW,
            _K.DETACH_DICTIONARY,
            _K.DETACH_DATABASE,
        ),
        *(_K.RENAME_TABLE, _K.RENAME_DICTIONARY, _K.RENAME_DATABASE),
    }
)
_NOT_REPEATABLE = frozenset({_K.EXCHANGE_TABLES, _K.EXCHANGE_DICTIONARIES})
_KAFKA_NEEDS = ("kafka_broker_list", "kafka_topic_list", "kafka_group_name", "kafka_format")
"""In the order of the engine's arguments, which settings may stand for."""
_PARTS_OF_A_TABLE = frozenset({"COLUMN", "INDEX", "PROJECTION", "CONSTRAINT", "STATISTICS"})
_GUARDED_BY = {"ADD": "IF NOT EXISTS", "DROP": "IF EXISTS", "CLEAR": "IF EXISTS", "RENAME": "IF EXISTS"}


def check_statement(
    script: Script, statement: ScriptStatement, surroundings: Surroundings, *, is_sql: bool = True
) -> list[Note]:
    """Everything there is to say about the statement, silenced or not. Of what ClickHouse's parser does not
    take for SQL nobody knows whether it goes ON CLUSTER."""
    parsed = parse_statement(statement.sql)
    words = [token for token in tokenize(statement.sql) if token.is_significant]
    notes: list[Note] = []
    notes += _cluster(statement, parsed, surroundings)
    if is_sql:
        notes += _support(parsed)
    notes += _length(statement)
    if script.direction is Direction.UP and parsed.is_destructive:
        notes.append(("destructive", f"{_what(parsed)} loses what is there", 0))
    if script.direction is Direction.UP and parsed.rewrites_data:
        notes.append(("rewrites-data", f"{_what(parsed)} may write stored data anew on every replica", 0))
    notes += _repeatable(parsed, words)
    notes += _engine(statement, parsed, words, surroundings)
    notes += _filled(statement, parsed, words, surroundings)
    notes += _distributed(statement, parsed, words, surroundings)
    notes += _kafka(parsed, words)
    if redact(statement.sql) != statement.sql:
        notes.append(
            ("secret", "a secret stands in the file and goes through Keeper; use a named collection", 0)
        )
    return notes


def _what(parsed: Statement) -> str:
    if parsed.alter_commands:
        return ", ".join(dict.fromkeys(command.value for command in parsed.alter_commands))
    if parsed.kind is _K.SYSTEM:
        return f"SYSTEM {parsed.system_command}".rstrip()
    if parsed.kind is _K.OTHER:
        return "a statement that begins like this; is a word misspelt?"
    return parsed.kind.value.replace(" ", " TEMPORARY ", 1) if parsed.temporary else parsed.kind.value


def _cluster(statement: ScriptStatement, parsed: Statement, surroundings: Surroundings) -> Iterator[Note]:
    try:
        name = surroundings.cluster_of(statement, parsed)
        if name != surroundings.cluster:
            surroundings.topology.cluster(name)
    except SqlError as error:
        rule = "unknown-cluster" if error.code == Code.CLUSTER_DOESNT_EXIST else "other-cluster"
        yield rule, str(error), error.code


def _support(parsed: Statement) -> Iterator[Note]:
    if parsed.kind in _DATA:
        advice = ADVICE.get(parsed.kind, "load and check data outside of migrations")
        message = f"{parsed.kind} does not go through ON CLUSTER; {advice}"
        yield "data-statement", message, int(Code.NOT_IMPLEMENTED)
    elif not parsed.supports_on_cluster:
        yield "not-on-cluster", f"ClickHouse has no ON CLUSTER for {_what(parsed)}", int(Code.NOT_IMPLEMENTED)
    elif not parsed.alter_is_allowed_on_cluster:
        yield "not-on-cluster", f"ClickHouse refuses {_what(parsed)} ON CLUSTER", int(Code.NOT_IMPLEMENTED)


def _length(statement: ScriptStatement) -> Iterator[Note]:
    try:
        check_length(statement.sql, statement)
    except SqlError as error:
        yield "too-long", str(error), error.code


def _repeatable(parsed: Statement, words: list[Token]) -> Iterator[Note]:
    if parsed.kind in _MAKES and not (parsed.if_not_exists or parsed.or_replace):
        yield "not-repeatable", f"{parsed.kind} without IF NOT EXISTS", 0
    elif parsed.kind in _REMOVES and not parsed.if_exists:
        yield "not-repeatable", f"{parsed.kind} without IF EXISTS", 0
    elif parsed.kind in _NOT_REPEATABLE:
        yield "not-repeatable", f"{parsed.kind} a second time undoes the first", 0
    elif parsed.kind is _K.ALTER_TABLE:
        if AlterCommand.ATTACH_PARTITION_FROM in parsed.alter_commands:
            yield "not-repeatable", "ATTACH PARTITION FROM a second time adds the same rows again", 0
        upper = [word.text.upper() if word.kind is TokenKind.WORD else "" for word in words]
        for at in range(len(upper) - 1):
            verb, noun = upper[at], upper[at + 1]
            guard = _GUARDED_BY.get(verb)
            if guard is None or noun not in _PARTS_OF_A_TABLE or not _begins_command(words[at - 1]):
                continue
            if " ".join(upper[at + 2 : at + 2 + len(guard.split())]) != guard:
                yield "not-repeatable", f"{verb} {noun} without {guard}", 0


def _begins_command(before: Token) -> bool:
    """A verb opens a command after the table's name, after a comma or within command parentheses."""
    return before.text in (",", "(") or before.kind in (
        TokenKind.WORD,
        TokenKind.IDENTIFIER,
        TokenKind.STRING,
    )


def _engine(
    statement: ScriptStatement, parsed: Statement, words: list[Token], surroundings: Surroundings
) -> Iterator[Note]:
    engine = parsed.engine or ""
    if parsed.kind not in (_K.CREATE_TABLE, _K.CREATE_MATERIALIZED_VIEW) or not engine.endswith("MergeTree"):
        return
    try:
        cluster = surroundings.topology.cluster(surroundings.cluster_of(statement, parsed))
    except SqlError:
        return
    replicas = max((len(shard.replicas) for shard in cluster.shards), default=0)
    if not engine.startswith(("Replicated", "Shared")):
        if replicas > 1:
            yield (
                "not-replicated",
                f"{engine} on shards of {replicas} replicas: each keeps only the rows that are sent to it",
                0,
            )
        return
    if not engine.startswith("Replicated"):
        return
    arguments = string_arguments(behind_engine(words, engine))
    if len(arguments) == 1 and "Graphite" not in engine:  # its only one may be the rules' name
        text = f"{engine} needs a path and the replica's name, or neither: every host refuses it"
        yield "engine-arguments", text, int(Code.BAD_ARGUMENTS)
    if len(arguments) < 2:
        return
    path, replica = arguments[:2]
    if len(cluster.shards) > 1 and not TELLS_SHARDS_APART.search(path):
        yield (
            "replicated-path",
            f"the path {path} has no macro like {{shard}} or {{uuid}}: shards would share it",
            0,
        )
    if replicas > 1 and "{replica}" not in replica:
        yield "replicated-path", f"the replica's name {replica} lacks {{replica}}: replicas would share it", 0


def _filled(
    statement: ScriptStatement, parsed: Statement, words: list[Token], surroundings: Surroundings
) -> Iterator[Note]:
    """CREATE … AS SELECT and POPULATE run on each host: what one replica inserts the others have, too."""
    upper = [word.text.upper() if word.kind is TokenKind.WORD else word.text for word in words]
    is_filled = {
        _K.CREATE_TABLE: any(a == "AS" and b in ("SELECT", "WITH", "(") for a, b in pairwise(upper))
        and "EMPTY" not in upper,
        _K.CREATE_MATERIALIZED_VIEW: "POPULATE" in upper,
    }
    if not is_filled.get(parsed.kind, False):
        return
    try:
        cluster = surroundings.topology.cluster(surroundings.cluster_of(statement, parsed))
    except SqlError:
        return
    hosts = len(cluster.host_ids)
    if hosts > 1:
        text = (
            f"{parsed.kind} runs its SELECT on each of {hosts} hosts; make the table empty and fill it once"
        )
        yield "filled-by-each-host", text, 0


def _distributed(
    statement: ScriptStatement, parsed: Statement, words: list[Token], surroundings: Surroundings
) -> Iterator[Note]:
    if parsed.kind is not _K.CREATE_TABLE or parsed.engine != "Distributed":
        return
    behind = behind_engine(words, parsed.engine)
    if len(behind) < 2:
        return
    try:
        DistributedDefinition.parse(f"{parsed.engine}{statement.sql[behind[0].start :]}")
    except SqlError as error:  # servers may know more settings, and take more expressions for names
        if error.code == Code.NUMBER_OF_ARGUMENTS_DOESNT_MATCH:
            yield "engine-arguments", error.message, error.code
    cluster = literal_value(behind[1])
    known = surroundings.topology.clusters
    if "{" not in cluster and cluster not in known:
        yield (
            "distributed-cluster",
            f"no cluster {cluster} in the configuration; there are {', '.join(known)}",
            int(Code.CLUSTER_DOESNT_EXIST),
        )


def _kafka(parsed: Statement, words: list[Token]) -> Iterator[Note]:
    """A rehearsal makes no Kafka table, which would read. A named collection may have what is missing."""
    if parsed.kind is not _K.CREATE_TABLE or parsed.engine != "Kafka":
        return
    behind = behind_engine(words, parsed.engine)
    texts = [word.text for word in behind]
    given = len(string_arguments(behind))
    if texts[:1] == ["("] and texts[1:2] != [")"] and not given:
        return
    if missing := [name for name in _KAFKA_NEEDS[given:] if name not in texts]:
        text = f"Kafka needs {', '.join(missing)}: every host refuses it"
        yield "engine-arguments", text, int(Code.NUMBER_OF_ARGUMENTS_DOESNT_MATCH)
