"""Each of these bugs, put in on purpose, must be caught by the checker that is there for it.

A bug is a patch of the real code. The test runs seeds until the named promise is broken; not finding it is
the failure. The list is also a list of what must not be simplified away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.ddl import (
    attempt,
    backlog,
    cleaner,
    client,
    lane,
    report,
    runner,
    scan,
    series,
    series_runner,
    shards,
    survey,
    worker,
)
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Step
from engine.ddl.failures import status_of
from engine.ddl.initiator import PreparedStatement
from engine.ddl.intents import Intent
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.task import Task
from engine.errors import Code, MultiFailed, NodeExists, NoNode, OnclusterError
from engine.keeper.base import CreateMode, Keeper
from engine.keeper.recipes import create_ancestors, create_if_not_exists
from engine.names import QueuePaths
from engine.testing.ddl import process as ddl_process
from engine.testing.ddl.simulation import Scenario, simulate
from engine.testing.simulation_loop import SimulationStuck
from tests.simulation.deliberate_bugs import Bugs, search

BUGS = Bugs()


# --- initiator --------------------------------------------------------------------------------------------


@BUGS.add("D2", first=8, kill_initiator_at=None, fault_rate=0.08, statements=4)
def the_entry_is_created_and_then_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def submit(self: client.DDLQueueClient, prepared: PreparedStatement) -> client.Submission:
        keeper = await self._source.session()
        found = await self.find(prepared.token)
        if found is not None:
            return found
        await self._create_roots(keeper)
        made = await keeper.create(
            self._paths.entry_prefix, prepared.data, mode=CreateMode.PERSISTENT_SEQUENTIAL
        )
        await create_if_not_exists(keeper, self._paths.token(prepared.token))
        entry = made.rpartition("/")[2]
        await self._finish_submission(prepared.token, entry, prepared.hosts)
        return client.Submission(entry, prepared.token, prepared.hosts, client.SubmitOutcome.ENQUEUED)

    monkeypatch.setattr(client.DDLQueueClient, "submit", submit)


@BUGS.add("D2", has_small_queue=True, statements=6, seeds=250)
def a_token_whose_entry_is_gone_is_enqueued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = client.DDLQueueClient.submit

    async def again(self: client.DDLQueueClient, prepared: PreparedStatement) -> client.Submission:
        submission = await submit(self, prepared)
        if submission.is_gone or submission.outcome is client.SubmitOutcome.ATTACHED:
            keeper = await self._source.session()
            listed = (await keeper.children(self._paths.root)).names
            if submission.entry not in listed or self._env.rng.random() < 0.5:
                await keeper.create(
                    self._paths.entry_prefix, prepared.data, mode=CreateMode.PERSISTENT_SEQUENTIAL
                )
        return submission

    monkeypatch.setattr(client.DDLQueueClient, "submit", again)


@BUGS.add("S1", kill_initiator_at=None)
def active_and_finished_are_created_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_status_dirs(self: client.DDLQueueClient, keeper: Keeper, entry: str) -> None:
        for path in (self._paths.active(entry), self._paths.finished(entry)):
            try:
                await keeper.create(path)
            except (NodeExists, NoNode):
                continue

    monkeypatch.setattr(client.DDLQueueClient, "_create_status_dirs", create_status_dirs)


# --- one host ---------------------------------------------------------------------------------------------


@BUGS.add("D1", kill_gates=(45, 60, 75), replicated_share=0.0)
def the_intent_is_written_after_the_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: runner.StatementRunner, attempt: runner._Attempt) -> ExecutionStatus:
        task = attempt.task
        known = self.begun(task)
        if known is not None and known.status is not None:
            return known.status
        digest = await self.fingerprint(task)
        try:
            await self._execute(attempt)
            status = SUCCESS
        except OnclusterError as error:
            status = status_of(error)
        intent = self._known.intent(task, digest)
        await self._known.begin(intent)
        return await self._known.finish(intent, status)

    monkeypatch.setattr(runner.StatementRunner, "_run", run)


@BUGS.add("D1", first=5, kill_gates=(45, 60, 75), replicated_share=0.0, power_cuts=True, seeds=300)
def after_a_crash_everything_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recover(self: runner.StatementRunner, task: Task, intent: Intent) -> None:
        return None

    monkeypatch.setattr(runner.StatementRunner, "_recover", recover)


@BUGS.add("D1", kill_gates=(45, 60, 75), replicated_share=0.0)
def after_a_crash_everything_counts_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recover(self: runner.StatementRunner, task: Task, intent: Intent) -> ExecutionStatus:
        return SUCCESS

    monkeypatch.setattr(runner.StatementRunner, "_recover", recover)


@BUGS.add("D1", fault_rate=0.08, statements=6, replicated_share=0.0, seeds=300)
def a_run_dies_with_the_session_and_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    original = runner.StatementRunner.run

    async def run(self: runner.StatementRunner, task: Task, **fence: Any) -> ExecutionStatus:
        self._known._known.pop(self._known.key(task), None)
        return await original(self, task, **fence)

    monkeypatch.setattr(runner.StatementRunner, "run", run)


@BUGS.add("D3", first=15, pool_size=3, statements=6, replicated_share=0.0)
def lanes_take_whatever_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_take(self: backlog.Backlog) -> Task | None:
        for slot in self._slots:
            if not slot.is_taken:
                slot.is_taken = True
                return slot.task
        return None

    monkeypatch.setattr(backlog.Backlog, "try_take", try_take)


@BUGS.add("D4", replicated_share=0.0)
def the_outcome_is_reported_before_the_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    original = worker.DDLWorker._run_here_or_for_the_shard

    async def run(self: worker.DDLWorker, keeper: Keeper, task: Task) -> report.Report:
        early = report.Report(task.name, task.host, SUCCESS)
        await report.Reporter(keeper, self._paths, self._identity).report(early)
        await original(self, keeper, task)
        return early

    monkeypatch.setattr(worker.DDLWorker, "_run_here_or_for_the_shard", run)


@BUGS.add("D5", has_poison=True, statements=6)
def an_entry_that_nobody_can_read_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: scan.QueueScan, name: str, host: object, status: ExecutionStatus) -> None:
        raise OnclusterError(status.message)

    monkeypatch.setattr(scan.QueueScan, "_refuse", refuse)


@BUGS.add("D5", first=12, fault_rate=0.08, statements=6)
def a_report_that_meets_a_lost_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lane.Lane._report

    async def give_up(self: lane.Lane, task: Task, what: Any) -> None:
        try:
            await original(self, task, what)
        except OnclusterError:
            self._memory.settle(task.name)

    monkeypatch.setattr(lane.Lane, "_report", give_up)


@BUGS.add("D5", fault_rate=0.0, has_slow_host=False)
def the_watch_is_set_after_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = scan.QueueScan._list

    async def listing(self: scan.QueueScan) -> tuple[str, ...]:
        names = await original(self)
        await asyncio.sleep(0.01)
        self._memory.wake.clear()
        return names

    monkeypatch.setattr(scan.QueueScan, "_list", listing)


# --- once per shard ---------------------------------------------------------------------------------------

IN_SHARDS: dict[str, Any] = {"replicated_share": 1.0, "nodes": 4, "statements": 5, "has_dead_host": False}


@BUGS.add("D6", **IN_SHARDS)
def the_shards_lock_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acquire(self: shards.ShardExecution) -> bool:
        return True

    async def write(self: shards.ShardExecution, *ops: Any) -> bool:
        return True

    monkeypatch.setattr(shards.ShardExecution, "_acquire", acquire)
    monkeypatch.setattr(shards.ShardExecution, "_write_under_lock", write)
    without_fence(monkeypatch)


def without_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    original = runner.StatementRunner.run

    async def run(self: runner.StatementRunner, task: Task, **_: Any) -> ExecutionStatus:
        return await original(self, task)

    monkeypatch.setattr(runner.StatementRunner, "run", run)


@BUGS.add("D6", kill_in_shard_attempt=0.6, **IN_SHARDS)
def a_successor_in_the_shard_does_not_look_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    original = shards.ShardExecution._read_attempts

    async def read(self: shards.ShardExecution) -> Any:
        found = await original(self)
        if found.latest is None:
            return found
        return replace(found, latest=replace(found.latest, effect=attempt.Effect.NONE, number=found.tries))

    monkeypatch.setattr(shards.ShardExecution, "_read_attempts", read)


@BUGS.add("D6", first=7, kill_in_shard_attempt=0.6, **IN_SHARDS)
def an_effect_is_not_recorded_together_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attempt.Fence._ops
    monkeypatch.setattr(attempt.Fence, "_ops", lambda self: original(self)[:1])


@BUGS.add("D6", kill_in_shard_attempt=0.6, **IN_SHARDS)
def a_successor_in_the_shard_takes_what_was_begun_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attempt.Attempt.from_bytes

    def from_bytes(data: bytes) -> attempt.Attempt | None:
        read = original(data)
        return None if read is None else replace(read, effect=attempt.Effect.WHOLE)

    monkeypatch.setattr(attempt.Attempt, "from_bytes", from_bytes)


@BUGS.add(
    "D3", first=532, kill_in_shard_attempt=0.6, fault_rate=0.03, is_stopped=True, seeds=900, **IN_SHARDS
)
def a_replica_gives_up_while_another_makes_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    original = shards.ShardExecution._acquire

    async def acquire(self: shards.ShardExecution) -> bool:
        if await original(self):
            return True
        if int((await self._keeper.get(self._tries_path)).data) > 1:
            raise shards._GaveUp
        return False

    run = shards.ShardExecution.run

    async def give_up(self: shards.ShardExecution) -> shards.ShardResult:
        try:
            return await run(self)
        except shards._GaveUp:
            return shards._gave_up(Code.UNFINISHED, "maximum retries exceeded")

    monkeypatch.setattr(shards, "_GaveUp", type("GaveUp", (Exception,), {}), raising=False)
    monkeypatch.setattr(shards.ShardExecution, "_acquire", acquire)
    monkeypatch.setattr(shards.ShardExecution, "run", give_up)


@BUGS.add("D6", is_membership_changed=True, **IN_SHARDS)
def hosts_that_see_other_members_do_not_agree_on_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def agree(self: shards.ShardExecution) -> None:
        return None

    monkeypatch.setattr(shards.ShardExecution, "_agree_on_shard", agree)


# --- cleaner ----------------------------------------------------------------------------------------------

CLEANING: dict[str, Any] = {"has_small_queue": True, "statements": 6}


@BUGS.add("C1", has_slow_host=True, **CLEANING)
def the_cleaner_does_not_mind_who_is_executing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind(keeper: Keeper, paths: QueuePaths, name: str) -> Any:
        for host in await _names(keeper, paths.active(name)):
            try:
                await keeper.remove(paths.active(name, host))
            except NoNode:
                continue
        return await survey.survey(keeper, paths, name)

    monkeypatch.setattr(cleaner, "survey", blind)


async def _names(keeper: Keeper, path: str) -> Sequence[str]:
    try:
        return (await keeper.children(path)).names
    except NoNode:
        return ()


@BUGS.add("C1", has_slow_host=True, has_dead_host=True, **CLEANING)
def hosts_without_outcome_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    original = survey.FoundEntry.removal_ops
    monkeypatch.setattr(survey.FoundEntry, "removal_ops", lambda self: original(self)[:-1])


@BUGS.add("C1", first=11, has_clock_jumps=True, seeds=400, **CLEANING)
def the_age_of_an_entry_is_taken_from_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def now_s(self: cleaner.DDLCleaner, keeper: Keeper) -> float:
        return self._env.now_s()

    monkeypatch.setattr(cleaner.DDLCleaner, "_now_s", now_s)


@BUGS.add("C2", **CLEANING)
def outcomes_are_removed_before_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def remove(self: cleaner.DDLCleaner, keeper: Keeper, name: str, **_: Any) -> Any:
        found = await survey.survey(keeper, self._paths, name)
        if isinstance(found, survey.Hindrance):
            return cleaner.Removal.ACTIVE, ()
        for op in found.removal_ops():
            try:
                await keeper.multi([op])
            except MultiFailed:
                return cleaner.Removal.CHANGING, ()
        return cleaner.Removal.REMOVED, found.record.expired

    monkeypatch.setattr(cleaner.DDLCleaner, "_remove", remove)


@BUGS.add("C3", has_slow_host=True, seeds=400, is_stopped=True, **CLEANING)
def a_late_worker_makes_the_entry_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_status_dirs(self: report.Reporter, name: str) -> report.StatusDirs:
        for path in (self._paths.active(name), self._paths.finished(name)):
            await create_ancestors(self._keeper, path)
            await create_if_not_exists(self._keeper, path)
        return report.StatusDirs.PRESENT

    monkeypatch.setattr(report.Reporter, "create_status_dirs", create_status_dirs)


@BUGS.add("C4", has_slow_host=True, **CLEANING)
def the_record_calls_everybody_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    original = survey.OutcomeRecord.of

    def of(name: str, stat: Any, entry: DDLLogEntry | None, outcomes: Any) -> Any:
        return original(name, stat, entry, {})

    monkeypatch.setattr(survey.OutcomeRecord, "of", of)


# --- disks ------------------------------------------------------------------------------------------------


@BUGS.add("D1", first=32, power_cuts=True, kill_gates=(45, 55, 65), replicated_share=0.0, seeds=600)
def the_intent_is_not_forced_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(self: ddl_process.ModelIntentStore, intent: Intent) -> None:
        await self._write(intent.key, replace(intent, status=None), is_forced=False)

    monkeypatch.setattr(ddl_process.ModelIntentStore, "begin", begin)


# --- series -----------------------------------------------------------------------------------------------

IN_SERIES: dict[str, Any] = {
    "is_burst": True,
    "pool_size": 1,
    "statements": 6,
    "replicated_share": 0.0,
    "kill_gates": (60, 75, 90),
}


@BUGS.add("D1", first=7, **IN_SERIES)
def statements_of_one_object_are_begun_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: series.Series) -> list[Step]:
        if self._is_stopped or not self._groups:
            return []
        self._groups.clear()
        self._taken = len(self._tasks)
        return [each.step for each in self._tasks]

    monkeypatch.setattr(series.Series, "take", take)


@BUGS.add("D3", **IN_SERIES)
def all_that_a_series_creates_is_created_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def creates_first(tasks: Sequence[Task]) -> list[list[Task]]:
        return [[task] for task in sorted(tasks, key=lambda task: task.statement.kind.value)]

    monkeypatch.setattr(series_runner, "in_groups", creates_first)


@BUGS.add("D1", first=58, **IN_SERIES)
def the_outcomes_of_a_series_come_after_later_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_now = ddl_process.ModelIntentStore.begin_now

    def without_outcomes(self: ddl_process.ModelIntentStore, *intents: Intent, ended: object = ()) -> None:
        begin_now(self, *intents)

    monkeypatch.setattr(ddl_process.ModelIntentStore, "begin_now", without_outcomes)


@BUGS.add("D1", first=8, **(IN_SERIES | {"kill_gates": (), "has_slow_host": True, "fault_rate": 0.08}))
def a_series_goes_on_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: runner.StatementRunner) -> None:
        return None

    monkeypatch.setattr(runner.StatementRunner, "_series_is_over", at_once)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUGS))
def test_this_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name].patch(monkeypatch)
    symptoms: dict[type[Exception], str] = {SimulationStuck: "D5"}  # it runs on and on and reaches no outcome
    search(BUGS[name], simulate, Scenario.of_seed, symptoms=symptoms)
