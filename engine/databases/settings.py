"""Settings of a Replicated database's engine clause.

Source: ClickHouse's DatabaseReplicatedSettings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.setting_values import number_of, whole_number_of

_IGNORED = frozenset(
    {
        "collection_name",
        "cluster_username",
        "cluster_password",
        "cluster_secure_connection",
        "default_replica_path",
        "default_replica_shard_name",
        "default_replica_name",
        "allow_skipping_old_temporary_tables_ddls_of_refreshable_materialized_views",
    }
)
"""Known to ClickHouse; how a node logs in at others is the configuration's affair."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Defaults are ClickHouse 26's."""

    max_broken_tables_ratio: float = 1.0
    max_replication_lag_to_enqueue: int = 50
    wait_entry_commited_timeout_sec: int = 3600
    check_consistency: bool = True
    max_retries_before_automatic_recovery: int = 10
    logs_to_keep: int = 1000

    @classmethod
    def of(cls, given: Mapping[str, str]) -> DatabaseSettings:
        """Raises SqlError 115 for a name that is none, 36 for a value that cannot be."""
        defaults = cls()
        known = {name: getattr(defaults, name) for name in cls.__slots__}
        values: dict[str, object] = {}
        for name, text in given.items():
            if name in _IGNORED:
                continue
            if name not in known:
                raise SqlError(
                    Code.UNKNOWN_SETTING,
                    f"Unknown setting '{name}': for database Replicated",
                    hint=f"Settings: {', '.join(sorted({*known, *_IGNORED}))}.",
                )
            values[name] = _value(name, text, known[name])
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.logs_to_keep < 1:
            raise SqlError(Code.BAD_ARGUMENTS, "Setting logs_to_keep of a Replicated database cannot be 0")
        if not settings.max_broken_tables_ratio >= 0:
            raise SqlError(Code.BAD_ARGUMENTS, "Setting max_broken_tables_ratio cannot be negative")
        return settings


def _value(name: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return bool(whole_number_of(text))
        if isinstance(default, int):
            number = whole_number_of(text)
            if number < 0:
                raise ValueError(text)
            return number
        return float(number_of(text))
    except ValueError:
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Setting {name} = '{text}' of a Replicated database is not a number"
        ) from None
