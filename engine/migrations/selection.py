"""Which migrations a run concerns, from the folder and the ledger. Pure.

Up: every version up to the target that is not in the schema, in ascending order; what was begun is resumed.
Down: everything above the target that was begun or applied, in descending order. Without a target: the last.

Refused here, before anything is sent: a changed or missing file of something applied (M5), a gap, a version
that arrived below what is applied or under way, a rollback without a down file, going up over a half-finished
rollback.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engine.migrations.errors import ChangedMigration, MigrationRefused, Problem
from engine.migrations.files import (
    GAP_RULE,
    Direction,
    Migration,
    MigrationSet,
    Script,
    ScriptStatement,
    gaps,
)
from engine.migrations.states import (
    CellState,
    Event,
    LedgerRow,
    MigrationEvent,
    MigrationRecord,
    MigrationState,
    untouched,
)

ALL = -1
"""As the target of a rollback: everything goes."""


@dataclass(frozen=True, slots=True)
class Selected:
    """One migration of a run: its script, and what the ledger knows. `generation` is the one to write
    under."""

    migration: Migration
    script: Script
    record: MigrationRecord
    generation: int

    def will_send(self, statement: ScriptStatement, *, retry_failed: bool, run_id: str) -> bool:
        """Whether the run enqueues it, rather than finding it done or under way. It does not repeat its own
        failure."""
        if self.record.direction is not self.script.direction or not self.record.state.is_open:
            return True
        rows = self.record.rows_of(statement.index)
        failed = [row for row in rows if row.state.is_failure]
        return not rows or (retry_failed and bool(failed) and all(row.run_id != run_id for row in failed))


@dataclass(frozen=True, slots=True)
class Leniency:
    """What the person who asks has taken on."""

    gaps: bool = False
    out_of_order: bool = False
    retry_failed: bool = False


def ground_of(records: Mapping[int, MigrationRecord], versions: Collection[int]) -> frozenset[int]:
    """What a run of these versions rests on: everything in the schema that it does not undo."""
    return frozenset(v for v, record in records.items() if record.state.is_in_schema and v not in versions)


def target_of_run(migrations: MigrationSet, events: Sequence[MigrationEvent], *, run_id: str) -> int | None:
    """The target of a rollback without one, `undo the last`, for a run that may have begun before: what it
    meant then. So a run whose tasks are all cleared in Airflow does not undo one more."""
    undone = [
        event.version
        for event in events
        if event.run_id == run_id and event.direction is Direction.DOWN and event.event is Event.STARTED
    ]
    if not undone:
        return None
    return max((version for version in migrations.versions if version < min(undone)), default=ALL)


def select(
    migrations: MigrationSet,
    records: Mapping[int, MigrationRecord],
    *,
    direction: Direction,
    target: int | None,
    leniency: Leniency = Leniency(),
) -> tuple[Selected, ...]:
    """Raises MigrationRefused and ChangedMigration."""
    changed, _ = changes(migrations, records)
    if changed:
        raise ChangedMigration(changed)
    if direction is Direction.UP:
        return _select_up(migrations, records, target=target, leniency=leniency)
    return _select_down(migrations, records, target=target, leniency=leniency)


def _select_up(
    migrations: MigrationSet,
    records: Mapping[int, MigrationRecord],
    *,
    target: int | None,
    leniency: Leniency,
) -> tuple[Selected, ...]:
    if target is not None and migrations.get(target) is None:
        raise _unknown_target(migrations, target)
    holes = [hole for hole in gaps(migrations.versions) if not _is_allowed_gap(migrations, hole[1])]
    if holes and not leniency.gaps:
        listed = ", ".join(f"{before} → {after}" for before, after in holes)
        raise MigrationRefused(
            f"The versions in {migrations.folder} have gaps: {listed}. Is a file missing?",
            hint="Repeat with --allow-gaps if they are meant.",
        )
    result = []
    newest = max((v for v, record in records.items() if _is_begun_up(record)), default=-1)
    for migration in migrations.migrations:
        if target is not None and migration.version > target:
            break
        record = records.get(migration.version) or untouched(migration.version, migration.title)
        if record.state.is_in_schema:
            continue
        if record.state.is_open and record.direction is Direction.DOWN:
            raise MigrationRefused(
                f"{migration.name} is being rolled back ({record.state}).",
                hint="Finish that first: `oncluster migrate rollback`.",
            )
        if record.state.is_untouched and migration.version < newest and not leniency.out_of_order:
            raise MigrationRefused(
                f"{migration.name} is not applied, and the later version {newest} is "
                f"{records[newest].state}.",
                hint="Give it a version after that one, or repeat with --allow-out-of-order.",
            )
        _refuse_failed(migration, record, leniency)
        if migration.up is None:
            raise MigrationRefused(f"{migration.name} has no up file.")
        result.append(Selected(migration, migration.up, record, record.next_generation))
    return tuple(result)


def _select_down(
    migrations: MigrationSet,
    records: Mapping[int, MigrationRecord],
    *,
    target: int | None,
    leniency: Leniency,
) -> tuple[Selected, ...]:
    begun = sorted((v for v, r in records.items() if not r.state.is_untouched), reverse=True)
    if target is None:
        begun = begun[:1]
    elif target != ALL and migrations.get(target) is None:
        is_below_all = all(target < version for version in migrations.versions)
        undo = " To undo all of them: `rollback --all`, in Airflow the target -1." if is_below_all else ""
        raise _unknown_target(migrations, target, hint=undo)
    result = []
    for version in begun:
        if target is not None and version <= target:
            break
        migration, record = migrations.get(version), records[version]
        if migration is None:
            raise MigrationRefused(f"Version {version} ({record.title}) is applied and its files are gone.")
        if migration.down is None:
            raise MigrationRefused(
                f"{migration.name} cannot be rolled back: it has no down file.",
                hint="Write one, or `oncluster migrate mark` it once you have undone it yourself.",
            )
        if record.direction is Direction.DOWN:
            _refuse_failed(migration, record, leniency)
        result.append(Selected(migration, migration.down, record, record.generation))
    return tuple(result)


def _is_begun_up(record: MigrationRecord) -> bool:
    return record.direction is Direction.UP and not record.state.is_untouched


def _is_allowed_gap(migrations: MigrationSet, after: int) -> bool:
    """The file behind the gap says why there is one: `-- oncluster: allow=version-gap reason="…"`."""
    migration = migrations.get(after)
    script = migration and migration.first_file
    return bool(script and script.options.allows(GAP_RULE))


OTHERWISE = {
    Direction.UP: "or roll it back",
    Direction.DOWN: "a down file that failed on every host may be corrected first, say with IF EXISTS",
}
"""What else can be done about a migration that failed, in the direction in which it did."""


def _refuse_failed(migration: Migration, record: MigrationRecord, leniency: Leniency) -> None:
    if record.state is not MigrationState.FAILED or leniency.retry_failed:
        return
    failed = [row for row in record.rows if row.state.is_failure]
    lines = "\n  ".join(
        f"statement {row.statement} on {row.host.readable}: {row.state} (code {row.code}) {row.error}"
        for row in failed
    )
    raise MigrationRefused(
        f"{migration.name} failed {record.direction}:\n  {lines}",
        code=next((row.code for row in failed if row.code), None),
        hint=_after_abandoning(migration.version, record.direction)
        if all(row.state is CellState.ABANDONED for row in failed)
        else f"{_given_up(failed)}Remove the cause and repeat with --retry-failed, which sends what failed "
        f"to the hosts where it failed; {OTHERWISE[record.direction]}.",
    )


def _given_up(failed: Sequence[LedgerRow]) -> str:
    if not any(row.state.is_given_up for row in failed):
        return ""
    return "A host that came back may have done it since: `oncluster migrate status` looks. "


def _after_abandoning(version: int, direction: Direction) -> str:
    """The task stands in the queue: sent again, a host that comes back would do it twice."""
    state = "applied" if direction is Direction.UP else "unapplied"
    return (
        "Start the host: it does its part, and `oncluster migrate status` records it. If it never comes "
        f"back: `oncluster migrate mark {version} {state} --reason …`, and what was not sent yet goes into "
        f"a new migration; {OTHERWISE[direction]}."
    )


def _unknown_target(migrations: MigrationSet, target: int, *, hint: str = "") -> MigrationRefused:
    known = ", ".join(map(str, migrations.versions[-10:])) or "none"
    return MigrationRefused(
        f"There is no version {target} in {migrations.folder}.", hint=f"The last ones are: {known}.{hint}"
    )


# --- changed files (M5) -----------------------------------------------------------------------------------


def changes(
    migrations: MigrationSet, records: Mapping[int, MigrationRecord]
) -> tuple[list[Problem], list[Problem]]:
    """(what forbids a run, what is only to be told: comments or layout differ)."""
    problems: list[Problem] = []
    notes: list[Problem] = []
    for version, record in records.items():
        if record.state.is_untouched:
            continue
        migration = migrations.get(version)
        if migration is None:
            problems.append(
                Problem(
                    str(migrations.folder),
                    0,
                    "missing-file",
                    f"version {version} ({record.title}) is {record.state} and has no file any more",
                )
            )
            continue
        script = migration.script(record.direction)
        if script is None:
            what = f"{record.direction} file of {migration.name}"
            problems.append(
                Problem(str(migrations.folder), 0, "missing-file", f"the {what} is gone ({record.state})")
            )
            continue
        found = _changed_statements(script, record)
        problems += found
        differs = script.checksum != record.file_checksum
        if differs and record.state is MigrationState.MARKED:
            problems.append(
                Problem(str(script.path), 0, "changed-file", "the file differs from the one that was marked")
            )
        elif differs and not found and record.state.is_in_schema:
            notes.append(
                Problem(
                    str(script.path), 0, "changed-comments", "comments or layout changed after it was applied"
                )
            )
    return problems, notes


def _changed_statements(script: Script, record: MigrationRecord) -> list[Problem]:
    """A statement may change, or go, only while it has failed on every host it was sent to.

    What was gone when the migration was applied is no part of it: `record.statements` counts those that are.
    """
    if record.state is MigrationState.MARKED:
        return []
    problems = []
    for number in sorted({row.statement for row in record.rows}):
        if record.state.is_in_schema and number > record.statements:
            continue
        rows = record.rows_of(number)
        sent = max(rows, key=lambda row: row.attempt).statement_checksum
        now = script.statements[number - 1] if number <= len(script.statements) else None
        if now is not None and now.checksum == sent:
            continue
        if _failed_everywhere(rows) and record.state.is_open:
            continue
        what = "is gone from the file" if now is None else "is not the statement that was sent to the hosts"
        problems.append(
            Problem(
                str(script.path),
                now.line if now is not None else 0,
                "changed-file",
                f"statement {number} {what} (the migration is {record.state}){_not_failed(rows)}",
            )
        )
    if record.state is MigrationState.APPLIED and len(script.statements) > record.statements:
        added = script.statements[record.statements]
        problems.append(
            Problem(
                str(script.path), added.line, "changed-file", "a statement was added after it was applied"
            )
        )
    return problems


def _not_failed(rows: Sequence[LedgerRow]) -> str:
    """Of a statement that failed on some hosts: where it did not, which is why it may not be corrected."""
    others = [f"{row.state} on {row.host.readable}" for row in rows if not _failed_everywhere([row])]
    if len(others) == len(rows):
        return ""
    return f"; it may be corrected when it has failed on every host, and it is {', '.join(others)}"


def _failed_everywhere(rows: Sequence[LedgerRow]) -> bool:
    return all(row.state.is_failure and row.state is not CellState.UNKNOWN for row in rows)
