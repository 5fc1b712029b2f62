"""A ledger with one migration, for tests of what reads it."""

from __future__ import annotations

from engine.ddl.outcome import HostOutcome, HostState
from engine.migrations.files import Direction
from engine.migrations.ledger import Ledger
from engine.migrations.ledger_writer import Attempt
from engine.migrations.states import Event
from tests.unit.operations.support import CLUSTER


def write_ledger(path, env, states, *, cluster=CLUSTER, table="d.t", direction=Direction.UP):
    """One migration of one statement that adds a column; `states` by host."""
    writer = Ledger(path, env=env).writer(cluster, run_id="run", fence=1)
    Ledger(path, env=env).register_fence(cluster, 1, run_id="run", holder="tester")
    writer.record_run(direction=Direction.UP, target=None, requested_by="tester", approved_by="")
    writer.record_event(
        Event.STARTED,
        version=5,
        title="add_b",
        direction=direction,
        generation=1,
        statements=1,
        file_checksum="f",
        done_by="tester",
    )
    writer.record_attempt(
        Attempt(
            token=f"t-{cluster}",
            version=5,
            title="add_b",
            direction=direction,
            generation=1,
            statement=1,
            attempt=1,
            line=1,
            statement_checksum="s",
            file_checksum="f",
            sql=f"ALTER TABLE {table} ON CLUSTER c ADD COLUMN b String",
            hosts=tuple(states),
        )
    )
    writer.record_submission(f"t-{cluster}", entry="query-0000000007", outcome="enqueued")
    writer.record_outcomes(
        f"t-{cluster}",
        [
            HostOutcome(
                host, HostState(state), *((243, "no space") if state == "failed" else (0, "")), 1, 2, 1
            )
            for host, state in states.items()
        ],
    )
