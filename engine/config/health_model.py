"""What counts as unhealthy, as values. Reading them from a configuration is `engine.config.health`.

A limit is the largest value that is still fine; None switches the check off. The defaults are what operators
of ClickHouse alert on. Source: ClickHouse's documentation of system.replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from engine.names import TableName

DAY_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class TableLimits:
    """What holds for one replicated table.

    - `readonly_s`: a replica may be read-only for so long, after a restart say.
    - `log_lag`: log_max_index − log_pointer of `system.replicas`.
    - `min_replicas`: fewer than so many registered replicas are a finding.
    - `queue_tries`, `queue_age_s`: an entry that has an exception is stuck when it was tried more often or is
      older; `queue_wait_s`: one that has none is stuck when it is older.
    - `mutation_fail_s`, `mutation_age_s`: a mutation that fails, and one that does not, is stuck when older.
    """

    readonly_s: int | None = 10
    future_parts: int | None = 20
    parts_to_check: int | None = 10
    queue_size: int | None = 20
    inserts_in_queue: int | None = 10
    log_lag: int | None = 10
    absolute_delay_s: int | None = 300
    min_replicas: int | None = 2
    queue_tries: int | None = 10
    queue_age_s: int | None = 600
    queue_wait_s: int | None = 3600
    mutation_fail_s: int | None = 300
    mutation_age_s: int | None = 3600


@dataclass(frozen=True, slots=True)
class TableOverride:
    """Other limits for the tables whose `database.table` fits `pattern` (`*`, `?`, `[…]`)."""

    pattern: str
    limits: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """The section `oncluster/health`.

    - `keeper_latency_ms`: one round trip to Keeper; `keeper_outstanding`: requests that wait in a server;
      `keeper_znodes`: nodes of the tree.
    - `disk_free_percent` and `disk_critical_percent`: less free space is a warning, and critical.
    - `clock_skew_ms`: between a host and Keeper.
    - `ddl_age_s`: an entry of the DDL queue may wait for a host for so long.
    - `spool_files`: files of one Distributed table that wait to be sent to one place; `spool_errors`: how
      often they could not be sent, of which servers forget half every five minutes.
    - `samples_keep_s`: how long figures are kept for trends.
    - `repair_limit`: repairs of one run; `repair_wait_s`: how long one repair may take to show its effect.
    """

    limits: TableLimits = field(default_factory=TableLimits)
    overrides: Sequence[TableOverride] = ()
    keeper_latency_ms: int | None = 200
    keeper_outstanding: int | None = 1000
    keeper_znodes: int | None = 1_000_000
    disk_free_percent: int | None = 15
    disk_critical_percent: int | None = 5
    clock_skew_ms: int | None = 1000
    ddl_age_s: int | None = 300
    spool_files: int | None = 1000
    spool_errors: int | None = 8
    samples_keep_s: int = 14 * DAY_S
    repair_limit: int = 10
    repair_wait_s: int = 120

    def of(self, table: TableName) -> TableLimits:
        """The limits of one table: the common ones, changed by every override that fits, in their order."""
        limits = self.limits
        for override in self.overrides:
            if fnmatchcase(str(table), override.pattern):
                limits = replace(limits, **override.limits)
        return limits
