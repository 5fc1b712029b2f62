"""What a statement's settings say about waiting for other replicas."""

from __future__ import annotations

from engine.node.statements.asked_settings import number, settings_of
from engine.node.statements.statement import Asked
from engine.replication.commands.waiting import Sync

_ALTER_SYNC = ("alter_sync", "replication_alter_partitions_sync")


def sync_of(asked: Asked) -> Sync:
    """`alter_sync`, by default one's own replica."""
    settings = settings_of(asked)
    name = next((name for name in _ALTER_SYNC if name in settings), _ALTER_SYNC[0])
    value = int(number(settings, name, 1))
    return {0: Sync.NONE, 1: Sync.OWN}.get(value, Sync.ALL)


def wait_for_inactive_s(asked: Asked) -> float:
    """`replication_wait_for_inactive_replica_timeout`: 0 does not wait, less waits for ever."""
    return number(settings_of(asked), "replication_wait_for_inactive_replica_timeout", 120.0)
