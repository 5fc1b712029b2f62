"""After a crash: did the effect happen? Pure decisions on two fingerprints, before and now.

What each family of statements leaves behind, and so how its effect is seen:

DEFINITION    CREATE, DROP, DETACH, ATTACH, RENAME, EXCHANGE, ALTER of columns, keys, settings: the
              definition or UUID of every object acted on is another one afterwards. All changed: it
              happened. None: it did not. Some: a statement of several objects was cut in the middle, and
              only a person can say what to do. What was there cannot have been made by CREATE, however
              another replica has changed it since.
FILLING       CREATE … AS SELECT, CLONE AS, POPULATE, RESTORE: the object appears before its rows. There: rows
              may be missing.
MUTATION      UPDATE, DELETE, MATERIALIZE, CLEAR: a mutation's id appears and stays, whether it has run or
              not; ClickHouse finishes it by itself after a restart.
KILL_MUTATION the same in the other direction.
REMOVAL       TRUNCATE, DROP, DETACH and MOVE PARTITION: the blocks that were covered are not covered any
              more. Merges do not change what is covered, inserts only add. Nothing covered before:
              repeating it is its first effect.
REPLACEMENT   REPLACE and ATTACH PARTITION FROM: as REMOVAL for what was there; a repetition would double
              or lose rows, so anything in between is not known.
ENDS_PROCESS  SYSTEM SHUTDOWN and KILL, KILL QUERY: that this process is a new one is the effect.
REPEATABLE    OPTIMIZE, SYSTEM, GRANT, FREEZE, …: running it once more leaves what running it once leaves.
OPAQUE        BACKUP and whatever is not known here.

When the fingerprints cannot tell: what is REPEATABLE, or says IF [NOT] EXISTS and holds no data, runs again;
everything else ends with UNFINISHED 341, which says what to check. A false *done* and a second effect are
both worse than an honest *unknown*.
"""

from __future__ import annotations

import enum
import itertools

from engine.ddl.executor import Blocks, Fingerprint
from engine.ddl.status import ExecutionStatus
from engine.errors import Code
from engine.sql import AlterCommand, Statement, StatementKind, mentions_as, tokenize

_K = StatementKind
_A = AlterCommand


class Family(enum.Enum):
    """How the effect of a statement can be seen afterwards."""

    DEFINITION = "definition"
    FILLING = "filling"
    MUTATION = "mutation"
    DEFINITION_AND_MUTATION = "definition and mutation"
    KILL_MUTATION = "kill mutation"
    REMOVAL = "removal"
    REPLACEMENT = "replacement"
    ENDS_PROCESS = "ends process"
    REPEATABLE = "repeatable"
    OPAQUE = "opaque"


class Effect(enum.Enum):
    HAPPENED = "happened"
    NOT_YET = "not yet"
    UNKNOWN = "unknown"


class NextStep(enum.Enum):
    """What to do with an entry that was begun by a process that is no more."""

    REPORT_DONE = "report done"
    EXECUTE = "execute"
    REPORT_UNKNOWN = "report unknown"


_DEFINITION_KINDS = frozenset(
    kind
    for kind in _K
    if kind.value.startswith(("CREATE ", "DROP ", "ATTACH ", "DETACH ", "RENAME ", "EXCHANGE ", "UNDROP "))
)
_REPEATABLE_KINDS = frozenset(
    {
        _K.OPTIMIZE,
        _K.SYSTEM,
        _K.GRANT,
        _K.REVOKE,
        _K.ALTER_USER,
        _K.ALTER_ROLE,
        _K.ALTER_QUOTA,
        _K.ALTER_ROW_POLICY,
        _K.ALTER_MASKING_POLICY,
        _K.ALTER_SETTINGS_PROFILE,
        _K.ALTER_NAMED_COLLECTION,
        _K.ALTER_DATABASE,
        _K.MOVE_ACCESS,
    }
)
_CLEARINGS = frozenset({_A.CLEAR_COLUMN, _A.CLEAR_INDEX, _A.CLEAR_PROJECTION, _A.CLEAR_STATISTICS})
_REMOVAL_COMMANDS = frozenset({_A.DROP_PARTITION, _A.DETACH_PARTITION, _A.MOVE_PARTITION_TO_TABLE})
_REPEATABLE_COMMANDS = frozenset(
    {
        _A.FREEZE,
        _A.UNFREEZE,
        _A.UNLOCK_SNAPSHOT,
        _A.MOVE_PARTITION,
        _A.MODIFY_SETTING,
        _A.RESET_SETTING,
        _A.MODIFY_COMMENT,
        _A.COMMENT_COLUMN,
        _A.REFRESH,
        _A.DROP_DETACHED_PARTITION,
        _A.FORGET_PARTITION,
    }
)
_OPAQUE_COMMANDS = frozenset({_A.EXECUTE, _A.OTHER, _A.ATTACH_PARTITION, _A.FETCH_PARTITION})
_HOLD_DATA = frozenset(
    {
        _K.CREATE_TABLE,
        _K.CREATE_MATERIALIZED_VIEW,
        _K.CREATE_DATABASE,
        _K.DROP_TABLE,
        _K.DROP_VIEW,
        _K.DROP_DATABASE,
        _K.DETACH_TABLE,
        _K.DETACH_DATABASE,
    }
)


