"""CREATE, ATTACH, DROP, DETACH, TRUNCATE, RENAME and their kin: tables, views, dictionaries, databases.

Each function is called behind the statement's first word. Text that does not follow the grammar leaves the
draft as far as it got: judging it is ClickHouse's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.sql.cursor import Role
from engine.sql.draft import Draft
from engine.sql.grammar_access import CREATE_ACCESS, DROP_ACCESS, access_entity, drop_access
from engine.sql.kinds import StatementKind as K

_VIEWS = {
    "MATERIALIZED": K.CREATE_MATERIALIZED_VIEW,
    "LIVE": K.CREATE_LIVE_VIEW,
    "WINDOW": K.CREATE_WINDOW_VIEW,
}
_NAMED = {
    ("FUNCTION",): K.CREATE_FUNCTION,
    ("NAMED", "COLLECTION"): K.CREATE_NAMED_COLLECTION,
    ("WORKLOAD",): K.CREATE_WORKLOAD,
    ("RESOURCE",): K.CREATE_RESOURCE,
}
_DROP_NAMED = {
    ("FUNCTION",): K.DROP_FUNCTION,
    ("NAMED", "COLLECTION"): K.DROP_NAMED_COLLECTION,
    ("WORKLOAD",): K.DROP_WORKLOAD,
    ("RESOURCE",): K.DROP_RESOURCE,
}
_ATTACHED = {
    K.CREATE_TABLE: K.ATTACH_TABLE,
    K.CREATE_DICTIONARY: K.ATTACH_DICTIONARY,
    K.CREATE_DATABASE: K.ATTACH_DATABASE,
    K.CREATE_VIEW: K.ATTACH_VIEW,
    K.CREATE_MATERIALIZED_VIEW: K.ATTACH_VIEW,
    K.CREATE_LIVE_VIEW: K.ATTACH_VIEW,
    K.CREATE_WINDOW_VIEW: K.ATTACH_VIEW,
}
_DROPPED = {
    "DROP": {
        "TABLE": K.DROP_TABLE,
        "VIEW": K.DROP_VIEW,
        "DICTIONARY": K.DROP_DICTIONARY,
        "DATABASE": K.DROP_DATABASE,
    },
    "DETACH": {
        "TABLE": K.DETACH_TABLE,
        "VIEW": K.DETACH_VIEW,
        "DICTIONARY": K.DETACH_DICTIONARY,
        "DATABASE": K.DETACH_DATABASE,
    },
}


def create(d: Draft, verb: str) -> None:
    """CREATE, REPLACE and ATTACH."""
    if verb == "REPLACE":
        d.or_replace = True
    if d.accept("OR", "REPLACE"):
        d.or_replace = True
    d.temporary = d.accept("TEMPORARY")
    _skip_definer(d)
    if d.accept("TABLE"):
        d.kind = K.CREATE_TABLE
        _table(d, attach=verb == "ATTACH")
    elif d.accept("DATABASE"):
        d.kind = K.CREATE_DATABASE
        _database(d)
    elif d.word in ("VIEW", *_VIEWS):
        d.kind = _VIEWS.get(d.accept_one_of(*_VIEWS), K.CREATE_VIEW)
        if d.accept("VIEW"):
            d.discards = d.kind is K.CREATE_MATERIALIZED_VIEW and _replaces_rows_of_a_table(d)
            _view(d)
    elif d.accept("DICTIONARY"):
        d.kind = K.CREATE_DICTIONARY
        d.accept_if_not_exists()
        if d.table_ref():
            d.accept_uuid()
            d.on_cluster_here()
            d.tail = d.at
    elif verb == "CREATE":
        _create_other(d)
    if verb == "ATTACH":
        d.kind = _ATTACHED.get(d.kind, K.OTHER)


def _replaces_rows_of_a_table(d: Draft) -> bool:
    """REFRESH … TO a table that may be there already, without APPEND. The cursor stays."""
    begin, words = d.at, set[str]()
    while not d.at_end and d.word not in ("AS", "SELECT"):
        words.add(d.word)
        if not d.skip_brackets():
            d.at += 1
    d.at = begin
    return {"REFRESH", "TO"} <= words and "APPEND" not in words


def _skip_definer(d: Draft) -> None:
    """DEFINER and SQL SECURITY may stand before VIEW."""
    while True:
        if d.word == "DEFINER":
            d.at += 1
            d.accept("=")
            d.identifier_or_string()
            if d.accept("@"):
                d.identifier_or_string()
        elif d.accept("SQL", "SECURITY"):
            d.at += 1
        else:
            return


def _create_other(d: Draft) -> None:
    d.accept("UNIQUE")
    if d.accept("INDEX"):
        d.kind = K.CREATE_INDEX
        d.accept_if_not_exists()
        _index(d)
        return
    if _named(d, _NAMED, d.accept_if_not_exists):
        if d.kind is K.CREATE_FUNCTION and d.name is not None:
            d.body = d.at
        return
    for words, kind in CREATE_ACCESS.items():
        if d.accept(*words):
            d.kind = kind
            access_entity(d)
            return


def _index(d: Draft) -> None:
    d.name = d.identifier()
    if d.accept("ON") and d.table_ref():
        d.on_cluster_here()


def _database(d: Draft) -> None:
    d.accept_if_not_exists()
    d.database = d.identifier()
    if d.database is None:
        return
    d.accept_uuid()
    d.on_cluster_here()
    d.body = d.tail = d.at
    if d.accept("ENGINE"):
        d.accept("=")
        d.engine = d.identifier()


def _table(d: Draft, *, attach: bool) -> None:
    d.accept_if_not_exists()
    if not d.table_ref():
        return
    d.accept_uuid()
    if attach and d.accept("FROM"):
        d.identifier_or_string()
    if (attach and d.looking_at("AS", "REPLICATED")) or d.looking_at("AS", "NOT", "REPLICATED"):
        _attach_as_replicated(d)
    d.on_cluster_here()
    d.body = d.tail = d.at
    _storage(d)


def _attach_as_replicated(d: Draft) -> None:
    """ATTACH TABLE t AS [NOT] REPLICATED [ON CLUSTER c]; behind ON CLUSTER it would be a table's name."""
    start = d.at
    d.accept("AS")
    d.accept("NOT")
    d.accept("REPLICATED")
    if not d.at_end and not d.looking_at("ON", "CLUSTER"):
        d.at = start


