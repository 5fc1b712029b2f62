"""The distributed DDL queue (ON CLUSTER): ClickHouse's entries, an initiator, a worker and a cleaner.

Submit and watch: `prepare`, `DDLQueueClient`. Execute: `DDLWorker` with a `LocalExecutor` and an `IntentStore`.
Remove: `DDLCleaner`. What it all promises stands in `docs/concepts/ddl-queue.md`.
"""

from engine.ddl.client import DDLQueueClient, Submission, SubmitOutcome
from engine.ddl.entry import DDLLogEntry
from engine.ddl.executor import Blocks, FencedExecutor, FenceLost, Fingerprint, LocalExecutor
from engine.ddl.identity import FixedResolver, NodeIdentity, Resolver, SystemResolver
from engine.ddl.initiator import PreparedStatement, prepare, token_of, without_token
from engine.ddl.intents import Intent, IntentKey, IntentStore, SqliteIntentStore
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState, ShardOutcome
from engine.ddl.queue_table import QUEUE_COLUMNS, QueueRow
from engine.ddl.status import ExecutionStatus
from engine.ddl.worker import DDLWorker

__all__ = [
    "QUEUE_COLUMNS",
    "Blocks",
    "DDLLogEntry",
    "DDLQueueClient",
    "DDLWorker",
    "EntryStatus",
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
    "PreparedStatement",
    "QueueRow",
    "Resolver",
    "ShardOutcome",
    "SqliteIntentStore",
    "Submission",
    "SubmitOutcome",
    "SystemResolver",
    "prepare",
    "token_of",
    "without_token",
]
