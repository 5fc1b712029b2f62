"""What a statement's settings say about insertion into, and waiting for, other replicas.

Settings hold in this order: the statement's own, the request's, the session's (with the user's profile).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.node.replicated.text_settings import settings_of_text
from engine.node.statement import Asked
from engine.replication.commands.waiting import Sync
from engine.setting_values import number_of

_ALTER_SYNC = ("alter_sync", "replication_alter_partitions_sync")


def settings_of(asked: Asked) -> Mapping[str, str]:
    """What holds for this statement, strings without their quotes."""
    return {**asked.session.settings, **asked.settings, **settings_of_text(asked.sql)}


def number(settings: Mapping[str, str], name: str, default: float) -> float:
    """Raises SqlError 36 for a value that is no number."""
    text = settings.get(name)
    if text is None:
        return default
    try:
        return number_of(text)
    except ValueError:
        raise SqlError(Code.BAD_ARGUMENTS, f"Setting {name} = '{text}' is not a number.") from None


def flag(settings: Mapping[str, str], name: str, default: bool) -> bool:
    return number(settings, name, float(default)) != 0


def sync_of(asked: Asked) -> Sync:
    """`alter_sync`, by default one's own replica."""
    settings = settings_of(asked)
    name = next((name for name in _ALTER_SYNC if name in settings), _ALTER_SYNC[0])
    value = int(number(settings, name, 1))
    return {0: Sync.NONE, 1: Sync.OWN}.get(value, Sync.ALL)


def wait_for_inactive_s(asked: Asked) -> float:
    """`replication_wait_for_inactive_replica_timeout`: 0 does not wait, less waits for ever."""
    return number(settings_of(asked), "replication_wait_for_inactive_replica_timeout", 120.0)
