"""The ledger's care outside of runs: late outcomes, a person's word, a lock whose holder will not come
back."""

from __future__ import annotations

from engine.ddl.client import DDLQueueClient
from engine.ddl.outcome import HostOutcome, HostState
from engine.errors import OnclusterError
from engine.migrations import lock
from engine.migrations.abandoned import require_gone
from engine.migrations.decide import is_complete
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction
from engine.migrations.lock import Lease
from engine.migrations.model import RunRequest
from engine.migrations.observe import given_up_targets, targets_of
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import Event, MigrationRecord, MigrationState
from engine.names import HostId


async def refresh(runner: MigrationRunner, request: RunRequest) -> list[MigrationRecord]:
    """Look at every host without an outcome, record what is new, and what is complete as applied or rolled
    back.

    This is how a host that was off line during a run and caught up later comes into the ledger, also when the
    migration was rolled back meanwhile, or when it had been given up and the migration is still open. Returns
    the records that were open before. Raises Busy when a run is at work, which records by itself, and
    MigrationRefused when the cluster's migrations are recorded in another ledger: in this one all of them
    look as if nothing had ever been sent.
    """
    locked = runner.locked
    await locked.check()
    opened = [r for r in runner.ledger.records(runner.cluster).values() if r.state.is_open]
    targets = targets_of(runner.ledger.rows(runner.cluster))
    targets += given_up_targets([row for record in opened for row in record.rows])
    if not opened and not targets:
        return []
    lease = await locked.acquire(request)
    try:
        observer = locked.observer(request.run_id, lease)
        for target in targets:
            await observer.look(target)
        for record in opened:
            now = locked.record(record.version)
            statements = _statements_of(runner, now)
            if now.state.is_open and is_complete(now, statements):
                locked.writer(request.run_id, lease).record_event(
                    Event.APPLIED if now.direction is Direction.UP else Event.ROLLED_BACK,
                    version=now.version,
                    title=now.title,
                    direction=now.direction,
                    generation=now.generation,
                    statements=statements,
                    file_checksum=_checksum_of(runner, now),
                    done_by=request.requested_by,
                    note="seen after the run",
                )
    finally:
        await locked.give_back(lease)
    return [locked.record(record.version) for record in opened]


def _statements_of(runner: MigrationRunner, record: MigrationRecord) -> int:
    """How many there are by now: a file that was corrected after a failure may have more than when it was
    begun, or fewer."""
    script = runner.migrations.script(record.version, record.direction)
    if script is None:
        return record.statements
    return max([len(script.statements), *(row.statement for row in record.rows)])


def _checksum_of(runner: MigrationRunner, record: MigrationRecord) -> str:
    """The file's of which something was sent last; of one without statements nothing is."""
    if record.rows:
        return max(record.rows, key=lambda row: row.attempt).file_checksum
    script = runner.migrations.script(record.version, record.direction)
    return record.file_checksum if script is None else script.checksum


async def mark(
    runner: MigrationRunner, request: RunRequest, version: int, *, applied: bool, reason: str
) -> MigrationRecord:
    """A person declares a migration applied, or not applied; nothing is sent. Raises MigrationRefused.

    One that the ledger knows can be declared not applied also when its files are gone for good.
    """
    if not reason.strip():
        raise MigrationRefused("Marking needs a reason; it stays in the ledger.")
    migration = runner.migrations.get(version)
    up = None if migration is None else migration.up
    locked = runner.locked
    lease = await locked.acquire(request)
    try:
        record = locked.record(version)
        if up is None and (applied or record.state.is_untouched):
            raise MigrationRefused(f"There is no version {version} in {runner.migrations.folder}.")
        title = record.title if migration is None else migration.title
        if (applied and record.state.is_in_schema) or (not applied and record.state.is_untouched):
            raise MigrationRefused(f"{version}_{title} is {record.state} already.")
        _record_mark(runner, request, lease, record, applied=applied, reason=reason)
        return locked.record(version)
    finally:
        await locked.give_back(lease)