def _view(d: Draft) -> None:
    d.accept_if_not_exists()
    if not d.table_ref():
        return
    d.accept_uuid()
    d.on_cluster_here()
    d.body = d.tail = d.at
    _storage(d)


def _storage(d: Draft) -> None:
    """From behind ON CLUSTER to AS SELECT: the engine, the TO table and `AS other_table`."""
    is_view = d.kind is not K.CREATE_TABLE
    while not d.at_end:
        word = d.word
        if word == "ENGINE" and d.engine is None:
            d.at += 1
            d.accept("=")
            d.engine = d.identifier()
        elif word == "TO" and is_view and d.engine is None and not d.looking_at("TO", "INNER"):
            d.at += 1
            d.table_ref(Role.TARGET)
            d.accept_uuid()
            is_view = False
        elif is_view and d.looking_at("DEPENDS", "ON"):
            depends_on(d)
        elif word == "AS":
            _as(d)
            return
        elif word == "EMPTY" or not d.skip_brackets():
            d.at += 1


def depends_on(d: Draft) -> None:
    """DEPENDS ON a, b of a refreshable view: other views, whose database is the current one, too."""
    d.at += 2
    while d.table_ref(Role.SOURCE) and d.accept(","):
        pass


def _as(d: Draft) -> None:
    """AS SELECT …, AS (SELECT …), AS table_function(…) or AS [database.]table."""
    d.at += 1
    if d.word in ("SELECT", "WITH", "(", "FROM"):
        d.body = d.at
        return
    before = d.at
    ref = d.table(Role.SOURCE)
    if ref is not None and d.word != "(":
        d.refs.append(ref)
    else:
        d.at = before + 1
    _storage_behind_as(d)


