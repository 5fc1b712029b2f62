"""The pure decisions of a run: which migrations, what a statement's hosts mean, which token, what is
planned."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine.cli.main import cli
from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.initiator import check_token
from engine.ddl.output import OutputMode
from engine.migrations.errors import ApprovalRequired, MigrationRefused
from engine.migrations.files import Direction, MigrationSet, load_folder
from engine.migrations.model import Run, RunRequest, Step
from engine.migrations.plan import Action, Facts, Presence, TableFacts
from engine.migrations.plan_building import build_plan
from engine.migrations.preflight import preflight
from engine.migrations.selection import Leniency, select
from engine.migrations.statements import Surroundings
from engine.migrations.states import CellState, LedgerRow, MigrationRecord, MigrationState, open_state
from engine.migrations.tokens import token_for
from engine.migrations.verdict import Patience, Verdict, judge
from engine.migrations.where import Where
from engine.names import HostId, TableName

HOSTS = tuple(HostId(f"n{number}", 9000) for number in range(1, 5))


def row(state: CellState, host: HostId = HOSTS[0], *, statement: int = 1, attempt: int = 1) -> LedgerRow:
    return LedgerRow(
        version=1,
        title="t",
        direction=Direction.UP,
        generation=1,
        statement=statement,
        host=host,
        state=state,
        code=0,
        error="",
        started_ms=None,
        finished_ms=None,
        duration_ms=None,
        attempt=attempt,
        token="k",
        entry="query-1",
        submission="enqueued",
        line=1,
        sql="",
        statement_checksum="s",
        file_checksum="f",
        run_id="r",
        recorded_ms=0,
        observed_ms=None,
    )


def rows(*states: CellState) -> list[LedgerRow]:
    return [row(state, HOSTS[number]) for number, state in enumerate(states)]


DONE, FAILED, RUNNING, WAITING, INACTIVE, EXPIRED = (
    CellState.DONE,
    CellState.FAILED,
    CellState.RUNNING,
    CellState.WAITING,
    CellState.INACTIVE,
    CellState.EXPIRED,
)


# --- verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "mode", "is_time_over", "verdict"),
    [
        ((DONE, DONE), "throw", False, Verdict.DONE),
        ((DONE, RUNNING), "throw", False, Verdict.WAIT),
        ((DONE, RUNNING), "throw", True, Verdict.UNFINISHED),
        ((DONE, INACTIVE), "throw", False, Verdict.WAIT),
        ((DONE, INACTIVE), "none", True, Verdict.UNFINISHED),
        ((DONE, INACTIVE), "throw_only_active", False, Verdict.PARTIAL),
        ((DONE, INACTIVE), "none_only_active", False, Verdict.PARTIAL),
        ((DONE, INACTIVE, WAITING), "none_only_active", False, Verdict.WAIT),
        ((INACTIVE, INACTIVE), "none_only_active", False, Verdict.WAIT),
        ((INACTIVE, INACTIVE), "none_only_active", True, Verdict.UNFINISHED),
        ((DONE, RUNNING), "null_status_on_timeout", True, Verdict.PARTIAL),
        ((DONE, RUNNING), "never_throw", True, Verdict.PARTIAL),
        ((DONE, RUNNING), "throw_only_active", True, Verdict.UNFINISHED),
        ((DONE, FAILED), "throw", False, Verdict.FAILED),
        ((DONE, FAILED), "never_throw", False, Verdict.FAILED),
        ((RUNNING, FAILED), "throw", False, Verdict.WAIT),
        ((RUNNING, FAILED), "throw", True, Verdict.FAILED),
        ((INACTIVE, FAILED), "throw", False, Verdict.FAILED),
        ((DONE, EXPIRED), "throw", False, Verdict.FAILED),
    ],
)
def test_a_statement_s_states_and_its_mode_decide_whether_the_run_goes_on(
    states: tuple[CellState, ...], mode: str, is_time_over: bool, verdict: Verdict
) -> None:
    patience = Patience(timeout_s=60, output_mode=OutputMode(mode))
    assert judge(rows(*states), patience, is_time_over=is_time_over) is verdict


@given(
    st.lists(st.sampled_from(list(CellState)), min_size=1, max_size=4),
    st.sampled_from(list(OutputMode)),
    st.integers(-1, 300),
)
def test_a_verdict_never_calls_done_what_is_not_and_never_goes_on_over_a_failure(
    states: list[CellState], mode: OutputMode, timeout_s: int
) -> None:
    for is_time_over in (False, True):
        verdict = judge(rows(*states), Patience(timeout_s, mode), is_time_over=is_time_over)
        assert (verdict is Verdict.DONE) == all(state is DONE for state in states)
        if any(state.is_failure for state in states):
            assert not verdict.goes_on
        if is_time_over:
            assert verdict is not Verdict.WAIT


def test_an_open_migration_is_waiting_only_when_all_was_sent_and_only_absent_hosts_are_missing() -> None:
    assert open_state(rows(DONE, INACTIVE), statements=1) is MigrationState.WAITING
    assert open_state(rows(DONE, INACTIVE), statements=2) is MigrationState.RUNNING
    assert open_state(rows(DONE, WAITING), statements=1) is MigrationState.RUNNING
    assert open_state(rows(DONE, DONE), statements=1) is MigrationState.RUNNING
    assert open_state(rows(EXPIRED, INACTIVE), statements=1) is MigrationState.FAILED


# --- tokens -----------------------------------------------------------------------------------------------


@given(
    cluster=st.text(min_size=1, max_size=300),
    version=st.integers(0, 2**64 - 1),
    numbers=st.tuples(*(st.integers(1, 10**6),) * 3),
)
def test_every_token_can_stand_in_the_queue(cluster: str, version: int, numbers: tuple[int, ...]) -> None:
    generation, statement, attempt = numbers
    token = token_for(
        ledger_id="0123456789abcdef",
        cluster=cluster,
        version=version,
        direction=Direction.DOWN,
        generation=generation,
        statement=statement,
        attempt=attempt,
        checksum="f" * 64,
    )
    assert check_token(token) == token


def test_a_token_changes_with_everything_that_makes_it_another_submission() -> None:
    base: dict[str, Any] = {
        "ledger_id": "0123456789abcdef",
        "cluster": "c",
        "version": 1,
        "direction": Direction.UP,
        "generation": 1,
        "statement": 1,
        "attempt": 1,
        "checksum": "a" * 64,
    }
    others = {
        "ledger_id": "fedcba9876543210",
        "cluster": "d",
        "version": 2,
        "direction": Direction.DOWN,
        "generation": 2,
        "statement": 2,
        "attempt": 2,
        "checksum": "b" * 64,
    }
    tokens = {token_for(**base)}
    tokens |= {token_for(**{**base, name: value}) for name, value in others.items()}
    assert len(tokens) == 1 + len(others)


# --- what travels -----------------------------------------------------------------------------------------


@given(
    st.builds(
        RunRequest,
        run_id=st.text(),
        direction=st.sampled_from(Direction),
        target=st.none() | st.integers(-1, 2**64 - 1),
        approved_by=st.text(),
        timeout_s=st.integers(),
        output_mode=st.sampled_from(OutputMode),
        entry_version=st.none() | st.integers(1, 8),
        leniency=st.builds(Leniency, st.booleans(), st.booleans(), st.booleans()),
        adopt_ledger=st.booleans(),
    )
)
def test_a_run_travels_as_json(request: RunRequest) -> None:
    run = Run(request, "c", (Step(2**64 - 1, "t", Direction.DOWN, 3, 2),))
    assert Run.from_json(run.to_json()) == run


# --- plans ------------------------------------------------------------------------------------------------


def migrations(tmp_path: Path, files: dict[str, str]) -> MigrationSet:
    folder = tmp_path / "c"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return load_folder(folder)


def surroundings(shards: int = 2) -> Surroundings:
    replicas = [Replica(host.host, host.port) for host in HOSTS]
    size = len(replicas) // shards
    cluster = Cluster(
        "c", tuple(Shard(n + 1, tuple(replicas[n * size : (n + 1) * size])) for n in range(shards))
    )
    return Surroundings("c", Topology({"c": cluster}), DistributedDdl())


PLANNED = {
    "1_a.up.sql": "CREATE TABLE IF NOT EXISTS d.r (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a;\n"
    "CREATE TABLE IF NOT EXISTS d.m (a Int8) ENGINE = MergeTree ORDER BY a;\n",
    "2_b.up.sql": "ALTER TABLE d.r ADD COLUMN IF NOT EXISTS b Int8;\nALTER TABLE d.m UPDATE a = 1 WHERE 1;\n"
    "ALTER TABLE d.elsewhere MODIFY COLUMN a Int64;\nDROP TABLE IF EXISTS d.m;\n",
    "3_c.up.sql": "CREATE USER IF NOT EXISTS u IDENTIFIED BY 'hunter2';",
}


def test_a_plan_says_per_statement_where_it_runs_and_what_it_costs(tmp_path: Path) -> None:
    found = migrations(tmp_path, PLANNED)
    request = RunRequest("r")
    size = TableFacts("MergeTree", 1000, 5_000_000)
    facts = Facts(
        presence={HOSTS[0]: Presence.ACTIVE, HOSTS[1]: Presence.INACTIVE},
        backlog={HOSTS[1]: 7},
        tables={(HOSTS[0], TableName("d", "m")): size},
    )
    plan = build_plan(
        found, select(found, {}, direction=Direction.UP, target=None), request, surroundings(), facts
    )
    where = [statement.where for statement in plan.statements]
    assert where == [
        Where.EVERY_HOST,
        Where.EVERY_HOST,
        Where.ONCE_PER_SHARD,
        Where.EVERY_HOST,
        Where.ONCE_PER_SHARD_IF_REPLICATED,
        Where.EVERY_HOST,
        Where.EVERY_HOST,
    ]
    assert [s.rewrites_data for s in plan.statements] == [False, False, False, True, True, False, False]
    assert [s.is_destructive for s in plan.statements][-2:] == [True, False]
    assert plan.needs_approval
    assert plan.inactive_hosts == (HOSTS[1],)
    update = plan.statements[3].hosts
    assert [(h.shard, h.presence.value, h.backlog, h.rows) for h in update] == [
        (1, "active", 0, 1000),
        (1, "inactive", 7, None),
        (2, "unknown", 0, None),
        (2, "unknown", 0, None),
    ]
    assert "ON CLUSTER c" in plan.statements[0].sql
    assert "hunter2" not in str(plan.to_json())
    assert plan.problems == ()


def test_a_plan_follows_a_table_without_a_database_through_an_exchange(tmp_path: Path) -> None:
    files = {
        "1_a.up.sql": "CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a;\n"
        "CREATE TABLE n (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a;\n"
        "EXCHANGE TABLES t AND n;\n",
        "2_b.up.sql": "ALTER TABLE t ADD COLUMN b Int8;\nALTER TABLE n ADD COLUMN b Int8;",
    }
    found = migrations(tmp_path, files)
    chosen = select(found, {}, direction=Direction.UP, target=None)
    plan = build_plan(found, chosen, RunRequest("r"), surroundings(), Facts())
    assert [s.where for s in plan.statements[-2:]] == [Where.ONCE_PER_SHARD, Where.EVERY_HOST]


def test_a_plan_lists_what_cannot_be_sent_as_a_problem_with_its_code(tmp_path: Path) -> None:
    found = migrations(tmp_path, {"1_a.up.sql": "\nINSERT INTO d.t VALUES (1)"})
    chosen = select(found, {}, direction=Direction.UP, target=None)
    plan = build_plan(found, chosen, RunRequest("r"), surroundings(), Facts())
    assert [(p.line, p.code) for p in plan.problems] == [(2, 48)]


def test_a_plan_of_a_failed_migration_shows_what_a_retry_would_send(tmp_path: Path) -> None:
    found = migrations(tmp_path, {"1_a.up.sql": "CREATE DATABASE IF NOT EXISTS d"})
    up = found.migrations[0].up
    assert up is not None
    states = (DONE, FAILED, WAITING, DONE)
    have = tuple(replace(r, statement_checksum=up.statements[0].checksum) for r in rows(*states))
    record = MigrationRecord(1, "a", Direction.UP, 1, MigrationState.FAILED, 1, up.checksum, have)
    request = RunRequest("again", leniency=Leniency(retry_failed=True))
    chosen = select(found, {1: record}, direction=Direction.UP, target=None, leniency=request.leniency)
    plan = build_plan(found, chosen, request, surroundings(), Facts())
    actions = [host.action for host in plan.statements[0].hosts]
    assert actions == [Action.NOTHING, Action.RETRY, Action.WAIT, Action.NOTHING]


@pytest.mark.parametrize(("run_id", "asks"), [("again", True), ("r", False)])
def test_a_retry_needs_approval_where_it_sends_something_and_a_run_does_not_repeat_its_own_failure(
    tmp_path: Path, run_id: str, asks: bool
) -> None:
    """The plan asks for an approval where the run would refuse to begin without one, and only there."""
    found = migrations(tmp_path, {"1_a.up.sql": "DROP TABLE d.t"})
    up = found.migrations[0].up
    assert up is not None
    have = tuple(
        replace(r, statement_checksum=up.statements[0].checksum, run_id="r") for r in rows(DONE, FAILED)
    )
    record = MigrationRecord(1, "a", Direction.UP, 1, MigrationState.FAILED, 1, up.checksum, have)
    request = RunRequest(run_id, leniency=Leniency(retry_failed=True))
    chosen = select(found, {1: record}, direction=Direction.UP, target=None, leniency=request.leniency)
    assert build_plan(found, chosen, request, surroundings(), Facts()).needs_approval is asks
    with pytest.raises(ApprovalRequired) if asks else contextlib.nullcontext():
        preflight(chosen, request, surroundings())


def test_a_plan_sends_nothing_to_a_host_that_joined_after_the_statement_was_sent(tmp_path: Path) -> None:
    found = migrations(tmp_path, {"1_a.up.sql": "CREATE DATABASE IF NOT EXISTS d"})
    up = found.migrations[0].up
    assert up is not None
    have = tuple(replace(r, statement_checksum=up.statements[0].checksum) for r in rows(DONE, WAITING))
    record = MigrationRecord(1, "a", Direction.UP, 1, MigrationState.RUNNING, 1, up.checksum, have)
    chosen = select(found, {1: record}, direction=Direction.UP, target=None)
    plan = build_plan(found, chosen, RunRequest("r"), surroundings(), Facts())
    actions = [host.action for host in plan.statements[0].hosts]
    assert actions == [Action.NOTHING, Action.WAIT, Action.NOTHING, Action.NOTHING]


@pytest.mark.parametrize(
    ("direction", "advice"), [(Direction.UP, "roll it back"), (Direction.DOWN, "IF EXISTS")]
)
def test_who_meets_a_failure_is_told_the_way_out_of_that_direction(
    tmp_path: Path, direction: Direction, advice: str
) -> None:
    found = migrations(
        tmp_path, {"1_a.up.sql": "CREATE DATABASE IF NOT EXISTS d", "1_a.down.sql": "DROP DATABASE d"}
    )
    have = tuple(replace(r, direction=direction) for r in rows(FAILED, FAILED))
    record = MigrationRecord(1, "a", direction, 1, MigrationState.FAILED, 1, "f", have)
    with pytest.raises(MigrationRefused) as refused:
        select(found, {1: record}, direction=direction, target=None)
    assert advice in refused.value.hint


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["7", "done"], "wants --host"),
        (["7", "applied", "--host", "node03:9000"], "wants --host"),
        (["7", "applied", "--statement", "1"], "wants --host"),
        (["7", "done", "--host", "node03"], "is not host:port"),
        (["7", "unapplied", "--and-earlier"], "is for `applied`"),
    ],
)
def test_who_vouches_for_a_host_names_it(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["migrate", "mark", *arguments, "--reason", "by hand"])
    assert result.exit_code == 2
    assert says in result.stderr
