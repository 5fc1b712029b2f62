"""Checks of Keeper: whether it answers, how fast, and how much it holds."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.health_model import HealthSettings
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, Gap
from engine.operations.health.making import finding
from engine.wording import listed, shortened


def check_keeper(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """KEEPER_DOWN, KEEPER_SLOW, KEEPER_FULL, NOT_CHECKED."""
    keeper = facts.keeper
    silent = [server.address for server in keeper.servers if not server.is_answering]
    if not keeper.is_answering and not keeper.takes_no_writes:
        yield finding(
            facts,
            FindingKind.KEEPER_DOWN,
            Severity.CRITICAL,
            f"Keeper does not answer: {shortened(keeper.error)}",
            "Bring back a majority of its servers. Tables are read-only and ON CLUSTER waits until then; "
            "everything goes on by itself. Repair nothing before.",
            silent_servers=len(silent),
        )
    elif silent:
        yield finding(
            facts,
            FindingKind.KEEPER_DOWN,
            Severity.WARNING,
            f"{len(silent)} of {len(keeper.servers)} Keeper servers do not answer: {listed(silent)}.",
            "Start them again while a majority is still there.",
            silent_servers=len(silent),
        )
    if keeper.takes_no_writes:
        yield finding(
            facts,
            FindingKind.KEEPER_FULL,
            Severity.CRITICAL,
            f"Keeper takes no writes: {shortened(keeper.takes_no_writes)}",
            "Raise its quota (setquota; of etcd: compact, defragment, disarm its alarm), then make room. "
            "Until then inserts and ON CLUSTER are refused, and what is begun waits; it goes on by itself.",
        )
    yield from _speed(facts, settings)
    most = max((server.figures.get("znodes", 0) for server in keeper.servers), default=0)
    if settings.keeper_znodes is not None and most > settings.keeper_znodes:
        yield finding(
            facts,
            FindingKind.KEEPER_FULL,
            Severity.WARNING,
            f"Keeper holds {most:.0f} nodes; it keeps all of them in memory.",
            "Clean the DDL queue and orphaned replicas (`oncluster cleanup`); have fewer and larger parts.",
            znodes=int(most),
        )
    for gap in keeper.not_said:
        if gap.gap is Gap.DENIED:
            yield finding(
                facts,
                FindingKind.NOT_CHECKED,
                Severity.WARNING,
                f"{gap.what} is not known: {shortened(gap.why)}",
                f"Permit {gap.grant} to the identity of <zookeeper>.",
                subject=gap.what,
            )


def _speed(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    keeper = facts.keeper
    latency = settings.keeper_latency_ms
    if latency is not None and keeper.latency_ms > latency:
        yield finding(
            facts,
            FindingKind.KEEPER_SLOW,
            Severity.WARNING,
            f"A round trip to Keeper takes {keeper.latency_ms:.0f} ms.",
            "Look at its disks (the log wants one of its own), its garbage collection and the network.",
            latency_ms=round(keeper.latency_ms, 1),
        )
    for server in keeper.servers:
        average, waiting = server.figures.get("latency_avg_ms", 0), server.figures.get("outstanding", 0)
        is_slow = latency is not None and average > latency
        is_behind = settings.keeper_outstanding is not None and waiting > settings.keeper_outstanding
        if is_slow or is_behind:
            yield finding(
                facts,
                FindingKind.KEEPER_SLOW,
                Severity.WARNING,
                f"Keeper server {server.address} answers after {average:.0f} ms on average, and "
                f"{waiting:.0f} requests wait in it.",
                "Look at its disks (the log wants one of its own), its garbage collection and the network.",
                subject=server.address,
                latency_ms=average,
                outstanding=int(waiting),
            )
