"""Migration runs, step by step.

    runner = MigrationRunner(keeper=…, migrations=load_folder(…), ledger=Ledger(…), topology=…, queue=…,
    env=…)

    run = await runner.begin(RunRequest(run_id="…", …))     # lock, checks, the run is recorded
    for ref in run.refs:
        progress = await runner.submit_statement(run, ref)  # recorded, then enqueued, once
        progress = await runner.wait(run, ref)              # or collect(): one look, outcomes recorded
        if not progress.verdict.goes_on: break
        await runner.finish_migration(run, ref.version)     # `applied` when every host is done
    summary = await runner.finish(run)                      # the run's state; the lock is given back

`engine.migrations.drive` does this loop for the command line. Airflow makes each step a task: `run.to_json()`
travels through XCom, and each task starts with

    run = await runner.reenter(Run.from_json(data))         # needs binding=TTL in the request

Every step may be repeated, by the same or another process, after a crash at any point of it: it first looks
at what the ledger and the queue know. `collect` is how outcomes of hosts that were off line arrive in the
ledger; `engine.migrations.upkeep.refresh` does it for all open migrations without a run.

Safety argument.
1. `begin` takes the lease and registers its fence with the ledger (`locked_ledger`), then decides from the
   ledger what is to be done. A crash after it leaves a lease that its run re-enters or others wait out.
2. `submit_statement` records the attempt, with a token that follows from the ledger alone, before it
   enqueues. A crash in between leaves an attempt that has no entry; the next call enqueues under the same
   token. A crash after enqueuing leaves an entry that the next call attaches to. The queue takes each token
   once, and takes none after the lease was lost (`guarded`).
3. Outcomes are facts read from the queue; recording them twice adds nothing.
4. A statement is sent only when all before it were sent and none of them has failed anywhere.
5. `applied` is recorded when every required host is done, which the database checks again (M6).
Never: send a statement again under a new token unless a person asked for it (`retry_failed`), and then only
to hosts on which it failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config.model import DistributedDdl, Topology
from engine.ddl.client import DDLQueueClient
from engine.env import Env
from engine.errors import OnclusterError
from engine.keeper.base import Keeper
from engine.migrations import lock
from engine.migrations.abandoned import require_gone
from engine.migrations.database_probe import DatabaseProbe, databases_of
from engine.migrations.decide import (
    attempts_to_send,
    check_unchanged,
    is_begun,
    is_complete,
    is_finished,
    patience_of,
    step_of,
    summarise,
)
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction, MigrationSet, Script, ScriptStatement
from engine.migrations.guarded import guarded
from engine.migrations.ledger import Ledger
from engine.migrations.ledger_writer import Attempt, LedgerWriter
from engine.migrations.lock import Binding, Lease
from engine.migrations.locked_ledger import LockedLedger
from engine.migrations.model import Progress, Run, RunRequest, RunSummary, StatementRef, Step
from engine.migrations.observe import Target, given_up_targets, targets_of
from engine.migrations.order import check_order, creations_before, require_made
from engine.migrations.preflight import preflight
from engine.migrations.renamed import require_not_renamed
from engine.migrations.selection import select, target_of_run
from engine.migrations.statements import Surroundings
from engine.migrations.states import Event, MigrationRecord, RunState
from engine.migrations.verdict import Verdict, judge

logger = logging.getLogger(__name__)

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class MigrationRunner:
    """One folder, one cluster, one ledger, one Keeper session."""

    keeper: Keeper
    migrations: MigrationSet
    ledger: Ledger
    topology: Topology
    queue: DistributedDdl
    env: Env
    probe: DatabaseProbe | None = None
    """Asked by `begin` for Replicated databases, which refuse what a run would send; nobody without it."""

    @property
    def cluster(self) -> str:
        return self.migrations.cluster

    @property
    def locked(self) -> LockedLedger:
        return LockedLedger(self.keeper, self.ledger, self.cluster, self.queue, self.env)

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(self.cluster, self.topology, self.queue)

    # --- beginning and ending -----------------------------------------------------------------------------

    async def begin(self, request: RunRequest) -> Run:
        """Take the lock and decide what is to be done; nothing is sent.

        Raises Busy (names the holder), ChangedMigration, ApprovalRequired, MigrationRefused,
        MigrationFilesError (a statement that cannot be sent, with its place and ClickHouse's code), Keeper's
        errors and LedgerUnavailable. The lock is given back then.
        """
        replicated, silent = await databases_of(self.topology, self.cluster, self.probe)
        for note in silent:
            logger.warning("migration.not_asked cluster=%s note=%s", self.cluster, note)
        lease = await self.locked.acquire(request)
        try:
            opened = [record for record in self.ledger.records(self.cluster).values() if record.state.is_open]
            rows = [row for record in opened for row in record.rows]
            await self._look(request, lease, [*targets_of(rows), *given_up_targets(rows)])
            selected = select(
                self.migrations,
                self.ledger.records(self.cluster),
                direction=request.direction,
                target=self.target_of(request),
                leniency=request.leniency,
            )
            if not request.adopt_ledger:
                require_not_renamed(self.ledger, self.migrations, self.topology)
            preflight(selected, request, self.surroundings, replicated=replicated)
            writer = self.locked.writer(request.run_id, lease)
            writer.record_run(
                direction=request.direction,
                target=request.target,
                requested_by=request.requested_by,
                approved_by=request.approved_by,
            )
            writer.record_run_state(RunState.RUNNING)
        except OnclusterError:
            await self.locked.give_back(lease)
            raise
        steps = tuple(map(step_of, selected))
        logger.info("migration.begun run=%s cluster=%s steps=%d", request.run_id, self.cluster, len(steps))
        return Run(request, self.cluster, steps, lease)

    def target_of(self, request: RunRequest) -> int | None:
        """What it asks for, or what it asked for when it first began."""
        if request.direction is Direction.UP or request.target is not None:
            return request.target
        return target_of_run(self.migrations, self.ledger.events(self.cluster), run_id=request.run_id)

    async def reenter(self, run: Run) -> Run:
        """The run in this process: takes up its lease, or a new one if the old one ran out meanwhile.

        Raises Busy when another run is at work now.
        """
        if run.request.binding is not Binding.TTL:
            raise MigrationRefused("Only a run with binding=TTL can go on in another process.")
        return run.with_lease(await self.locked.acquire(run.request))

    async def finish(self, run: Run) -> RunSummary:
        """Record how the run ended and give the lock back."""
        lease = self._lease(run)
        summary = self.summarise(run)
        self.locked.writer(run.request.run_id, lease).record_run_state(summary.state, summary.note)
        await self.locked.give_back(lease)
        logger.info("migration.ended run=%s cluster=%s state=%s", summary.run_id, self.cluster, summary.state)
        return summary

    async def abandon(self, run: Run) -> None:
        """Give the lock back and leave the run as it stands; what was sent goes on."""
        if run.lease is not None:
            await self.locked.give_back(run.lease)

    def summarise(self, run: Run) -> RunSummary:
        """How the run stands, from the ledger."""

        def standing(ref: StatementRef, record: MigrationRecord) -> Progress:
            return self._progress(run, ref, record=record, is_time_over=True)

        return summarise(run, self.ledger.records(self.cluster), standing)

    # --- one statement ------------------------------------------------------------------------------------

    async def submit_statement(self, run: Run, ref: StatementRef) -> Progress:
        """Send the statement if it is to be sent; attach to it if it was.

        A statement that is done, or whose migration is in the state the run wants, is not touched. Raises
        MigrationRefused (out of order, or another run changed the migration meanwhile), TableNotMade,
        StaleFence, Keeper's errors; after UnknownOutcome call it again.
        """
        lease = self._lease(run)
        step, script = self._step(run, ref)
        record = self.locked.record(step.version, statement=ref.statement)
        if is_finished(record, step):
            return Progress(ref, Verdict.DONE, record.rows_of(ref.statement))
        check_unchanged(record, step)
        self._check_order(run, ref)
        if not is_begun(record, step) or not record.rows_of(ref.statement):
            await self._check_made(run, ref)
        writer = self.locked.writer(run.request.run_id, lease)
        for passed in run.empty_steps_before(step):
            self._record_empty(run, passed, writer)
        statement = script.statements[ref.statement - 1]
        if run.request.leniency.retry_failed:
            await self._look(run.request, lease, given_up_targets(record.rows_of(ref.statement)))
            record = self.locked.record(step.version, statement=ref.statement)
            queue = DDLQueueClient(self.keeper, self.env, self.queue.paths)
            await require_gone(queue, record.rows_of(ref.statement))
        if not is_begun(record, step):
            writer.record_step(Event.STARTED, step, script.checksum, run.request.requested_by)
        for attempt in self._attempts(run, step, script, statement):
            await self._send(run, lease, writer, statement, attempt)
        return self._progress(run, ref)

    async def collect(self, run: Run, ref: StatementRef) -> Progress:
        """One look at the queue; what is new goes into the ledger, whatever has become of the file. Raises
        StaleFence and Keeper's errors."""
        lease = self._lease(run)
        observer = self.locked.observer(run.request.run_id, lease)
        for target in targets_of(self._progress(run, ref).rows):
            await observer.look(target)
        return self._progress(run, ref)

    async def wait(self, run: Run, ref: StatementRef, *, on_progress: OnProgress | None = None) -> Progress:
        """Wait as long as the statement's options say, recording what is seen at once.

        Ends with any verdict but WAIT. A timeout is a verdict (UNFINISHED), not an error. Raises StaleFence
        and Keeper's errors.
        """
        lease = self._lease(run)
        _, script = self._step(run, ref)
        patience = run.request.patience(script.statements[ref.statement - 1].options)
        observer = self.locked.observer(run.request.run_id, lease)
        deadline_s = None if patience.timeout_s < 0 else self.env.monotonic_s() + patience.timeout_s

        def judged(*, is_time_over: bool) -> Progress:
            now = self._progress(run, ref, is_time_over=is_time_over)
            if on_progress is not None:
                on_progress(now)
            return now

        if self._progress(run, ref).verdict is Verdict.PARTIAL and patience.timeout_s != 0:
            await self.collect(run, ref)  # a host may have come back since it was recorded
        progress = judged(is_time_over=False)
        if progress.verdict is not Verdict.WAIT:
            return progress
        targets = targets_of(progress.rows)
        keep_alive = lock.renew if run.request.binding is Binding.TTL else None
        async for is_time_over in observer.changes(
            targets,
            deadline_s=deadline_s,
            keep_alive=None if keep_alive is None else lambda: keep_alive(self.keeper, lease),
            keep_alive_every_s=run.request.ttl_s / 3,
        ):
            progress = judged(is_time_over=is_time_over)
            if progress.verdict is not Verdict.WAIT or is_time_over:
                break
        return progress

    async def finish_migration(self, run: Run, version: int) -> MigrationRecord:
        """Record `applied` (`rolled_back`) if every required host is done; otherwise leave it open.

        So it is left where the file has gone or has other statements by now: the next run's plan says that.
        """
        lease = self._lease(run)
        step = run.step(version)
        record = self.locked.record(version)
        if step is None or not self._is_as_begun(step) or is_finished(record, step):
            return record
        writer = self.locked.writer(run.request.run_id, lease)
        if not step.statements:
            if self._is_its_turn(run, step):
                self._record_empty(run, step, writer)
        elif is_begun(record, step) and is_complete(record, step.statements):
            self._record_done(run, step, writer)
        return self.locked.record(version)

    # --- inside -------------------------------------------------------------------------------------------

    async def _look(self, request: RunRequest, lease: Lease, targets: Sequence[Target]) -> None:
        """Also at hosts that were given up: one that did its task after all is recorded, and not asked again.
        What came back while nobody looked counts for this run, however little it waits."""
        observer = self.locked.observer(request.run_id, lease)
        for target in targets:
            await observer.look(target)

    def _lease(self, run: Run) -> Lease:
        if run.lease is None:
            raise MigrationRefused("This run holds no lock in this process.", hint="Call reenter() first.")
        return run.lease

    def _step(self, run: Run, ref: StatementRef) -> tuple[Step, Script]:
        step = self._part(run, ref)
        script = self._script(step)
        if len(script.statements) != step.statements or not 1 <= ref.statement <= step.statements:
            raise MigrationRefused(f"{script.path} has changed since the run began.", hint="Begin a new run.")
        return step, script

    def _part(self, run: Run, ref: StatementRef) -> Step:
        step = run.step(ref.version)
        if step is None or step.direction is not ref.direction:
            raise MigrationRefused(f"{ref} is no part of the run {run.request.run_id}.")
        return step

    def _script(self, step: Step) -> Script:
        script = self.migrations.script(step.version, step.direction)
        if script is None:
            raise MigrationRefused(f"The {step.direction} file of version {step.version} is gone.")
        return script

    def _is_as_begun(self, step: Step) -> bool:
        script = self.migrations.script(step.version, step.direction)
        return script is not None and len(script.statements) == step.statements

    def _progress(
        self,
        run: Run,
        ref: StatementRef,
        *,
        record: MigrationRecord | None = None,
        is_time_over: bool = False,
    ) -> Progress:
        step = self._part(run, ref)
        record = record or self.locked.record(ref.version, statement=ref.statement)
        rows = record.rows_of(ref.statement) if is_begun(record, step) else ()
        if not rows:
            verdict = Verdict.DONE if is_finished(record, step) else Verdict.WAIT
            return Progress(ref, verdict, ())
        patience = patience_of(self.migrations, run.request, ref)
        return Progress(ref, judge(rows, patience, is_time_over=is_time_over), rows)

    def _record_empty(self, run: Run, step: Step, writer: LedgerWriter) -> None:
        """A migration without statements is begun and done as the run passes it."""
        record = self.locked.record(step.version)
        if is_finished(record, step):
            return
        check_unchanged(record, step)
        if not is_begun(record, step):
            writer.record_step(Event.STARTED, step, self._script(step).checksum, run.request.requested_by)
        self._record_done(run, step, writer)

    def _record_done(self, run: Run, step: Step, writer: LedgerWriter) -> None:
        event = Event.APPLIED if step.direction is Direction.UP else Event.ROLLED_BACK
        writer.record_step(event, step, self._script(step).checksum, run.request.requested_by)
        logger.info("migration.%s version=%d cluster=%s", event.value, step.version, self.cluster)

    def _is_its_turn(self, run: Run, step: Step) -> bool:
        """The run goes on behind every statement of the migrations before this one."""
        records = self.ledger.records(self.cluster)
        return all(
            self._progress(run, ref, record=records.get(ref.version), is_time_over=True).verdict.goes_on
            for earlier in run.steps_before(step)
            for ref in earlier.refs
        )

    def _check_order(self, run: Run, ref: StatementRef) -> None:
        if ref == run.refs[0]:
            return
        has_failures = self.ledger.has_failures(self.cluster)
        records = self.ledger.records(self.cluster) if has_failures else {}

        def standing(earlier: StatementRef) -> Progress:
            self._step(run, earlier)
            return self._progress(run, earlier, record=records.get(earlier.version), is_time_over=True)

        check_order(run, ref, standing, looks_at_all=has_failures)

    async def _check_made(self, run: Run, ref: StatementRef) -> None:
        """Raises TableNotMade. Who does not wait at all has said that he knows better."""
        statement = self._step(run, ref)[1].statements[ref.statement - 1]
        if run.request.patience(statement.options).timeout_s == 0:
            return
        refs = run.refs[: run.refs.index(ref)]

        def earlier() -> list[ScriptStatement]:
            wanted = {each.version for each in refs}
            steps = [step for step in run.steps if step.version in wanted]
            found = [i for step in steps for i in self._script(step).statements[: step.statements]]
            return found[: len(refs)]

        for number in creations_before(statement, earlier, run.request):
            creation = refs[number]
            progress = self._progress(run, creation)
            if progress.rows and progress.verdict is not Verdict.DONE:
                progress = await self.collect(run, creation)
            cluster = self.topology.cluster(statement.options.cluster or self.cluster)
            require_made(ref, creation, progress, cluster)

    def _attempts(self, run: Run, step: Step, script: Script, statement: ScriptStatement) -> list[Attempt]:
        """The attempts that must stand in the queue now."""
        cluster = self.topology.cluster(statement.options.cluster or self.cluster)
        return attempts_to_send(
            step,
            script,
            statement,
            sql=self.surroundings.recorded(statement, run.request),
            known=self.ledger.attempts(self.cluster, step.version, step.direction, step.generation),
            rows=self.locked.record(step.version, statement=statement.index).rows_of(statement.index),
            hosts=self.surroundings.prepare(statement, run.request, token="hosts").hosts,
            shards=[{replica.host_id for replica in shard.replicas} for shard in cluster.shards],
            request=run.request,
            ledger_id=self.ledger.ledger_id,
            cluster=self.cluster,
        )

    async def _send(
        self, run: Run, lease: Lease, writer: LedgerWriter, statement: ScriptStatement, attempt: Attempt
    ) -> None:
        writer.record_attempt(attempt)
        if self.ledger.entry(attempt.token):
            return
        prepared = self.surroundings.prepare(
            statement,
            run.request,
            token=attempt.token,
            hosts=attempt.hosts,
            # Without the attempt and the text: every host gets the same UUID, also by a repetition.
            uuid_seed=f"{self.ledger.ledger_id}/{self.cluster}/{attempt.version}/{attempt.direction}/"
            f"{attempt.generation}/{attempt.statement}",
        )
        client = DDLQueueClient(
            guarded(self.keeper, lease, entry_prefix=self.queue.paths.entry_prefix),
            self.env,
            self.queue.paths,
        )
        submission = await client.submit(prepared)
        writer.record_submission(attempt.token, entry=submission.entry, outcome=submission.outcome.value)
