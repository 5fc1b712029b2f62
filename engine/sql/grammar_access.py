"""Users, roles, quotas, row policies, settings profiles; GRANT and REVOKE."""

from __future__ import annotations

from engine.names import TableName
from engine.sql.cursor import NameRef, Role
from engine.sql.draft import Draft
from engine.sql.kinds import StatementKind as K
from engine.sql.tokens import TokenKind

CREATE_ACCESS = {
    ("USER",): K.CREATE_USER,
    ("ROLE",): K.CREATE_ROLE,
    ("QUOTA",): K.CREATE_QUOTA,
    ("ROW", "POLICY"): K.CREATE_ROW_POLICY,
    ("POLICY",): K.CREATE_ROW_POLICY,
    ("MASKING", "POLICY"): K.CREATE_MASKING_POLICY,
    ("SETTINGS", "PROFILE"): K.CREATE_SETTINGS_PROFILE,
    ("PROFILE",): K.CREATE_SETTINGS_PROFILE,
}
DROP_ACCESS = {words: K(kind.value.replace("CREATE", "DROP")) for words, kind in CREATE_ACCESS.items()}
ALTER_ACCESS = {words: K(kind.value.replace("CREATE", "ALTER")) for words, kind in CREATE_ACCESS.items()}
# Privileges on something else: TABLE ENGINE ON S3, SET DEFINER ON u, READ ON URL, CREATE USER ON 'u*'.
_NOT_ON_TABLES = frozenset(
    {
        "ENGINE",
        "DEFINER",
        "COLLECTION",
        "COLLECTIONS",
        "USER",
        "ROLE",
        "IMPERSONATE",
        "READ",
        "WRITE",
        "WORKLOAD",
    }
)
_ROW_POLICY_KINDS = (K.CREATE_ROW_POLICY, K.ALTER_ROW_POLICY, K.DROP_ROW_POLICY)
_MASKING_KINDS = (K.CREATE_MASKING_POLICY, K.ALTER_MASKING_POLICY, K.DROP_MASKING_POLICY)


def access_entity(d: Draft) -> None:
    """CREATE and ALTER, from behind the words that name the entity's type."""
    d.accept_if_not_exists()
    if d.accept("OR", "REPLACE"):
        d.or_replace = True
    d.accept_if_exists()
    if d.kind in _MASKING_KINDS:
        _policy_names(d)
        return
    _names_and_cluster(d)
    if d.kind in _ROW_POLICY_KINDS:
        d.body = d.at
    # The clause may also stand between any two others: CREATE USER u IDENTIFIED BY 'x' ON CLUSTER c.
    while d.cluster_span is None and d.skip_to("ON"):
        if not d.accept_on_cluster():
            d.at += 1


def drop_access(d: Draft) -> None:
    d.accept_if_exists()
    if d.kind in _MASKING_KINDS:
        _policy_names(d)
        return
    _names_and_cluster(d)
    if d.accept("FROM"):
        d.identifier()
        d.cluster_at = d.last_end if d.cluster_span is None else d.cluster_at
    d.accept_on_cluster()


def _names_and_cluster(d: Draft) -> None:
    if d.kind in _ROW_POLICY_KINDS:
        _policy_names(d)
    else:
        d.name = _entity_name(d)
        while d.accept(","):
            _entity_name(d)
        if d.name is not None:
            d.on_cluster_here()


def _policy_names(d: Draft) -> None:
    """`p1, p2 [ON CLUSTER c] ON t1, t2 [ON CLUSTER c]`; `p1 ON t1, p2 ON t2` is the longer form."""
    takes_cluster = d.kind in _ROW_POLICY_KINDS
    d.name = d.identifier_or_string()
    if d.name is None:
        return
    while d.accept(","):
        d.identifier_or_string()
    if takes_cluster:
        d.accept_on_cluster()
    while d.word == "ON" and not d.looking_at("ON", "CLUSTER"):
        d.at += 1
        _policy_tables(d)
        if d.accept(","):
            d.identifier_or_string()
    if takes_cluster:
        d.on_cluster_here()


def _policy_tables(d: Draft) -> None:
    while True:
        if not _granted_object(d):
            return
        comma = d.at
        if not d.accept(","):
            return
        # `, p2 ON t2` goes on with the next policy, `, t2` with the next table.
        d.identifier_or_string()
        is_policy = d.word == "ON" and not d.looking_at("ON", "CLUSTER")
        d.at = comma
        if is_policy:
            return
        d.at += 1


def _entity_name(d: Draft) -> str | None:
    """`name[@host]`; strings are names too."""
    name = d.identifier_or_string()
    if name is not None and d.accept("@"):
        d.identifier_or_string()
    return name


def grant(d: Draft, verb: str) -> None:
    """GRANT and REVOKE: ON CLUSTER comes first, then privileges ON tables, or roles."""
    d.kind = K.GRANT if verb == "GRANT" else K.REVOKE
    d.on_cluster_here()
    begins = d.at
    while d.skip_to("ON", "TO", "FROM"):
        if d.word != "ON":
            break
        names_a_table = _NOT_ON_TABLES.isdisjoint(d.words[begins : d.at])
        d.at += 1
        if names_a_table:
            _granted_object(d)
        begins = d.at


def _granted_object(d: Draft) -> bool:
    """`db.t`, `t`, `db.*`, `*.*` or `*`; only `t` lacks its database. `*` is the whole current database."""
    start = d.at
    if d.accept("*"):
        if d.accept("."):
            d.accept("*")
        elif d.tokens[start].kind is TokenKind.PUNCTUATION:
            _remember_star(d, start)
        return True
    ref = d.table(Role.OBJECT)
    if ref is None:
        # `db.*`: a table's name that does not parse because a star stands behind the dot.
        if d.identifier() is not None and d.accept(".", "*"):
            return True
        d.at = start
        return False
    if d.word == "*":
        d.at += 1  # A prefix: `db.t*`.
    d.refs.append(ref)
    return True


def _remember_star(d: Draft, start: int) -> None:
    token = d.tokens[start]
    d.refs.append(NameRef(token.start, token.end, TableName("", "*"), Role.OBJECT))


def move_access(d: Draft) -> None:
    """MOVE {USER | ROLE | …} names TO storage."""
    for words in CREATE_ACCESS:
        if d.accept(*words):
            d.kind = K.MOVE_ACCESS
            if d.skip_to("TO"):
                d.at += 1
                if d.identifier() is not None:
                    d.on_cluster_here()
            return
