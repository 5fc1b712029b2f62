"""Checks of hosts: whether they answer and may be asked, their disks, clocks and spools."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.health_model import HealthSettings
from engine.operations.finding import Fact, Finding, FindingKind, Severity
from engine.operations.health.facts import ClusterFacts, Gap, HostFacts, Silence
from engine.operations.health.making import finding
from engine.wording import count, listed, shortened, size

_OF_QUOTAS = "a quota that is used up is so until its interval ends; --user may name another user"


def check_hosts(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """HOST_DOWN, NOT_CHECKED, DISK_FULL, CLOCK_SKEW, BROKEN_SPOOL, SPOOL_BACKLOG."""
    for host in facts.hosts.values():
        if host.silence is not None:
            yield _silent(facts, host, host.silence)
            continue
        yield from _gaps(facts, host)
        yield from _disks(facts, host, settings)
        yield from _clock(facts, host, settings)
        yield from _spools(facts, host, settings)


def _silent(facts: ClusterFacts, host: HostFacts, silence: Silence) -> Finding:
    name = host.host.readable
    evidence: dict[str, Fact] = {"error": shortened(host.error)}
    match silence:
        case Silence.DOWN:
            registered = sum(
                replica.host == host.host and not replica.is_active
                for table in facts.keeper.tables.values()
                for replica in table.replicas.values()
            )
            alone = [
                number
                for number, hosts in facts.shards.items()
                if host.host in hosts and not any(facts.hosts[other].is_answering for other in hosts)
            ]
            return finding(
                facts,
                FindingKind.HOST_DOWN,
                Severity.CRITICAL,
                f"{name} does not answer: {shortened(host.error)}"
                + (f" Shard {listed(map(str, alone))} has no other host that answers." if alone else ""),
                "Start its server, or look at its machine and network. Its replicas catch up by themselves.",
                host=host.host,
                more=evidence,
                inactive_replicas=registered,
            )
        case Silence.REFUSED:
            return finding(
                facts,
                FindingKind.NOT_CHECKED,
                Severity.WARNING,
                f"{name} does not let us in: {shortened(host.error)}",
                "Give --user and ONCLUSTER_PASSWORD of a user that may read the tables of system there.",
                host=host.host,
                more=evidence,
            )
        case Silence.FAILING:
            return finding(
                facts,
                FindingKind.NOT_CHECKED,
                Severity.WARNING,
                f"{name} answers with an error: {shortened(host.error)}",
                f"Remove its cause ({_OF_QUOTAS}), and check again.",
                host=host.host,
                more=evidence,
            )
        case Silence.GARBAGE:
            return finding(
                facts,
                FindingKind.NOT_CHECKED,
                Severity.WARNING,
                f"What answers for {name} is no ClickHouse: {shortened(host.error)}",
                "Compare http_host and http_port of the configuration with where its HTTP interface is.",
                host=host.host,
                more=evidence,
            )


def _gaps(facts: ClusterFacts, host: HostFacts) -> Iterator[Finding]:
    """What is only absent is a note of the report."""
    denied = [gap for gap in host.not_said if gap.gap is Gap.DENIED]
    failed = [gap for gap in host.not_said if gap.gap is Gap.FAILED]
    over_quota = [gap for gap in host.not_said if gap.gap is Gap.OVER_QUOTA]
    if denied:
        grants = listed((f"GRANT {gap.grant} TO the user" for gap in denied), most=10)
        yield finding(
            facts,
            FindingKind.NOT_CHECKED,
            Severity.WARNING,
            f"{host.host.readable} does not show us {listed(gap.what for gap in denied)}: no permission.",
            f"Run there: {grants}.",
            host=host.host,
            subject="permissions",
        )
    if over_quota:
        yield finding(
            facts,
            FindingKind.NOT_CHECKED,
            Severity.WARNING,
            f"{host.host.readable} did not tell us of {listed(gap.what for gap in over_quota)} any more: "
            f"{shortened(over_quota[0].why)}",
            f"Check again as a user with a larger quota ({_OF_QUOTAS}).",
            host=host.host,
            subject="quota",
        )
    for gap in failed:
        yield finding(
            facts,
            FindingKind.NOT_CHECKED,
            Severity.WARNING,
            f"{host.host.readable} gave no usable answer about {gap.what}: {shortened(gap.why)}",
            "Look at its load and its log, and check again.",
            host=host.host,
            subject=gap.what,
        )
    for table in host.unreadable:
        if not table.is_damage:
            yield finding(
                facts,
                FindingKind.NOT_CHECKED,
                Severity.WARNING,
                f"{table.table} on {host.host.readable} was not read to its end: {shortened(table.error)}",
                "Give more time with --patience, or the permission to read it.",
                host=host.host,
                subject=str(table.table),
            )


def _disks(facts: ClusterFacts, host: HostFacts, settings: HealthSettings) -> Iterator[Finding]:
    for disk in host.disks:
        percent = 100 * disk.free_bytes / disk.total_bytes
        critical, low = settings.disk_critical_percent, settings.disk_free_percent
        if critical is not None and percent < critical:
            severity = Severity.CRITICAL
        elif low is not None and percent < low:
            severity = Severity.WARNING
        else:
            continue
        yield finding(
            facts,
            FindingKind.DISK_FULL,
            severity,
            f"Disk {disk.name} of {host.host.readable} ({disk.path}) has {percent:.1f}% free: "
            f"{size(disk.free_bytes)} of {size(disk.total_bytes)}.",
            "Free space: drop old partitions, clean detached parts (`oncluster cleanup`), or add a disk. "
            "Merges need as much as their sources take.",
            host=host.host,
            subject=disk.name,
            free_percent=round(percent, 1),
            free_bytes=disk.free_bytes,
            total_bytes=disk.total_bytes,
        )


def _clock(facts: ClusterFacts, host: HostFacts, settings: HealthSettings) -> Iterator[Finding]:
    """Against Keeper's clock, which all hosts share; against ours where Keeper's is not known."""
    if host.clock is None or settings.clock_skew_ms is None:
        return
    keeper = facts.keeper.clock
    skew_ms = host.clock.offset_ms - (keeper.offset_ms if keeper else 0)
    error_ms = host.clock.error_ms + (keeper.error_ms if keeper else 0)
    if abs(skew_ms) - error_ms <= settings.clock_skew_ms:
        return
    whose = "Keeper's" if keeper else "the one of the machine that checks"
    yield finding(
        facts,
        FindingKind.CLOCK_SKEW,
        Severity.WARNING,
        f"The clock of {host.host.readable} is {abs(skew_ms) / 1000:.1f} s "
        f"{'ahead of' if skew_ms > 0 else 'behind'} {whose} (± {error_ms / 1000:.1f} s).",
        "Synchronise clocks (NTP): ages, delays and TTLs are wrong meanwhile; order and ownership are not.",
        host=host.host,
        skew_ms=round(skew_ms),
        error_ms=round(error_ms),
    )


def _spools(facts: ClusterFacts, host: HostFacts, settings: HealthSettings) -> Iterator[Finding]:
    for spool in host.spools:
        if spool.broken_files:
            yield finding(
                facts,
                FindingKind.BROKEN_SPOOL,
                Severity.CRITICAL,
                f"{spool.broken_files} broken files of {spool.table} lie on {host.host.readable}: rows in "
                "them were accepted and have reached no shard.",
                "Look at the files in broken/ of its directory: read what can be read, insert it again, then "
                "remove them (`oncluster cleanup`).",
                host=host.host,
                subject=spool.data_path,
                database=spool.table.database,
                table=spool.table.table,
                broken_files=spool.broken_files,
            )
        # A sender that is refused tries twice a minute, so that a few files show as errors that stay.
        is_refused = settings.spool_errors is not None and spool.errors >= settings.spool_errors
        is_many = settings.spool_files is not None and spool.files > settings.spool_files
        if is_many or (spool.files and is_refused):
            because = f": {shortened(spool.exception)}" if spool.exception else "."
            blocked = " Sends are stopped." if spool.is_blocked else ""
            yield finding(
                facts,
                FindingKind.SPOOL_BACKLOG,
                Severity.WARNING,
                f"{count(spool.files, 'file waits', 'files wait')} on {host.host.readable} to be sent for "
                f"{spool.table}"
                f"{because}{blocked}",
                "SYSTEM START DISTRIBUTED SENDS when they are stopped; bring back the shard that they are "
                "for when it is away; when the error says that rows do not fit the shard's table any more, "
                "change that table. They are sent by themselves then.",
                host=host.host,
                subject=spool.data_path,
                files=spool.files,
                size_bytes=spool.size_bytes,
                errors=spool.errors,
            )
