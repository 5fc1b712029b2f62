"""The figures that a check keeps for trends.

Figures of a host are kept each time. Those of a table are kept only when they are not 0: thousands of tables
are quiet most of the time, and a time at which the host was looked at and the table has no figure means 0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from engine.operations.health.check_replicas import log_lag
from engine.operations.health.facts import ClusterFacts, HostFacts
from engine.operations.records import Sample


class Metric(enum.StrEnum):
    """What is kept. Units stand in the names; without one it is a number of things."""

    TABLES = "tables"
    READ_ONLY_TABLES = "read_only_tables"
    QUEUE_SIZE = "queue_size"
    LOG_LAG = "log_lag"
    ABSOLUTE_DELAY_S = "absolute_delay_s"
    PARTS_TO_CHECK = "parts_to_check"
    SPOOL_FILES = "spool_files"
    SPOOL_BYTES = "spool_bytes"
    DISK_FREE_BYTES = "disk_free_bytes"
    CLOCK_SKEW_MS = "clock_skew_ms"
    KEEPER_LATENCY_MS = "keeper_latency_ms"
    KEEPER_ZNODES = "keeper_znodes"
    WAITING_DDL = "waiting_ddl_entries"

    @property
    def is_of_tables(self) -> bool:
        return self in (Metric.QUEUE_SIZE, Metric.LOG_LAG, Metric.ABSOLUTE_DELAY_S)


def samples_of(facts: ClusterFacts) -> Iterator[Sample]:
    """All figures of one look, of the moment of the look. A delay "since 1970" (never copied) is left out."""
    if facts.keeper.is_answering:
        yield Sample(Metric.KEEPER_LATENCY_MS, facts.keeper.latency_ms, at_ms=facts.now_ms)
        yield Sample(Metric.WAITING_DDL, len(facts.ddl), at_ms=facts.now_ms)
    for server in facts.keeper.servers:
        if "znodes" in server.figures:
            yield Sample(Metric.KEEPER_ZNODES, server.figures["znodes"], server.address, at_ms=facts.now_ms)
    for host in facts.hosts.values():
        if host.is_answering:
            yield from _of_host(facts, host)


def _of_host(facts: ClusterFacts, host: HostFacts) -> Iterator[Sample]:
    name, at_ms = host.host.readable, facts.now_ms
    largest = dict.fromkeys((Metric.QUEUE_SIZE, Metric.LOG_LAG, Metric.ABSOLUTE_DELAY_S), 0.0)
    for replica in host.replicas:
        delay_s = replica.absolute_delay_s
        figures: dict[Metric, float] = {
            Metric.QUEUE_SIZE: replica.queue_size,
            Metric.LOG_LAG: log_lag(facts, replica),
            Metric.ABSOLUTE_DELAY_S: 0 if delay_s > facts.now_ms / 2000 else delay_s,
        }
        for metric, value in figures.items():
            largest[metric] = max(largest[metric], value)
            if value:
                yield Sample(metric, value, name, str(replica.table), at_ms)
    totals: dict[Metric, float] = {
        **largest,
        Metric.TABLES: len(host.replicas),
        Metric.READ_ONLY_TABLES: sum(replica.is_readonly for replica in host.replicas),
        Metric.PARTS_TO_CHECK: sum(replica.parts_to_check for replica in host.replicas),
        Metric.SPOOL_FILES: sum(spool.files for spool in host.spools),
        Metric.SPOOL_BYTES: sum(spool.size_bytes for spool in host.spools),
    }
    for metric, value in totals.items():
        yield Sample(metric, value, name, "", at_ms)
    for disk in host.disks:
        yield Sample(Metric.DISK_FREE_BYTES, disk.free_bytes, name, disk.name, at_ms)
    if host.clock is not None:
        keeper = facts.keeper.clock
        skew_ms = host.clock.offset_ms - (keeper.offset_ms if keeper else 0)
        yield Sample(Metric.CLOCK_SKEW_MS, skew_ms, name, "", at_ms)