def family_of(statement: Statement, sql: str) -> Family:
    """The family of a statement; `sql` is its text."""
    kind = statement.kind
    if kind is _K.ALTER_TABLE:
        return _family_of_alter(frozenset(statement.alter_commands))
    if kind in (_K.KILL_QUERY,) or (
        kind is _K.SYSTEM and statement.system_command.upper() in ("SHUTDOWN", "KILL")
    ):
        return Family.ENDS_PROCESS
    if kind is _K.KILL_MUTATION:
        return Family.KILL_MUTATION
    if kind in (_K.DELETE, _K.UPDATE):
        return Family.MUTATION
    if kind in (_K.TRUNCATE_TABLE, _K.TRUNCATE_DATABASE):
        return Family.REMOVAL
    if kind in _REPEATABLE_KINDS:
        return Family.REPEATABLE
    if kind is _K.RESTORE or (_is_filled_on_creation(statement, sql) and not statement.or_replace):
        return Family.FILLING
    if kind in _DEFINITION_KINDS:
        return Family.DEFINITION
    return Family.OPAQUE


def tells_itself(statement: Statement, sql: str) -> bool:
    """Whether definitions from before and after say without doubt how the statement ended."""
    if statement.kind is _K.CREATE_TABLE and not mentions_as(sql):
        return True  # most of what a queue carries; the rest takes another look at the text
    return family_of(statement, sql) is Family.DEFINITION


def _family_of_alter(commands: frozenset[AlterCommand]) -> Family:
    if not commands or commands & _OPAQUE_COMMANDS:
        return Family.OPAQUE
    if commands <= _REPEATABLE_COMMANDS:
        return Family.REPEATABLE
    mutating = {command for command in commands if command.is_mutation or command in _CLEARINGS}
    removing = commands & _REMOVAL_COMMANDS
    replacing = commands & {_A.REPLACE_PARTITION, _A.ATTACH_PARTITION_FROM}
    defining = commands - mutating - removing - replacing - _REPEATABLE_COMMANDS
    match bool(defining), bool(mutating), bool(removing), bool(replacing):
        case True, False, False, False:
            return Family.DEFINITION
        case False, True, False, False:
            return Family.MUTATION
        case True, True, False, False:
            return Family.DEFINITION_AND_MUTATION
        case False, False, True, False:
            return Family.REMOVAL
        case False, False, False, True:
            return Family.REPLACEMENT
        case _:
            return Family.OPAQUE


def _is_filled_on_creation(statement: Statement, sql: str) -> bool:
    """CREATE TABLE … AS SELECT, CREATE TABLE … CLONE AS, or a view with POPULATE."""
    if statement.kind not in (_K.CREATE_TABLE, _K.CREATE_MATERIALIZED_VIEW):
        return False
    words = [t.text.upper() for t in tokenize(sql) if t.is_significant]  # a string's has its quotes
    if statement.kind is _K.CREATE_MATERIALIZED_VIEW:
        return "POPULATE" in words
    if "EMPTY" in words:
        return False
    if any(
        words[at : at + 2] == ["CLONE", "AS"] and words[at - 1] not in ("TABLE", "EXISTS", ".")
        for at in range(1, len(words))
    ):
        return True
    return any(
        word == "AS" and following in ("SELECT", "WITH", "(", "VALUES", "FROM")
        for word, following in itertools.pairwise(words)
    )


class Direction(enum.Enum):
    """What a statement about definitions does to an object."""

    MAKES = "makes"
    """Absent, then present. One that was there cannot have been made; what changed it was somebody else."""
    UNMAKES = "unmakes"
    CHANGES = "changes"


_ON_A_TABLE = frozenset({_K.CREATE_INDEX, _K.DROP_INDEX})


def direction_of(statement: Statement) -> Direction:
    kind = statement.kind
    if kind in _ON_A_TABLE or statement.or_replace:
        return Direction.CHANGES
    if kind.value.startswith(("CREATE ", "UNDROP ")):
        return Direction.MAKES
    return Direction.UNMAKES if kind.value.startswith("DROP ") else Direction.CHANGES


def effect_since(
    family: Family,
    before: Fingerprint | None,
    now: Fingerprint | None,
    direction: Direction = Direction.CHANGES,
) -> Effect:
    """Compare what was with what is."""
    if family is Family.ENDS_PROCESS:
        return Effect.HAPPENED
    if before is None or now is None:
        return Effect.UNKNOWN
    match family:
        case Family.DEFINITION:
            return _definitions(before, now, direction)
        case Family.FILLING:
            effect = _definitions(before, now, direction)
            return effect if effect is Effect.NOT_YET else Effect.UNKNOWN
        case Family.MUTATION:
            return _mutations(before, now)
        case Family.DEFINITION_AND_MUTATION:
            parts = {_definitions(before, now, direction), _mutations(before, now)}
            return parts.pop() if len(parts) == 1 else Effect.UNKNOWN
        case Family.KILL_MUTATION:
            if before.mutations is None or now.mutations is None:
                return Effect.UNKNOWN
            return Effect.HAPPENED if set(before.mutations) - set(now.mutations) else Effect.NOT_YET
        case Family.REMOVAL | Family.REPLACEMENT:
            return _blocks(before, now, is_replacement=family is Family.REPLACEMENT)
        case _:
            return Effect.UNKNOWN


