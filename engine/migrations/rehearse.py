"""A rehearsal: every migration up, up again and down on a scratch chDB, before any host sees it.

For each migration, on a database that has the ones before it:
1. up must succeed;
2. up again must change nothing: that is what makes a repetition harmless. A statement that refuses to run
   twice is `not repeatable`, which is told and is no failure, because no host is sent a statement twice:
   up ends there, and what it has made or removed until then is put back;
   Where `allow=not-repeatable` stands, up is not repeated;
3. down must succeed and bring back the definitions that were there before, unless
   `allow=down-incomplete` stands in its file;
4. up once more, for the next migration.
At the end everything goes down, to the empty database. An empty down file is no way back, as a missing one.

A run rehearses what it would send. What is applied already is the ground: run up first, once, and proven by
the cluster, so that what the scratch cannot do of it is no failure.

What is compared is the text of all definitions, as the server itself shows them. Data is not rehearsed. A
statement that one process cannot carry out is `not rehearsed`, with the reason, and so is what fails because
of it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.ddl.initiator import without_token
from engine.env import Env
from engine.errors import Code, Refused, ReplyLost, SqlError
from engine.migrations.files import Direction, Migration, MigrationSet, Script, ScriptStatement
from engine.migrations.model import RunRequest
from engine.migrations.rehearsal import Difference, Phase, Rehearsal, RehearsalState, RehearsedStatement
from engine.migrations.rehearse_compare import means_the_same
from engine.migrations.rehearse_definitions import Definitions, Named
from engine.migrations.rehearse_engines import Rows, TableEngines
from engine.migrations.rehearse_text import for_rehearsal
from engine.migrations.statements import ADVICE, Surroundings
from engine.names import quote_identifier
from engine.sql import StatementKind, literal_value, parse_statement, redact, redact_prose, tokenize
from engine.sql.lenient import LENIENT

logger = logging.getLogger(__name__)

# What a lone chDB answers to things it does not have: an unknown codec, a feature that is not built in, a
# cluster, a named collection, users, data, and other servers: DNS, connections, what tables they have.
_NOT_HERE = frozenset(
    {
        Code.NOT_IMPLEMENTED,
        Code.SUPPORT_IS_DISABLED,
        Code.UNKNOWN_CODEC,
        Code.CLUSTER_DOESNT_EXIST,
        Code.NO_ELEMENTS_IN_CONFIG,
        Code.NAMED_COLLECTION_DOESNT_EXIST,
        Code.UNKNOWN_USER,
        Code.UNKNOWN_ROLE,
        Code.NO_SUCH_DATA_PART,
        Code.DNS_ERROR,
        Code.NETWORK_ERROR,
        Code.ALL_CONNECTION_TRIES_FAILED,
        Code.S3_ERROR,
        Code.NO_REMOTE_SHARD_AVAILABLE,
        Code.CANNOT_EXTRACT_TABLE_STRUCTURE,
    }
)
_MISSING = frozenset({Code.UNKNOWN_TABLE, Code.UNKNOWN_DATABASE})

NOT_REHEARSED_RULE = "not-rehearsed"
"""By this a statement says that hosts take it although chDB refuses it, and why."""


class Scratch(Rows, Protocol):
    """A throw-away chDB; `engine.storage.scratch.ScratchChdb`."""

    async def execute(self, sql: str, *, settings: Mapping[str, str] | None = None) -> None:
        """Raises SqlError."""
        ...

    async def validate(self, sql: str) -> object:
        """Only reads it. Raises SqlError 62."""
        ...


async def rehearse(
    migrations: MigrationSet,
    surroundings: Surroundings,
    request: RunRequest,
    scratch: Scratch,
    *,
    env: Env,
    ground: Collection[int] = (),
    versions: Collection[int] | None = None,
    on_migration: Callable[[int, int], None] = lambda number, of: None,
) -> Rehearsal:
    """These versions; without them all up to the request's target (all without one) that are no ground. Stops
    at the first `up` that fails.

    `scratch` is empty at the start; a database that statements without one mean is made first, if no
    migration of the folder makes it. A statement that cannot be sent at all fails here, too. `on_migration`
    is told which of how many migrations comes now; the ground counts, too.
    """
    stage = _Stage(surroundings, request, scratch, env, TableEngines(scratch), Definitions(scratch))
    target = request.target if request.direction is Direction.UP else None
    chosen = [
        migration
        for migration in migrations.migrations
        if migration.version not in ground
        and (target is None or migration.version <= target)
        and (versions is None or migration.version in versions)
    ]
    below = [migration for migration in migrations.migrations if migration.version in ground]
    numbers = itertools.count(1)

    def tell() -> None:
        on_migration(next(numbers), len(below) + len(chosen))

    try:
        for name in _given_databases(migrations, request):
            await scratch.execute(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(name)}")
        for migration in below:
            tell()
            await stage.play(migration, Phase.GROUND)
        await _perform(stage, chosen, tell)
    except ReplyLost:
        logger.warning("rehearsal.scratch_died after=%d statements", len(stage.played))
    return Rehearsal(tuple(stage.played), tuple(stage.differences))


async def _perform(stage: _Stage, chosen: Sequence[Migration], tell: Callable[[], None]) -> None:
    performed: list[Migration] = []
    empty = await stage.definitions.read()
    for migration in chosen:
        tell()
        before = await stage.definitions.read()
        if not await stage.play(migration, Phase.UP):
            break
        performed.append(migration)
        after = await stage.definitions.read()
        if _may_be_repeated(migration):
            if not await stage.play(migration, Phase.UP_AGAIN):
                await stage.put_back(after)
            if differing := await stage.compare(migration, Phase.UP_AGAIN, expected=after):
                await stage.put_back(after, anew=differing)
        if not _can_go_down(migration):
            continue
        if not await stage.play(migration, Phase.DOWN):
            # Told already. What would follow from a half-done way down is no fault of the later files.
            await stage.put_back(after, anew=await stage.differing(after))
            continue
        if _has_to_bring_back(migration) and (
            differing := await stage.compare(migration, Phase.DOWN, expected=before)
        ):
            await stage.put_back(before, anew=differing)
        if not await stage.play(migration, Phase.UP_FOR_THE_NEXT):
            break
    complete = len(performed) == len(chosen) and all(map(_can_go_down, performed))
    if complete and not any(s.state is RehearsalState.FAILED for s in stage.played):
        for migration in reversed(performed):
            await stage.play(migration, Phase.DOWN_AT_THE_END)
        if performed and all(map(_has_to_bring_back, performed)):
            await stage.compare(performed[0], Phase.DOWN_AT_THE_END, expected=empty)


def _given_databases(migrations: MigrationSet, request: RunRequest) -> Sequence[str]:
    """Those that hosts have before the first migration, as the database of a connection is there before
    golang-migrate begins."""
    statements = [
        statement
        for migration in migrations.migrations
        for script in (migration.up, migration.down)
        if script is not None
        for statement in script.statements
    ]
    made = {
        parsed.database
        for parsed in (parse_statement(statement.sql) for statement in statements)
        if parsed.kind is StatementKind.CREATE_DATABASE
    }
    meant = {statement.options.database or request.database for statement in statements}
    return sorted(meant - made - {"default"})


def _may_be_repeated(migration: Migration) -> bool:
    assert migration.up is not None
    return all(s.options.allows("not-repeatable") is None for s in migration.up.statements)


def _has_to_bring_back(migration: Migration) -> bool:
    return migration.down is None or migration.down.options.allows("down-incomplete") is None


def _can_go_down(migration: Migration) -> bool:
    """Whether rolling back would do anything. An up without statements needs nothing; a down file without an
    up file is no way back of anything."""
    if migration.up is not None and not migration.up.is_there:
        return False
    nothing_to_undo = migration.up is not None and not migration.up.statements
    return migration.down is not None and (bool(migration.down.statements) or nothing_to_undo)


@dataclass(slots=True)
class _Stage:
    surroundings: Surroundings
    request: RunRequest
    scratch: Scratch
    env: Env
    engines: TableEngines
    definitions: Definitions
    played: list[RehearsedStatement] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """Statements that chDB did not take although hosts do, as their files say."""
    unrehearsed: set[str] = field(default_factory=lambda: {"system"})
    """Names of tables and databases that are not there because of that. A server has more system tables."""

    async def play(self, migration: Migration, phase: Phase) -> bool:
        """Whether every statement succeeded; the first that does not ends the phase."""
        script = migration.script(phase.direction)
        assert script is not None
        for statement in script.statements:
            result = await self._statement(migration, script, statement, phase)
            self.played.append(result)
            if result.state in (RehearsalState.FAILED, RehearsalState.NOT_REPEATABLE):
                return False
        return True

    async def compare(
        self, migration: Migration, phase: Phase, *, expected: Mapping[Named, str]
    ) -> Collection[Named]:
        """What differs, which is noted."""
        differing = await self.differing(expected)
        self.differences += [
            Difference(migration.version, phase, str(name), expected.get(name), found)
            for name, found in differing.items()
        ]
        return differing

    async def differing(self, expected: Mapping[Named, str]) -> dict[Named, str | None]:
        """In order of their names, with what is there of them."""
        found = await self.definitions.read()
        return {
            name: found.get(name)
            for name in sorted(expected.keys() | found.keys())
            if not means_the_same(expected.get(name), found.get(name))
        }

    async def put_back(self, wanted: Mapping[Named, str], *, anew: Collection[Named] = ()) -> None:
        """Remove what is not among `wanted`, and make what is gone; `anew` is removed and made again. What
        differs otherwise stays, and what cannot be put back, for the next comparison to find."""
        found = await self.definitions.read()
        await self._try(
            [name.dropped(text) for name, text in found.items() if name not in wanted or name in anew]
        )
        found = await self.definitions.read()  # without the tables of a database that was removed
        await self._try([name.created(text) for name, text in wanted.items() if name not in found])

    async def _try(self, statements: Sequence[str]) -> None:
        """A view or a dictionary may stand before the table that it reads: what fails is tried again as long
        as something else succeeds."""
        left, count = list(statements), len(statements) + 1
        while left and len(left) < count:
            count, failed = len(left), []
            for sql in left:
                try:
                    await self._execute(sql, settings={**LENIENT, "check_table_dependencies": "0"})
                except SqlError as error:
                    logger.info(
                        "rehearsal.not_put_back sql=%s error=%s", redact(sql), redact_prose(str(error))
                    )
                    failed.append(sql)
            left = failed

    async def _execute(self, sql: str, *, settings: Mapping[str, str]) -> None:
        self.definitions.note(sql)
        await self.scratch.execute(sql, settings=settings)

    async def _statement(
        self, migration: Migration, script: Script, statement: ScriptStatement, phase: Phase
    ) -> RehearsedStatement:
        started_s = self.env.monotonic_s()
        state, code, error, note = await self._carry_out(statement, phase)
        return RehearsedStatement(
            version=migration.version,
            title=migration.title,
            phase=phase,
            statement=statement.index,
            path=str(script.path),
            line=statement.line,
            state=state,
            code=code,
            error=error,
            note=note,
            duration_ms=round((self.env.monotonic_s() - started_s) * 1000),
        )

    async def _carry_out(
        self, statement: ScriptStatement, phase: Phase
    ) -> tuple[RehearsalState, int, str, str]:
        """The state, the code and the error, and the note."""
        try:
            entry = self.surroundings.prepare(statement, self.request, token="rehearsal").entry
        except Refused as refusal:
            told = await self._syntax_error(statement.sql) or refusal
            advice = ADVICE.get(parse_statement(statement.sql).kind)
            text = str(told) + (f" Instead, {advice}." if advice else "")
            return RehearsalState.FAILED, told.code, redact_prose(text), ""
        sql = without_token(entry.query)
        wanted = for_rehearsal(sql)
        code, error, note = 0, "", wanted.note
        try:
            if wanted.sql is not None:
                settings = {setting.name: setting.value for setting in entry.settings}
                if wanted.far_engine:
                    await self.engines.require(wanted.far_engine)
                await self._execute(wanted.sql, settings=settings)
                return RehearsalState.OK, code, error, note
        except ReplyLost as lost:
            # The statement brought chDB down. Whatever is asked next raises the same and ends the rehearsal.
            return RehearsalState.FAILED, code, redact_prose(lost.message), note
        except SqlError as refusal:
            code, error = refusal.code, redact_prose(refusal.message)
            reason = self._reason_not_to_mind(statement, sql, phase)
            if reason is None and phase is not Phase.GROUND and not self._is_not_ours(refusal, sql):
                is_second = phase is Phase.UP_AGAIN
                state = RehearsalState.NOT_REPEATABLE if is_second else RehearsalState.FAILED
                return state, code, error, note
            note = reason or "one process cannot carry it out"
        parsed = parse_statement(sql)
        self.unrehearsed |= {table.table for table in parsed.tables}
        self.unrehearsed |= {parsed.database} if parsed.database else set()
        return RehearsalState.NOT_REHEARSED, code, error, note

    def _reason_not_to_mind(self, statement: ScriptStatement, sql: str, phase: Phase) -> str | None:
        """The file's, where hosts are said to take what chDB refuses. It is not about what chDB takes the
        first time: refused the second time, that is not repeatable."""
        reason = statement.options.allows(NOT_REHEARSED_RULE)
        if reason is not None and phase in (Phase.GROUND, Phase.UP, Phase.DOWN):
            self.refused.add(sql)
        return reason if sql in self.refused else None

    async def _syntax_error(self, sql: str) -> SqlError | None:
        """What looks as if it could not go ON CLUSTER may have a misspelt word; the real parser says so."""
        try:
            await self.scratch.validate(sql)
        except SqlError as error:
            return error
        return None

    def _is_not_ours(self, error: SqlError, sql: str) -> bool:
        if error.code not in _MISSING:
            return error.code in _NOT_HERE
        return any(
            literal_value(token) in self.unrehearsed for token in tokenize(sql) if token.is_significant
        )
