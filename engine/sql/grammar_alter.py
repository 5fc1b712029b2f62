"""ALTER of all kinds: which sub-commands an ALTER TABLE has, and where its names stand."""

from __future__ import annotations

from engine.sql.cursor import Role
from engine.sql.draft import Draft
from engine.sql.grammar_access import ALTER_ACCESS, access_entity
from engine.sql.grammar_objects import depends_on
from engine.sql.kinds import AlterCommand as A
from engine.sql.kinds import StatementKind as K

# The first words of each sub-command. PARTITION, FREEZE, MOVE and COLUMN forms need a look at what follows.
_COMMANDS: dict[tuple[str, ...], A] = {
    ("ADD", "COLUMN"): A.ADD_COLUMN,
    ("DROP", "COLUMN"): A.DROP_COLUMN,
    ("MODIFY", "COLUMN"): A.MODIFY_COLUMN,
    ("ALTER", "COLUMN"): A.MODIFY_COLUMN,
    ("RENAME", "COLUMN"): A.RENAME_COLUMN,
    ("COMMENT", "COLUMN"): A.COMMENT_COLUMN,
    ("CLEAR", "COLUMN"): A.CLEAR_COLUMN,
    ("MATERIALIZE", "COLUMN"): A.MATERIALIZE_COLUMN,
    ("MODIFY", "PRIMARY", "KEY"): A.MODIFY_PRIMARY_KEY,
    ("MODIFY", "ORDER", "BY"): A.MODIFY_ORDER_BY,
    ("MODIFY", "SAMPLE", "BY"): A.MODIFY_SAMPLE_BY,
    ("REMOVE", "SAMPLE", "BY"): A.REMOVE_SAMPLE_BY,
    ("MODIFY", "TTL"): A.MODIFY_TTL,
    ("REMOVE", "TTL"): A.REMOVE_TTL,
    ("MATERIALIZE", "TTL"): A.MATERIALIZE_TTL,
    ("MODIFY", "SETTING"): A.MODIFY_SETTING,
    ("RESET", "SETTING"): A.RESET_SETTING,
    ("MODIFY", "QUERY"): A.MODIFY_QUERY,
    ("MODIFY", "REFRESH"): A.MODIFY_REFRESH,
    ("MODIFY", "SQL", "SECURITY"): A.MODIFY_SQL_SECURITY,
    ("MODIFY", "DEFINER"): A.MODIFY_SQL_SECURITY,
    ("MODIFY", "COMMENT"): A.MODIFY_COMMENT,
    ("REFRESH",): A.REFRESH,
    ("ADD", "INDEX"): A.ADD_INDEX,
    ("DROP", "INDEX"): A.DROP_INDEX,
    ("CLEAR", "INDEX"): A.CLEAR_INDEX,
    ("MATERIALIZE", "INDEX"): A.MATERIALIZE_INDEX,
    ("ADD", "STATISTICS"): A.ADD_STATISTICS,
    ("ADD", "STATISTIC"): A.ADD_STATISTICS,
    ("DROP", "STATISTICS"): A.DROP_STATISTICS,
    ("DROP", "STATISTIC"): A.DROP_STATISTICS,
    ("CLEAR", "STATISTICS"): A.CLEAR_STATISTICS,
    ("CLEAR", "STATISTIC"): A.CLEAR_STATISTICS,
    ("MODIFY", "STATISTICS"): A.MODIFY_STATISTICS,
    ("MATERIALIZE", "STATISTICS"): A.MATERIALIZE_STATISTICS,
    ("MATERIALIZE", "STATISTIC"): A.MATERIALIZE_STATISTICS,
    ("ADD", "PROJECTION"): A.ADD_PROJECTION,
    ("DROP", "PROJECTION"): A.DROP_PROJECTION,
    ("CLEAR", "PROJECTION"): A.CLEAR_PROJECTION,
    ("MODIFY", "PROJECTION"): A.MODIFY_PROJECTION,
    ("MATERIALIZE", "PROJECTION"): A.MATERIALIZE_PROJECTION,
    ("ADD", "CONSTRAINT"): A.ADD_CONSTRAINT,
    ("DROP", "CONSTRAINT"): A.DROP_CONSTRAINT,
    ("MODIFY", "CONSTRAINT"): A.MODIFY_CONSTRAINT,
    ("ATTACH", "PARTITION"): A.ATTACH_PARTITION,
    ("ATTACH", "PART"): A.ATTACH_PARTITION,
    ("DETACH", "PARTITION"): A.DETACH_PARTITION,
    ("DETACH", "PART"): A.DETACH_PARTITION,
    ("DROP", "PARTITION"): A.DROP_PARTITION,
    ("DROP", "PART"): A.DROP_PARTITION,
    ("DROP", "DETACHED"): A.DROP_DETACHED_PARTITION,
    ("FORGET", "PARTITION"): A.FORGET_PARTITION,
    ("FETCH", "PARTITION"): A.FETCH_PARTITION,
    ("FETCH", "PART"): A.FETCH_PARTITION,
    ("REPLACE", "PARTITION"): A.REPLACE_PARTITION,
    ("MOVE", "PARTITION"): A.MOVE_PARTITION,
    ("MOVE", "PART"): A.MOVE_PARTITION,
    ("FREEZE",): A.FREEZE,
    ("UNFREEZE",): A.UNFREEZE,
    ("UNLOCK", "SNAPSHOT"): A.UNLOCK_SNAPSHOT,
    ("DELETE",): A.DELETE,
    ("UPDATE",): A.UPDATE,
    ("APPLY", "DELETED", "MASK"): A.APPLY_DELETED_MASK,
    ("APPLY", "PATCHES"): A.APPLY_PATCHES,
    ("REWRITE", "PARTS"): A.REWRITE_PARTS,
    ("EXECUTE",): A.EXECUTE,
}
_BY_FIRST_WORD: dict[str, list[tuple[tuple[str, ...], A]]] = {}
for _entry in _COMMANDS.items():
    _BY_FIRST_WORD.setdefault(_entry[0][0], []).append(_entry)