def _named(d: Draft, kinds: Mapping[tuple[str, ...], K], accept_exists: Callable[[], object]) -> bool:
    """What has a name, may have a cluster, and nothing more that matters. False if it is none of `kinds`."""
    for words, kind in kinds.items():
        if d.accept(*words):
            d.kind = kind
            accept_exists()
            d.name = d.identifier()
            if d.name is not None:
                d.on_cluster_here()
            return True
    return False


def _storage_behind_as(d: Draft) -> None:
    if d.skip_to("ENGINE"):
        d.at += 1
        d.accept("=")
        d.engine = d.identifier()


def drop(d: Draft, verb: str) -> None:
    """DROP and DETACH."""
    d.temporary = d.accept("TEMPORARY")
    if verb == "DROP":
        if d.accept("INDEX"):
            d.kind = K.DROP_INDEX
            d.accept_if_exists()
            _index(d)
            return
        if _named(d, _DROP_NAMED, d.accept_if_exists):
            return
        for words, kind in DROP_ACCESS.items():
            if d.accept(*words):
                d.kind = kind
                drop_access(d)
                return
    what = d.accept_one_of("TABLE", "VIEW", "DICTIONARY", "DATABASE")
    if not what:
        return
    d.kind = _DROPPED[verb][what]
    d.accept_if_exists()
    if what == "DATABASE":
        d.database = d.identifier()
        if d.database is None:
            return
    else:
        if not d.table_ref():
            return
        d.accept_uuid()
        while d.accept(","):
            d.table_ref()
            d.accept_uuid()
    d.on_cluster_here()
    d.tail = d.at


def truncate(d: Draft) -> None:
    if d.looking_at("ALL", "TABLES", "FROM") or d.looking_at("TABLES", "FROM"):
        d.kind = K.TRUNCATE_DATABASE
        d.accept("ALL")
        d.at += 2
        d.accept_if_exists()
        d.database = d.identifier()
        if d.database is None:
            return
        d.accept("NOT")
        if d.accept_one_of("LIKE", "ILIKE"):
            d.at += 1
    elif d.accept("DATABASE"):
        d.kind = K.TRUNCATE_DATABASE
        d.accept_if_exists()
        d.database = d.identifier()
        if d.database is None:
            return
    else:
        d.kind = K.TRUNCATE_TABLE
        d.temporary = d.accept("TEMPORARY")
        d.accept_one_of("TABLE", "VIEW")
        d.accept_if_exists()
        if not d.table_ref():
            return
    d.on_cluster_here()
    d.tail = d.at


def undrop(d: Draft) -> None:
    if d.accept("TABLE"):
        d.kind = K.UNDROP_TABLE
        if d.table_ref():
            d.accept_uuid()
            d.on_cluster_here()
            d.tail = d.at


def rename(d: Draft) -> None:
    if d.accept("DATABASE"):
        d.kind = K.RENAME_DATABASE
        d.accept_if_exists()
        d.database = d.identifier()
        if d.accept("TO"):
            d.new_database = d.identifier()
            if d.new_database is not None:
                d.on_cluster_here()
                d.tail = d.at
        return
    d.kind = K.RENAME_DICTIONARY if d.word == "DICTIONARY" else K.RENAME_TABLE
    d.accept_one_of("TABLE", "DICTIONARY")
    _pairs(d, "TO")


def exchange(d: Draft) -> None:
    what = d.accept_one_of("TABLES", "DICTIONARIES")
    if what:
        d.kind = K.EXCHANGE_TABLES if what == "TABLES" else K.EXCHANGE_DICTIONARIES
        _pairs(d, "AND")


def _pairs(d: Draft, between: str) -> None:
    while True:
        d.accept_if_exists()
        if not (d.table_ref() and d.accept(between) and d.table_ref()):
            return
        if not d.accept(","):
            break
    d.on_cluster_here()
    d.tail = d.at
