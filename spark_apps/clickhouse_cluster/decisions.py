"""What a job has decided, and what a stream has written, where every driver of it finds that.

The first plan that is recorded is the job's, whoever proposed it; everybody else carries it out. Where the
table's servers can share such a record, its replicas do (`shared_decisions`). Elsewhere it stands on one
replica, the first of the first shard, as a view whose text is the plan: CREATE VIEW is atomic, carries its
content, and fails when the view is there, on every server there is.

    decided_<job>       which attempts won, with how many rows for each shard
    done_<job>          everything of it is in the table
"""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass
from typing import Protocol

from engine.errors import Code, ReplyLost, SqlError
from engine.names import TableName, quote_string
from spark_apps.clickhouse_cluster import records, staging
from spark_apps.clickhouse_cluster.content import Content
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.records import Plan


class Progress(enum.Enum):
    """How far a job got."""

    NOTHING = "nothing"
    DECIDED = "decided"
    DONE = "done"


class Decisions(Protocol):
    """Raises NodeUnavailable, ReplyLost or Unavailable where nobody can tell."""

    @property
    def server(self) -> Server | None:
        """Who has them, if it is one server only; that one has staged the first shard's rows, too."""

    def is_there(self) -> bool:
        """Whether anything was ever recorded there."""

    def decide(self, plan: Plan) -> Plan:
        """Make this the job's plan, or learn which one is."""

    def progress(self, job: str) -> tuple[Progress, Plan | None]:
        """How far the job got, and the plan that was decided, if any."""

    def record_done(self, job: str) -> None:
        """Everything of it is in the table."""

    def forget(self, job: str) -> None:
        """Drop the records of a job that is done and that nobody will repeat."""

    def done_of(self, jobs: frozenset[str]) -> frozenset[str]:
        """Those of these jobs that are done."""

    def record_batch(self, stream: str, batch: int, content: Content) -> None:
        """A stream's batch is done."""

    def last_batch(self, stream: str) -> int:
        """The greatest number of a batch that is recorded; -1 if there is none."""

    def content_of_batch(self, stream: str, batch: int) -> Content | None:
        """As it was recorded the last time, if it was."""


@dataclass(frozen=True, slots=True)
class OnOneServer:
    """Views on `server`, and batches in its ledger."""

    server: Server

    def is_there(self) -> bool:
        return True

    def decide(self, plan: Plan) -> Plan:
        """A statement whose reply was lost may be carried out at any time, also when the job has been given
        up and its staging is gone. So it is sent again: whichever of both comes first decides, and the other
        one fails. Raises ReplyLost when all replies are lost.
        """
        view = TableName(staging.DATABASE, f"decided_{plan.job}")
        sql = f"CREATE VIEW {view.quoted} AS SELECT {quote_string(plan.to_json())} AS plan"
        for last in (False, False, True):
            try:
                # A plan of some thousand tasks is longer than a server reads unasked.
                self.server.execute(sql, settings={"max_query_size": str(4 * len(sql))})
                return plan
            except ReplyLost:
                if last:
                    raise
            except SqlError as error:
                is_there = error.code == Code.TABLE_ALREADY_EXISTS
                found = self.progress(plan.job)[1] if is_there else None
                if found is None:
                    raise
                return found
        raise AssertionError

    def progress(self, job: str) -> tuple[Progress, Plan | None]:
        decided = f"decided_{job}"
        names = staging.tables(self.server, f"d%{job}")
        if decided not in names:
            return Progress.NOTHING, None
        rows = self.server.rows(f"SELECT plan FROM {TableName(staging.DATABASE, decided).quoted}")
        plan = Plan.from_json(rows[0]["plan"])
        return Progress.DONE if f"done_{job}" in names else Progress.DECIDED, plan

    def record_done(self, job: str) -> None:
        view = TableName(staging.DATABASE, f"done_{job}")
        try:
            self.server.execute(f"CREATE VIEW {view.quoted} AS SELECT toUInt64({int(time.time())}) AS at")
        except SqlError as error:
            if error.code != Code.TABLE_ALREADY_EXISTS:
                raise

    def forget(self, job: str) -> None:
        records.forget(self.server, job)

    def done_of(self, jobs: frozenset[str]) -> frozenset[str]:
        done = {name.removeprefix("done_") for name in staging.tables(self.server, "done_%")}
        return jobs & done

    def record_batch(self, stream: str, batch: int, content: Content) -> None:
        records.record(self.server, stream, records.Event.BATCH, {str(batch): asdict(content)})

    def last_batch(self, stream: str) -> int:
        return records.last_batch(self.server, stream)

    def content_of_batch(self, stream: str, batch: int) -> Content | None:
        return records.content_of_batch(self.server, stream, batch)