def alter(d: Draft) -> None:
    """ALTER, from behind its first word."""
    if d.accept("TEMPORARY"):
        d.temporary = True
    if d.accept("TABLE"):
        d.kind = K.ALTER_TABLE
        d.accept_if_exists()
        if d.table_ref():
            _commands(d)
    elif d.accept("LIVE", "VIEW"):
        d.kind = K.ALTER_TABLE
        if d.table_ref():
            _commands(d)
    elif d.accept("DATABASE"):
        d.kind = K.ALTER_DATABASE
        d.database = d.identifier()
        if d.database is not None:
            _commands(d)
    elif d.accept("NAMED", "COLLECTION"):
        d.kind = K.ALTER_NAMED_COLLECTION
        d.accept_if_exists()
        d.name = d.identifier()
        if d.name is not None:
            d.on_cluster_here()
    else:
        for words, kind in ALTER_ACCESS.items():
            if d.accept(*words):
                d.kind = kind
                access_entity(d)
                return


def _commands(d: Draft) -> None:
    d.on_cluster_here()
    d.body = d.tail = d.at
    while not d.at_end:
        # ClickHouse's newest formatter puts each sub-command into parentheses.
        in_parentheses = d.accept("(")
        d.alter_starts.append(d.at)
        d.alter_commands.append(_command(d))
        if in_parentheses:
            depth = 1
            while not d.at_end and depth:
                depth += 1 if d.word == "(" else -1 if d.word == ")" else 0
                d.at += 1
        if not _next_command(d):
            return


def _next_command(d: Draft) -> bool:
    """Step to behind the comma at which the next sub-command begins.

    Commas also stand inside sub-commands: `UPDATE a = 1, b = 2`, `MODIFY SETTING a = 1, b = 2`,
    `MODIFY ORDER BY a, b`, `MODIFY TTL x, y`. A comma separates sub-commands when one's words follow it.
    """
    while d.skip_to(","):
        d.at += 1
        if d.word == "(" and d.at + 1 < len(d.words):
            d.at += 1
            found = _lookup(d) is not None
            d.at -= 1
        else:
            found = _lookup(d) is not None
        if found:
            return True
    return False


def _lookup(d: Draft) -> tuple[tuple[str, ...], A] | None:
    for words, command in _BY_FIRST_WORD.get(d.word, ()):
        if d.looking_at(*words):
            # A column may be called `delete`: `UPDATE a = 1, delete = 2`.
            behind = d.words[d.at + 1 : d.at + 2]
            if behind == ["="] or (command in (A.DELETE, A.UPDATE) and behind in ([","], [])):
                continue
            return words, command
    return None


def _command(d: Draft) -> A:
    found = _lookup(d)
    if found is None:
        return A.OTHER
    words, command = found
    d.at += len(words)
    match command:
        case A.CLEAR_COLUMN | A.DROP_COLUMN | A.CLEAR_INDEX | A.DROP_INDEX:
            d.accept_if_exists()
        case A.MODIFY_REFRESH:
            start = d.at
            if d.skip_to("DEPENDS"):
                depends_on(d)
            else:
                d.at = start
        case A.MODIFY_COLUMN:
            d.discards = d.discards or _sets_ttl(d)
        case A.ATTACH_PARTITION:
            _partition(d)
            if d.accept("FROM") and d.table_ref(Role.TARGET):
                return A.ATTACH_PARTITION_FROM
        case A.REPLACE_PARTITION:
            _partition(d)
            if d.accept("FROM"):
                d.table_ref(Role.TARGET)
        case A.MOVE_PARTITION:
            _partition(d)
            if d.accept("TO", "TABLE"):
                d.table_ref(Role.TARGET)
                return A.MOVE_PARTITION_TO_TABLE
            if d.accept("TO", "SHARD"):
                return A.MOVE_PARTITION_TO_SHARD
        case _:
            pass
    return command


def _sets_ttl(d: Draft) -> bool:
    """Whether the column gets a TTL, which empties it in old rows; looks ahead to the next sub-command."""
    start = d.at
    at = start + 2 if d.looking_at("IF", "EXISTS") else start
    _next_command(d)
    end, d.at = d.at, start
    # A column may be called `ttl`: first its own name, then names in other places.
    return any(
        d.words[i] == "TTL" and d.words[i - 1] not in (".", "AFTER", "REMOVE") for i in range(at + 1, end)
    )


def _partition(d: Draft) -> None:
    """Step over a partition: ALL, ID 'x', a literal, or a tuple; a part's name is a literal too."""
    while not d.at_end and d.word not in ("FROM", "TO", ","):
        if not d.skip_brackets():
            d.at += 1
