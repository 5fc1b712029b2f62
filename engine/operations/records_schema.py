"""The tables in which operations keep what they did and saw. They stand beside the ledger's, by default in
the same database.

    oncluster_operation_runs     one row per run of an operation with its plan; never changed
    oncluster_act_events         what became of each act, one row per change of state
    oncluster_findings           one row per trouble, from when it was first seen until it was gone
    oncluster_samples            figures over time, pruned by age
    oncluster_alerts             what people were told of, and when last
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

_Id = BigInteger().with_variant(Integer, "sqlite")

operation_runs = Table(
    "oncluster_operation_runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("plan_checksum", String(32), nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("oncluster_operation_runs_by_cluster", "cluster", "operation", "at_ms"),
)

act_events = Table(
    "oncluster_act_events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", Text, nullable=False),
    Column("act_id", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("operator", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("oncluster_act_events_by_run", "run_id", "act_id", "id"),
)

findings = Table(
    "oncluster_findings",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fingerprint", String(32), nullable=False),
    Column("cluster", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("severity", Integer, nullable=False),
    Column("finding", Text, nullable=False),
    Column("first_seen_ms", BigInteger, nullable=False),
    Column("last_seen_ms", BigInteger, nullable=False),
    Column("resolved_ms", BigInteger),
    Index("oncluster_findings_open", "cluster", "scope", "resolved_ms"),
    Index("oncluster_findings_by_fingerprint", "fingerprint", "resolved_ms"),
)

samples = Table(
    "oncluster_samples",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
    Index("oncluster_samples_by_time", "at_ms"),
)

alerts = Table(
    "oncluster_alerts",
    metadata,
    Column("fingerprint", String(32), primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("first_sent_ms", BigInteger, nullable=False),
    Column("last_sent_ms", BigInteger, nullable=False),
    Column("times_sent", Integer, nullable=False),
)