def _definitions(before: Fingerprint, now: Fingerprint, direction: Direction) -> Effect:
    old, new = dict(before.objects), dict(now.objects)
    if not old or old.keys() != new.keys():
        return Effect.UNKNOWN
    if "" in old:
        direction = Direction.CHANGES  # a digest of everything: nobody knows how absence looks in it
    match direction:
        case Direction.MAKES:
            return _all_or_nothing([bool(new[name]) for name in old if not old[name]])
        case Direction.UNMAKES:
            present = [name for name in old if old[name]]
            if any(new[name] not in ("", old[name]) for name in present):
                return Effect.UNKNOWN  # made again by somebody, or changed by another replica
            return _all_or_nothing([not new[name] for name in present])
        case Direction.CHANGES:
            attached = [name for name in old if name.startswith("attached ")]
            return _all_or_nothing([old[name] != new[name] for name in attached or old])


def _all_or_nothing(happened: list[bool]) -> Effect:
    """Of several objects: all, none, or cut in the middle. Of none: there was nothing to do."""
    if not any(happened):
        return Effect.NOT_YET
    return Effect.HAPPENED if all(happened) else Effect.UNKNOWN


def _mutations(before: Fingerprint, now: Fingerprint) -> Effect:
    if before.mutations is None or now.mutations is None:
        # An executor that knows nothing finer still folds mutations into its digest.
        if [name for name, _ in before.objects] == [""]:
            return _definitions(before, now, Direction.CHANGES)
        return Effect.UNKNOWN
    return Effect.HAPPENED if set(now.mutations) - set(before.mutations) else Effect.NOT_YET


def _blocks(before: Fingerprint, now: Fingerprint, *, is_replacement: bool) -> Effect:
    if before.blocks is None or now.blocks is None:
        # One digest of everything: merges and inserts change it too, so only "the same" says something.
        is_same = before == now and [name for name, _ in before.objects] == [""]
        return Effect.NOT_YET if is_same else Effect.UNKNOWN
    covered = [_is_covered(old, now.blocks) for old in before.blocks]
    untouched = [_overlaps(old, now.blocks) for old in before.blocks]
    if before.blocks and not any(untouched):
        return Effect.HAPPENED
    if not all(covered):
        return Effect.UNKNOWN
    if is_replacement and not all(_is_covered(new, before.blocks) for new in now.blocks):
        return Effect.UNKNOWN
    return Effect.NOT_YET


def _is_covered(block: Blocks, by: tuple[Blocks, ...]) -> bool:
    return any(b.partition == block.partition and b.first <= block.first and block.last <= b.last for b in by)


def _overlaps(block: Blocks, others: tuple[Blocks, ...]) -> bool:
    return any(
        b.partition == block.partition and b.first <= block.last and block.first <= b.last for b in others
    )


def next_step(
    statement: Statement, sql: str, before: Fingerprint | None, now: Fingerprint | None
) -> NextStep:
    """What to do with a statement that was begun and whose end nobody recorded."""
    family = family_of(statement, sql)
    match effect_since(family, before, now, direction_of(statement)):
        case Effect.HAPPENED:
            return NextStep.REPORT_DONE
        case Effect.NOT_YET:
            return NextStep.EXECUTE
        case Effect.UNKNOWN:
            if is_harmless_to_repeat(statement, family):
                return NextStep.EXECUTE
            return NextStep.REPORT_UNKNOWN


def is_harmless_to_repeat(statement: Statement, family: Family) -> bool:
    """Running it twice leaves what running it once leaves, whatever happened to be stored in between."""
    if family is Family.REPEATABLE:
        return True
    if family is not Family.DEFINITION or statement.kind in _HOLD_DATA:
        return statement.kind in (_K.CREATE_TABLE, _K.CREATE_DATABASE) and (
            statement.if_not_exists and family is Family.DEFINITION
        )
    return statement.if_exists or statement.if_not_exists or statement.or_replace


def unknown_outcome(statement: Statement, *, begun_by: str) -> ExecutionStatus:
    """The honest final status."""
    objects = (
        ", ".join(str(table) for table in statement.tables) or statement.database or statement.name or "it"
    )
    return ExecutionStatus(
        Code.UNFINISHED,
        f"Code: {int(Code.UNFINISHED)}. DB::Exception: Outcome unknown: {begun_by} began this "
        f"{statement.kind} and ended before it recorded how it went, and the present state does not tell. "
        f"It is not executed again, because a second execution could do harm. Check {objects} on this host; "
        f"if the effect is missing, submit the statement again under a new token. (UNFINISHED)",
    )
