"""OPTIMIZE, DELETE, UPDATE, KILL, BACKUP, RESTORE, INSERT, SELECT and the small statements."""

from __future__ import annotations

from engine.sql.cursor import Role
from engine.sql.draft import Draft
from engine.sql.kinds import StatementKind as K


def optimize(d: Draft) -> None:
    d.accept("TABLE")
    if d.table_ref():
        d.kind = K.OPTIMIZE
        d.on_cluster_here()
        d.tail = d.at
        d.discards = "DEDUPLICATE" in d.words[d.at :]


def delete(d: Draft) -> None:
    if d.accept("FROM") and d.table_ref():
        d.kind = K.DELETE
        d.on_cluster_here()
        d.body = d.at


def update(d: Draft) -> None:
    if d.table_ref():
        d.kind = K.UPDATE
        d.on_cluster_here()
        d.body = d.at


def kill(d: Draft) -> None:
    if d.accept("QUERY"):
        d.kind = K.KILL_QUERY
    elif d.accept("MUTATION"):
        d.kind = K.KILL_MUTATION
    else:
        d.kind = K.KILL_OTHER
        if not d.accept_one_of("TRANSACTION", "PART_MOVE_TO_SHARD"):
            return
    d.on_cluster_here()
    d.body = d.tail = d.at


def backup(d: Draft, verb: str) -> None:
    """BACKUP and RESTORE: a list of elements, ON CLUSTER, TO or FROM."""
    d.kind = K.BACKUP if verb == "BACKUP" else K.RESTORE
    while True:
        if d.accept("TEMPORARY", "TABLE"):
            d.table(Role.OBJECT)
            if d.accept("AS"):
                d.table(Role.OBJECT)
        elif d.accept_one_of("TABLE", "DICTIONARY", "VIEW"):
            d.table_ref()
            if d.accept("AS"):
                d.table_ref(Role.TARGET)
            if d.accept_one_of("PARTITION", "PARTITIONS"):
                _partitions(d)
        elif d.accept("DATABASE"):
            d.identifier()
            if d.accept("AS"):
                d.identifier()
            _except(d, tables_have_a_database=True)
        elif d.accept("ALL"):
            _except(d, tables_have_a_database=False)
        else:
            d.kind = K.OTHER
            return
        if not d.accept(","):
            break
    d.on_cluster_here()
    d.tail = d.at


def _except(d: Draft, *, tables_have_a_database: bool) -> None:
    """EXCEPT; behind DATABASE d its tables are those of `d`, whatever the current database is."""
    if not d.accept("EXCEPT"):
        return
    step = d.table if tables_have_a_database else d.table_ref
    if d.accept_one_of("DATABASE", "DATABASES"):
        d.identifier()
        while d.accept(","):
            d.identifier()
    elif d.accept_one_of("TABLE", "TABLES"):
        step(Role.OBJECT)
        while d.accept(","):
            step(Role.OBJECT)
    _except(d, tables_have_a_database=tables_have_a_database)


def _partitions(d: Draft) -> None:
    while True:
        d.accept("ID")
        if not d.skip_brackets():
            d.at += 1
        if d.word != "," or d.words[d.at + 1 : d.at + 2] in (["TABLE"], ["DATABASE"], ["ALL"], ["VIEW"]):
            return
        d.at += 1


def insert(d: Draft) -> None:
    """INSERT INTO [TABLE] [db.]t | FUNCTION f(…); the rows behind it are not looked at."""
    d.kind = K.INSERT
    d.accept("INTO")
    if d.accept("FUNCTION"):
        d.name = d.identifier()
    else:
        d.accept("TABLE")
        d.table_ref()
    d.body = d.at
    while not d.at_end:
        if d.word in ("SELECT", "WITH", "VALUES"):
            return
        if d.word == "FORMAT" and d.at + 1 < len(d.tokens):
            d.at += 1
            d.format = d.identifier()
            return
        if not d.skip_brackets():
            d.at += 1


def check(d: Draft) -> None:
    if d.accept("GRANT"):
        d.kind = K.CHECK_GRANT
        return
    d.kind = K.CHECK_TABLE
    if d.accept("TABLE"):
        d.table_ref()
    d.tail = d.at


def set_command(d: Draft) -> None:
    if d.looking_at("ROLE") or d.looking_at("DEFAULT", "ROLE"):
        d.kind = K.SET_ROLE
    elif d.looking_at("TRANSACTION"):
        d.kind = K.TRANSACTION
    else:
        d.kind = K.SET


def use(d: Draft) -> None:
    d.kind = K.USE
    d.accept("DATABASE")
    d.database = d.identifier()


def describe(d: Draft) -> None:
    d.kind = K.DESCRIBE
    d.accept("TABLE")
    if d.words[d.at + 1 : d.at + 2] != ["("]:
        d.table_ref()
    d.body = d.tail = d.at


def exists(d: Draft) -> None:
    d.kind = K.EXISTS
    if d.accept("DATABASE"):
        d.database = d.identifier()
    else:
        d.accept("TEMPORARY")
        d.accept_one_of("TABLE", "VIEW", "DICTIONARY")
        d.table_ref()
    d.tail = d.at