async def mark_up_to(
    runner: MigrationRunner, request: RunRequest, version: int, *, reason: str
) -> list[MigrationRecord]:
    """A person declares applied what another tool has applied: this version and all before it. Those that are
    in the schema already are passed over, so that it may be repeated; returns the others.

    Raises MigrationRefused before anything is recorded where one of them was begun or rolled back here: of
    that one the ledger knows more, and it is marked by itself.
    """
    if not reason.strip():
        raise MigrationRefused("Marking needs a reason; it stays in the ledger.")
    if runner.migrations.get(version) is None:
        raise MigrationRefused(f"There is no version {version} in {runner.migrations.folder}.")
    locked = runner.locked
    lease = await locked.acquire(request)
    try:
        records = [locked.record(each) for each in runner.migrations.versions if each <= version]
        missing = [record for record in records if not record.state.is_in_schema]
        for record in missing:
            if record.state is not MigrationState.PENDING:
                raise MigrationRefused(
                    f"Version {record.version} is {record.state}.",
                    hint=f"Look at it and mark it by itself: oncluster migrate mark {record.version} applied",
                )
        for record in missing:
            _record_mark(runner, request, lease, record, applied=True, reason=reason)
        return [locked.record(record.version) for record in missing]
    finally:
        await locked.give_back(lease)


def _record_mark(
    runner: MigrationRunner,
    request: RunRequest,
    lease: Lease,
    record: MigrationRecord,
    *,
    applied: bool,
    reason: str,
) -> None:
    migration = runner.migrations.get(record.version)
    up = None if migration is None else migration.up
    # A new generation: what was sent before is no part of what the person vouches for.
    is_new = applied and record.state is not MigrationState.PENDING
    runner.locked.writer(request.run_id, lease).record_event(
        Event.MARKED_APPLIED if applied else Event.MARKED_UNAPPLIED,
        version=record.version,
        title=record.title if migration is None else migration.title,
        direction=Direction.UP if applied else Direction.DOWN,
        generation=record.generation + 1 if is_new else record.generation,
        statements=record.statements if up is None else len(up.statements),
        file_checksum=record.file_checksum if up is None else up.checksum,
        done_by=request.requested_by,
        note=reason,
    )


async def mark_done(
    runner: MigrationRunner,
    request: RunRequest,
    version: int,
    *,
    host: HostId,
    reason: str,
    statement: int | None = None,
) -> MigrationRecord:
    """A person vouches for a host that was given up: it has done the statement (None: all it was given up
    for), by hand or by its replicas. Nothing is sent; the next run goes on behind it.

    The host's own word counts more: it is looked at first, and nothing is recorded over what it said. Raises
    MigrationRefused, also while its task still stands in the queue, where it may do it once more.
    """
    if not reason.strip():
        raise MigrationRefused("Marking needs a reason; it stays in the ledger.")
    locked = runner.locked
    lease = await locked.acquire(request)
    try:
        observer = locked.observer(request.run_id, lease)
        for target in given_up_targets(locked.record(version).rows):
            await observer.look(target)
        record = locked.record(version)
        mine = [r for r in record.rows if r.host == host and statement in (None, r.statement)]
        given_up = [row for row in mine if row.state.is_given_up]
        if not record.state.is_open or not given_up:
            states = (
                ", ".join(f"statement {r.statement} is {r.state}" for r in mine) or "nothing was sent to it"
            )
            raise MigrationRefused(
                f"Version {version} is {record.state}, and nothing of it was given up on {host.readable}: "
                f"{states}.",
                hint="Only what is expired, unknown or abandoned can be marked done; what failed is sent "
                "again with `--retry-failed`.",
            )
        await require_gone(DDLQueueClient(runner.keeper, runner.env, runner.queue.paths), given_up)
        said = f"declared done by {request.requested_by}: {reason}"
        writer = locked.writer(request.run_id, lease)
        for row in given_up:
            writer.record_outcomes(row.token, [HostOutcome(host, HostState.DONE, 0, said)])
        return locked.record(version)
    finally:
        await locked.give_back(lease)


async def unlock(runner: MigrationRunner, request: RunRequest, *, run_id: str = "") -> lock.LeaseText | None:
    """Take the lock from a holder that will not come back; it can neither send nor record any more.

    Returns what the lock said, None if nobody held it. Raises Busy as `lock.break_lease`.
    """
    locked = runner.locked
    broken = await lock.break_lease(runner.keeper, locked.lock_path, run_id=run_id)
    if broken is None:
        return None
    try:
        await locked.give_back(await locked.acquire(request))
    except OnclusterError:
        # Somebody was faster and holds it now, with a fence of their own; the old holder is out either way.
        return broken
    return broken
