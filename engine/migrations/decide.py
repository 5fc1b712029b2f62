"""The decisions of a run, taken from what the ledger says. Pure; `engine.migrations.runner` acts on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from engine.migrations.errors import MigrationRefused
from engine.migrations.files import Direction, MigrationSet, Script, ScriptStatement
from engine.migrations.ledger_writer import Attempt
from engine.migrations.model import Progress, Run, RunRequest, RunSummary, StatementRef, Step
from engine.migrations.repeating import takes_effect_again
from engine.migrations.selection import Selected
from engine.migrations.states import CellState, LedgerRow, MigrationRecord, MigrationState, RunState
from engine.migrations.tokens import token_for
from engine.migrations.verdict import Patience, Verdict
from engine.names import HostId
from engine.sql import parse_statement, redact, runs_once_per_shard

SEVERITY = (RunState.DONE, RunState.PARTIAL, RunState.UNFINISHED, RunState.FAILED)
"""Of several steps the run takes the last in this order."""


def step_of(item: Selected) -> Step:
    """What a run makes of a migration that was selected for it."""
    return Step(
        item.migration.version,
        item.migration.title,
        item.script.direction,
        item.generation,
        len(item.script.statements),
    )


def is_begun(record: MigrationRecord, step: Step) -> bool:
    """The step is under way."""
    return record.state.is_open and _is_of(record, step)


def is_finished(record: MigrationRecord, step: Step) -> bool:
    """The migration is in the state that the step leads to, by this step or by somebody's word."""
    if not _is_of(record, step):
        return False
    if step.direction is Direction.UP:
        return record.state.is_in_schema
    return record.state is MigrationState.ROLLED_BACK


def is_complete(record: MigrationRecord, statements: int) -> bool:
    """Every statement was sent and every required host is done."""
    rows = [row for row in record.rows if row.statement <= statements]
    return len({row.statement for row in rows}) == statements and all(
        row.state is CellState.DONE for row in rows
    )


def check_unchanged(record: MigrationRecord, step: Step) -> None:
    """Raises MigrationRefused when another run has been at work after this one's lease ran out."""
    if is_begun(record, step):
        return
    if step.direction is Direction.UP:
        is_fresh = record.state.is_untouched and record.next_generation == step.generation
    else:
        is_fresh = (
            record.direction is Direction.UP
            and record.generation == step.generation
            and not record.state.is_untouched
        )
    if not is_fresh:
        raise MigrationRefused(
            f"Version {step.version} is {record.state} now: another run has been at work meanwhile.",
            hint="Begin a new run.",
        )


def patience_of(migrations: MigrationSet, request: RunRequest, ref: StatementRef) -> Patience:
    """How long a statement is waited for: the options in its file, where it still stands there, go before the
    run's."""
    script = migrations.script(ref.version, ref.direction)
    if script is None or ref.statement > len(script.statements):
        return Patience(request.timeout_s, request.output_mode)
    return request.patience(script.statements[ref.statement - 1].options)


def attempts_to_send(
    step: Step,
    script: Script,
    statement: ScriptStatement,
    *,
    sql: str,
    known: Sequence[Attempt],
    rows: Sequence[LedgerRow],
    hosts: Sequence[HostId],
    shards: Sequence[Collection[HostId]],
    request: RunRequest,
    ledger_id: str,
    cluster: str,
) -> list[Attempt]:
    """Those under way, which may not have reached the queue; the first; or the repetition that was asked for.

    `sql` is the statement's text for the ledger.

    A repetition goes to the hosts that failed and to no other, once per run: a run that is tried again does
    not repeat its own failure. Raises MigrationRefused when none of them is in the cluster any more, when
    another replica of a host's shard may have done the statement for it (`shards` are the cluster's), and
    when a host may have done it itself and nobody would notice the second time.
    """

    def attempt(number: int, where: Sequence[HostId]) -> Attempt:
        return Attempt(
            token=token_for(
                ledger_id=ledger_id,
                cluster=cluster,
                version=step.version,
                direction=step.direction,
                generation=step.generation,
                statement=statement.index,
                attempt=number,
                checksum=statement.checksum,
            ),
            version=step.version,
            title=step.title,
            direction=step.direction,
            generation=step.generation,
            statement=statement.index,
            attempt=number,
            line=statement.line,
            statement_checksum=statement.checksum,
            file_checksum=script.checksum,
            sql=redact(sql),
            hosts=tuple(where),
        )

    earlier = [item for item in known if item.statement == statement.index]
    if not earlier:
        return [attempt(1, hosts)]
    under_way = {row.token for row in rows if not row.state.is_final}
    result = [item for item in earlier if item.token in under_way]
    if again := hosts_to_retry(
        step, statement, rows=rows, hosts=hosts, shards=shards, request=request, cluster=cluster
    ):
        result.append(attempt(earlier[-1].attempt + 1, again))
    return result


def hosts_to_retry(
    step: Step,
    statement: ScriptStatement,
    *,
    rows: Sequence[LedgerRow],
    hosts: Sequence[HostId],
    shards: Sequence[Collection[HostId]],
    request: RunRequest,
    cluster: str,
) -> list[HostId]:
    """Where a statement that was sent is sent once more. Raises MigrationRefused as `attempts_to_send`."""
    failed = [row for row in rows if row.state.is_failure]
    is_own_failure = any(row.run_id == request.run_id for row in failed)
    if not failed or not request.leniency.retry_failed or is_own_failure:
        return []
    there = [row.host for row in failed if row.host in hosts]
    if not there:
        raise _nowhere_to_retry(step, failed, cluster)
    _check_not_done_for_shard(step, statement, failed, rows, shards)
    _check_repeatable(step, statement, failed)
    return there


