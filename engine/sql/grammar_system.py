"""SYSTEM: the command's words, the table it concerns, and where ON CLUSTER belongs.

Source: ClickHouse's parser takes `SYSTEM <words> [ON CLUSTER c] [what]` for every command below, checked
against chDB; a few take the clause behind the table as well, and those of named caches behind it only.
"""

from __future__ import annotations

from engine.names import TableName
from engine.sql.cursor import NameRef, Role
from engine.sql.draft import Draft
from engine.sql.kinds import StatementKind as K

_CACHES = (
    "DNS",
    "CONNECTIONS",
    "MARK",
    "PRIMARY INDEX",
    "UNCOMPRESSED",
    "INDEX MARK",
    "INDEX UNCOMPRESSED",
    "VECTOR SIMILARITY INDEX",
    "TEXT INDEX TOKENS",
    "TEXT INDEX DICTIONARY",
    "TEXT INDEX HEADER",
    "TEXT INDEX POSTINGS",
    "MMAP",
    "QUERY CONDITION",
    "ENCRYPTION HEADERS",
    "QUERY",
    "COMPILED EXPRESSION",
    "ICEBERG METADATA",
    "PAIMON METADATA",
    "PARQUET METADATA",
    "POINT IN POLYGON",
    "FILESYSTEM",
    "DISTRIBUTED",
    "DISK METADATA",
    "PAGE",
    "AVRO SCHEMA",
    "S3 CLIENT",
)
_ABOUT_THE_SERVER = (
    "SHUTDOWN",
    "KILL",
    "SUSPEND",
    "STOP LISTEN",
    "START LISTEN",
    "RESTART REPLICAS",
    "RESTORE DATABASE REPLICA",
    "DROP REPLICA",
    "DROP DATABASE REPLICA",
    "JEMALLOC PURGE",
    "JEMALLOC ENABLE PROFILE",
    "JEMALLOC DISABLE PROFILE",
    "JEMALLOC FLUSH PROFILE",
    "SYNC DATABASE REPLICA",
    "SYNC TRANSACTION LOG",
    "SYNC FILE CACHE",
    "SYNC FILESYSTEM CACHE",
    "REPLICA READY",
    "REPLICA UNREADY",
    "RELOAD DICTIONARIES",
    "UNLOAD DICTIONARIES",
    "RELOAD FUNCTION",
    "RELOAD FUNCTIONS",
    "RELOAD MODEL",
    "RELOAD MODELS",
    "RELOAD EMBEDDED DICTIONARIES",
    "RELOAD CONFIG",
    "RELOAD SYMBOLS",
    "RELOAD USERS",
    "RELOAD ASYNCHRONOUS METRICS",
    "RESTART DISK",
    "STOP REPLICATED DDL QUERIES",
    "START REPLICATED DDL QUERIES",
    "FLUSH LOGS",
    "FLUSH ASYNC INSERT QUEUE",
    "START THREAD FUZZER",
    "STOP THREAD FUZZER",
    "RESET COVERAGE",
    "RESET DDL WORKER",
    "RECONNECT ZOOKEEPER",
    "WAIT BLOBS CLEANUP",
    "INSTRUMENT ADD",
    "INSTRUMENT REMOVE",
    "CLEAR TEXT INDEX CACHES",
    "DROP TEXT INDEX CACHES",
    *(f"{verb} {cache} CACHE" for verb in ("CLEAR", "DROP") for cache in _CACHES),
)
_ABOUT_A_TABLE = (
    "PREWARM MARK CACHE",
    "PREWARM PRIMARY INDEX CACHE",
    "RESTART REPLICA",
    "RESTORE REPLICA",
    "WAIT LOADING PARTS",
    "WAIT QUERY RUNNER",
    "SYNC REPLICA",
    "RELOAD DICTIONARY",
    "UNLOAD DICTIONARY",
    "FLUSH DISTRIBUTED",
    "FLUSH OBJECT STORAGE QUEUE",
    "SCHEDULE MERGE",
    "SYNC MERGES",
    "LOAD PRIMARY KEY",
    "UNLOAD PRIMARY KEY",
    *(
        f"{verb} {what}"
        for verb in ("STOP", "START")
        for what in (
            "MERGES",
            "TTL MERGES",
            "FETCHES",
            "MOVES",
            "REPLICATED SENDS",
            "REPLICATION QUEUES",
            "DISTRIBUTED SENDS",
            "PULLING REPLICATION LOG",
            "CLEANUP",
            "VIRTUAL PARTS UPDATE",
            "REDUCE BLOCKING PARTS",
        )
    ),
)
_WITHOUT_CLUSTER_ABOUT_A_TABLE = (
    "REFRESH VIEW",
    "WAIT VIEW",
    "START VIEW",
    "STOP VIEW",
    "PAUSE VIEW",
    "CANCEL VIEW",
    "TEST VIEW",
    "START REPLICATED VIEW",
    "STOP REPLICATED VIEW",
)
_OF_NODES_ABOUT_A_TABLE = ("RESTORE BROKEN DISTRIBUTED FILES", "DROP BROKEN DISTRIBUTED FILES")
"""Commands of this project's nodes; ClickHouse has none for what they do."""
_CLAUSE_COMES_LAST = frozenset(
    {
        "CLEAR FILESYSTEM CACHE",
        "DROP FILESYSTEM CACHE",
        "SYNC FILESYSTEM CACHE",
        "CLEAR DISTRIBUTED CACHE",
        "DROP DISTRIBUTED CACHE",
    }
)
_TABLE_COMMANDS = frozenset(_ABOUT_A_TABLE + _WITHOUT_CLUSTER_ABOUT_A_TABLE + _OF_NODES_ABOUT_A_TABLE)
_CLUSTER_COMMANDS = frozenset(_ABOUT_THE_SERVER + _ABOUT_A_TABLE + _OF_NODES_ABOUT_A_TABLE)
_PHRASES = {tuple(phrase.split()) for phrase in _TABLE_COMMANDS | _CLUSTER_COMMANDS}
_LONGEST = max(len(phrase) for phrase in _PHRASES)


