"""The distributed DDL queue (ON CLUSTER): ClickHouse's entries, an initiator, a worker and a cleaner.

Submit and watch: `prepare`, `DDLQueueClient`. Execute: `DDLWorker` with a `LocalExecutor` and an
`IntentStore`. Remove: `DDLCleaner`. What it all promises stands in `docs/concepts/ddl-queue.md`.
"""

from engine.ddl.cleaner import CleanedEntry, CleanReport, DDLCleaner, Reason, Removal
from engine.ddl.client import DDLQueueClient, Submission, SubmitOutcome
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Blocks, Execution, FencedExecutor, FenceLost, Fingerprint, LocalExecutor
from engine.ddl.identity import FixedResolver, NodeIdentity, Resolver, SystemResolver
from engine.ddl.initiator import PreparedStatement, prepare, token_of, without_token
from engine.ddl.intents import Intent, IntentKey, IntentStore, SqliteIntentStore
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState, ShardOutcome
from engine.ddl.output import DEFAULT_TIMEOUT_S, OutputMode, OutputRow, output_columns, result_stream
from engine.ddl.own_sessions import OwnSessions
from engine.ddl.queue_table import QUEUE_COLUMNS, QueueRow
from engine.ddl.status import ExecutionStatus
from engine.ddl.worker import DDLWorker

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "QUEUE_COLUMNS",
    "Blocks",
    "CleanReport",
    "CleanedEntry",
    "DDLCleaner",
    "DDLLogEntry",
    "DDLQueueClient",
    "DDLWorker",
    "EntryStatus",
    "Execution",
    "ExecutionStatus",
    "FenceLost",
    "FencedExecutor",
    "Fingerprint",
    "FixedResolver",
    "HostOutcome",
    "HostState",
    "Intent",
    "IntentKey",
    "IntentStore",
    "LocalExecutor",
    "NodeIdentity",
    "OutputMode",
    "OutputRow",
    "OwnSessions",
    "PreparedStatement",
    "QueueRow",
    "Reason",
    "Removal",
    "Resolver",
    "ShardOutcome",
    "SqliteIntentStore",
    "Submission",
    "SubmitOutcome",
    "SystemResolver",
    "output_columns",
    "prepare",
    "result_stream",
    "token_of",
    "without_token",
]