def _check_not_done_for_shard(
    step: Step,
    statement: ScriptStatement,
    failed: Sequence[LedgerRow],
    rows: Sequence[LedgerRow],
    shards: Sequence[Collection[HostId]],
) -> None:
    """What one replica does for its shard would be done to the whole shard a second time. The ledger does not
    know whether the table is replicated. A host that failed has tried; one that never answered was away while
    the others worked, and one that does not know may have left it to them.
    """
    parsed = parse_statement(statement.sql)
    if not (runs_once_per_shard(parsed) and (parsed.is_destructive or parsed.rewrites_data)):
        return  # such as ADD COLUMN, which fails visibly the second time
    done = {row.host for row in rows if row.state is CellState.DONE}
    for row in failed:
        others = {host for shard in shards if row.host in shard for host in shard if host in done}
        if others and row.state.is_given_up:
            host, names = row.host.readable, ", ".join(sorted(each.readable for each in others))
            raise MigrationRefused(
                f"{step.version}_{step.title} statement {statement.index} is {row.state} on {host} and done "
                f"on {names} of the same shard: if its table is replicated, that was for the whole shard, "
                "and to repeat it would do it twice.",
                hint=f"A replicated table: when {host} has caught up, "
                f"{_mark_done(step, statement, row.host)}. One that is not: execute the "
                "statement there by hand first.",
            )


def _check_repeatable(step: Step, statement: ScriptStatement, failed: Sequence[LedgerRow]) -> None:
    """Where nobody knows whether a host has done it, only that is sent again of which the second time
    shows."""
    hosts = [row.host for row in failed if row.state is CellState.UNKNOWN]
    unknown = ", ".join(host.readable for host in hosts)
    if unknown and takes_effect_again(parse_statement(statement.sql)):
        raise MigrationRefused(
            f"{step.version}_{step.title} statement {statement.index} is unknown on {unknown}: if it was "
            "done there, to send it again would do it twice.",
            hint="Look there. Where it is not done, execute it by hand; then "
            f"{_mark_done(step, statement, hosts[0])}, for each of them.",
        )


def _mark_done(step: Step, statement: ScriptStatement, host: HostId) -> str:
    return (
        f"`oncluster migrate mark {step.version} done --statement {statement.index} --host {host.readable} "
        "--reason …`"
    )


def _state_of(step: Step) -> str:
    return "applied" if step.direction is Direction.UP else "unapplied"


def _nowhere_to_retry(step: Step, failed: Sequence[LedgerRow], cluster: str) -> MigrationRefused:
    names = ", ".join(row.host.readable for row in failed)
    return MigrationRefused(
        f"{step.version}_{step.title} lacks only hosts that '{cluster}' does not have any more: {names}.",
        hint="If nothing else is missing: "
        f"`oncluster migrate mark {step.version} {_state_of(step)} --reason …`.",
    )


def summarise(
    run: Run,
    records: Mapping[int, MigrationRecord],
    standing: Callable[[StatementRef, MigrationRecord], Progress],
) -> RunSummary:
    """How the run stands: as the step that stands worst. `standing` is of a statement whose time is over."""
    rows: list[LedgerRow] = []
    state, note = RunState.DONE, ""
    for step in run.steps:
        record = records.get(step.version)
        if record is None or not (is_begun(record, step) or is_finished(record, step)):
            found, why = RunState.UNFINISHED, f"version {step.version} was not begun"
        else:
            rows += record.rows
            found, why = _step_state(step, record, standing)
        if SEVERITY.index(found) > SEVERITY.index(state):
            state, note = found, why
    return RunSummary(run.request.run_id, run.cluster, state, run.steps, tuple(rows), note)


def _step_state(
    step: Step, record: MigrationRecord, standing: Callable[[StatementRef, MigrationRecord], Progress]
) -> tuple[RunState, str]:
    if is_finished(record, step):
        return RunState.DONE, ""
    state, note = RunState.DONE, ""
    for ref in step.refs:
        progress = standing(ref, record)
        found = run_state_of(progress)
        if SEVERITY.index(found) > SEVERITY.index(state):
            state, note = found, describe(progress)
    return (state, note) if state is not RunState.DONE else (RunState.UNFINISHED, "not recorded as done")


def run_state_of(progress: Progress) -> RunState:
    """What one statement, whose time is over, makes of its run."""
    if not progress.rows:
        return RunState.UNFINISHED
    match progress.verdict:
        case Verdict.DONE:
            return RunState.DONE
        case Verdict.PARTIAL:
            return RunState.PARTIAL
        case Verdict.FAILED:
            return RunState.FAILED
        case Verdict.WAIT | Verdict.UNFINISHED:
            return RunState.UNFINISHED


def describe(progress: Progress) -> str:
    """`1_databases.up statement 2: done on 5 hosts, inactive on node03:9000`, for messages and notes."""
    if not progress.rows:
        return f"{progress.ref} was not sent"
    parts = []
    for state in progress.counts:
        hosts = [row.host.readable for row in progress.rows if row.state is state]
        names = ", ".join(hosts) if len(hosts) <= 3 else f"{len(hosts)} hosts"
        parts.append(f"{state} on {names}")
    return f"{progress.ref} is {', '.join(parts)}"


def _is_of(record: MigrationRecord, step: Step) -> bool:
    return (record.direction, record.generation) == (step.direction, step.generation)