def system(d: Draft) -> None:
    """SYSTEM, from behind its first word."""
    d.kind = K.SYSTEM
    for length in range(min(_LONGEST, len(d.words) - d.at), 0, -1):
        words = tuple(d.words[d.at : d.at + length])
        if words in _PHRASES:
            break
    else:
        start = d.at
        while d.word.isalpha() and d.word not in ("ON", "WITH"):
            d.at += 1
        d.system_command = " ".join(d.words[start : d.at])
        return
    d.at += length
    d.system_command = " ".join(words)
    if d.system_command in _CLAUSE_COMES_LAST:
        while not d.at_end and not d.looking_at("ON", "CLUSTER"):
            d.at += 1
    if d.system_command in _CLUSTER_COMMANDS:
        d.on_cluster_here()
    if d.system_command in _TABLE_COMMANDS:
        _table(d)
    elif d.system_command == "DROP REPLICA" and d.skip_to("FROM"):
        d.at += 1
        if d.accept("TABLE"):
            d.table_ref()
        elif d.accept("DATABASE"):
            d.database = d.identifier()
    elif d.system_command in ("SYNC DATABASE REPLICA", "RESTORE DATABASE REPLICA"):
        d.database = d.identifier()
    elif not d.at_end:
        d.identifier_or_string()
    if d.cluster_at is not None:
        d.accept_on_cluster()


def _table(d: Draft) -> None:
    """The table or dictionary; a dictionary may be given as a string, whose content is a name."""
    d.accept_if_exists()
    if d.looking_at("ON", "VOLUME"):
        return
    text = d.identifier_or_string() if d.word == "" else None
    if text is not None and d.word != ".":
        token = d.tokens[d.at - 1]
        if token.text[0] not in '`"“':
            # What a string names is for the server to find out.
            return
        if not d.system_command.endswith("DICTIONARY"):
            d.refs.append(NameRef(token.start, token.end, TableName("", text), Role.OBJECT))
        return
    if text is not None:
        d.at -= 1
    ref = d.table(Role.OBJECT)
    # A dictionary without a database may be one of the configuration's, which have none.
    if ref is not None and (ref.name.database or not d.system_command.endswith("DICTIONARY")):
        d.refs.append(ref)
