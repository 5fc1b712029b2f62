"""Checks of the DDL queue: entries that wait for a host for too long."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.health_model import HealthSettings
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, WaitingHost
from engine.operations.health.making import finding
from engine.wording import count, duration, listed


def check_ddl(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """STUCK_DDL: one for each entry."""
    if settings.ddl_age_s is None:
        return
    for entry in facts.ddl:
        age_s = (facts.now_ms - entry.created_ms) / 1000
        if age_s <= settings.ddl_age_s:
            continue
        ours = [waiting for waiting in entry.waiting if waiting.host in facts.hosts]
        down = [w for w in ours if not facts.hosts[w.host].is_answering]
        running = [w for w in ours if w.is_running and w not in down]
        idle = [w for w in ours if w not in down and w not in running]
        strangers = [w for w in entry.waiting if w not in ours]
        reasons = (
            (down, "down"),
            (running, "still executing it"),
            (idle, "up and not executing it"),
            (strangers, "not in this cluster"),
        )
        why = "; ".join(f"{_names(hosts)}: {word}" for hosts, word in reasons if hosts)
        yield finding(
            facts,
            FindingKind.STUCK_DDL,
            Severity.CRITICAL if idle else Severity.WARNING,
            f"{entry.entry} waits for {count(len(entry.waiting), 'host')} for {duration(age_s)} ({why}): "
            f"{entry.statement}",
            _advice(bool(down), bool(idle), bool(strangers)),
            subject=entry.entry,
            since_s=entry.created_ms / 1000,
            waiting_hosts=len(entry.waiting),
            down_hosts=len(down),
            running_hosts=len(running),
            idle_hosts=len(idle),
            age_s=round(age_s),
        )


def _advice(has_down: bool, has_idle: bool, has_strangers: bool) -> str:
    if has_idle:
        return (
            "Its worker does not take entries: look into its log for the queue's worker, and restart the "
            "server; a real server's worker stays dead until then. One that takes none after that has "
            "another `distributed_ddl` (path, host name) or `zookeeper` in its configuration."
        )
    if has_down:
        return "Start the host, which then catches up; one that never comes back: `oncluster cleanup`."
    if has_strangers:
        return "Another cluster shares the queue; look at its hosts."
    return "Wait, or look at system.processes of that host; a statement may take long."


def _names(hosts: list[WaitingHost]) -> str:
    return listed(waiting.host.readable for waiting in hosts)
