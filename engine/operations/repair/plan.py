"""Plans repairs: for each finding the one that fits, in an order in which they may be done, or advice.

It only reads. The plan is bounded: `limit` acts at most; of the replicas of one table one at a time, but for
those that serve nobody and take nothing from each other. What does not fit is said in the notes: after the
run, check and plan again.

Which repair fits:

    session lost, Keeper there                        restart all replicas of the host
    read-only, its parts are not those of Keeper      force_restore_data
    read-only or lost, registered                     restart (a lost one clones then)
    not in Keeper any more                            restore; where the table is gone, the fullest one first
    registered, its host has no such table            drop from Keeper, create, clone
    parts that cannot be read                         check them: the broken ones are fetched again
    entries of the queue fail                         restart: they are tried at once
    a mutation fails                                  kill it
    anything else                                     advice only
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.client import NodeClient
from engine.errors import NoNode, OnclusterError, Refused
from engine.names import HostId, TableName, quote_string
from engine.operations.act import Act, Plan
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.check import HealthReport
from engine.operations.repair.activity import is_kept_active
from engine.operations.repair.create_sql import create_for
from engine.operations.repair.kinds import Peers, Repair
from engine.operations.repair.shard import TableState, state_of
from engine.operations.site import Site
from engine.replication.part_name import PartName
from engine.replication.part_set import ActivePartSet
from engine.replication.paths import TablePaths
from engine.sql import redact

OPERATION = "repair"
_SINCE = {
    Repair.RESTORE_REPLICA: ((21, 7), "SYSTEM RESTORE REPLICA"),
    Repair.REFETCH_PARTS: ((19, 14), "CHECK TABLE of replicated tables"),
    Repair.KILL_MUTATION: ((19, 1), "KILL MUTATION"),
}
"""The first version that has what a repair needs. Source: ClickHouse's changelog."""
_OTHER_COLUMNS = "INCOMPATIBLE_COLUMNS"
"""In what a node says of a replica whose table has other columns than Keeper knows."""
WRONG_PARTS_RATIO = 0.5
"""replicated_max_ratio_of_wrong_parts: above it a server does not activate the replica."""


class AdviceOnly(Refused):
    """No repair fits; the message says why."""


async def plan_repair(
    site: Site, report: HealthReport, *, limit: int | None = None, only: Collection[str] = ()
) -> Plan:
    """Plan repairs of what `report` found; with `only`, of findings whose fingerprints begin so.

    Raises Keeper's errors.
    """
    limit = site.config.health.repair_limit if limit is None else limit
    drafts: list[_Draft] = []
    notes = [
        f"No finding of this look begins with {beginning}: it is over, or misspelt."
        for beginning in only
        if not any(finding.fingerprint.startswith(beginning) for finding in report.findings)
    ]
    findings = [
        finding for finding in report.findings if not only or finding.fingerprint.startswith(tuple(only))
    ]
    for finding in findings:
        if finding.severity is Severity.INFO:
            continue
        try:
            drafts.append(await _draft(site, report, finding))
        except AdviceOnly as advice:
            notes.append(f"{_where(finding)}: {advice} {finding.advice}")
        except OnclusterError as error:
            notes.append(f"{_where(finding)}: no repair was planned: {error}")
    drafts.sort(key=lambda draft: draft.order)
    chosen, waiting = _bounded(drafts, limit)
    for draft, reason in waiting:
        notes.append(f"{draft.act.what} Not in this plan: {reason}.")
    return Plan(
        OPERATION,
        site.cluster,
        acts=tuple(draft.act for draft in chosen),
        findings=tuple(findings),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Draft:
    """An act, and when it comes: repairs that others rest on first, then fuller replicas."""

    act: Act
    repair: Repair
    path: str
    rows: int = 0
    order: tuple[int, str, int, str] = field(init=False)

    def __post_init__(self) -> None:
        rank = list(Repair).index(self.repair)
        object.__setattr__(self, "order", (rank, self.path, -self.rows, self.act.host))


def _bounded(drafts: Sequence[_Draft], limit: int) -> tuple[list[_Draft], list[tuple[_Draft, str]]]:
    chosen: list[_Draft] = []
    waiting: list[tuple[_Draft, str]] = []
    for draft in drafts:
        rival = next(
            (
                other
                for other in chosen
                if other.path == draft.path
                and draft.path
                and Peers.ALL_HEALTHY in (other.repair.peers, draft.repair.peers)
            ),
            None,
        )
        if any(other.act.act_id == draft.act.act_id for other in chosen):
            continue
        if rival is not None:
            waiting.append((draft, "another replica of its shard is repaired first; check again after that"))
        elif len(chosen) >= limit:
            waiting.append((draft, f"a run does {limit} repairs at most"))
        else:
            chosen.append(draft)
    return chosen, waiting


# --- one finding --------------------------------------------------------------------------------------------


async def _draft(site: Site, report: HealthReport, finding: Finding) -> _Draft:
    facts = report.facts
    if not facts.keeper.is_answering:
        raise AdviceOnly("Keeper is down: nothing is repaired before it is back.")
    match finding.kind:
        case FindingKind.SESSION_LOST:
            return _restart_host(finding)
        case FindingKind.READ_ONLY:
            return await _read_only(site, report, finding)
        case FindingKind.LOST_REPLICA if "is_table_missing" in finding.evidence:
            return await _reclone(site, report, finding)
        case FindingKind.LOST_REPLICA:
            return _of_replica(
                Repair.RESTART_REPLICA, finding, "it clones another replica when it is activated"
            )
        case FindingKind.KEEPER_METADATA_LOST:
            return await _restore(site, report, finding)
        case FindingKind.BROKEN_PARTS if finding.severity is Severity.CRITICAL and "path" in finding.evidence:
            _refuse_old(report, finding.host, Repair.REFETCH_PARTS)
            _refuse_objection(report, finding, Repair.REFETCH_PARTS)
            return _of_replica(Repair.REFETCH_PARTS, finding, "the other replicas of the table are healthy")
        case FindingKind.STUCK_QUEUE if finding.evidence.get("has_exception") == "yes":
            _refuse_objection(report, finding, Repair.RETRY_QUEUE)
            return _of_replica(Repair.RETRY_QUEUE, finding, "its queue is read anew and tried at once")
        case FindingKind.STUCK_MUTATION if finding.evidence["is_failing"] == "yes":
            _refuse_old(report, str(finding.evidence["teller"]), Repair.KILL_MUTATION)
            return _kill_mutation(finding)
        case _:
            raise AdviceOnly("nothing to be done from here.")


def _restart_host(finding: Finding) -> _Draft:
    act = Act(
        kind=Repair.RESTART_REPLICAS.value,
        host=finding.host,
        subject="",
        what=f"Restart all replicas of {finding.host} (SYSTEM RESTART REPLICAS).",
        why=finding.what,
        danger=Repair.RESTART_REPLICAS.danger,
    )
    return _Draft(act, Repair.RESTART_REPLICAS, "")


def _of_replica(repair: Repair, finding: Finding, why: str, *, rows: int = 0, **payload: str | int) -> _Draft:
    evidence = finding.evidence
    table = TableName(str(evidence["database"]), str(evidence["table"]))
    act = Act(
        kind=repair.value,
        host=finding.host,
        subject=finding.subject,
        what=_SENTENCES[repair].format(table=table, host=finding.host, replica=evidence["replica"]),
        why=f"{finding.what} Safe because {why}.",
        payload={
            "database": table.database,
            "table": table.table,
            "path": evidence["path"],
            "replica": evidence["replica"],
            **payload,
        },
        danger=repair.danger,
    )
    return _Draft(act, repair, str(evidence["path"]), rows)


_SENTENCES: dict[Repair, str] = {
    Repair.RESTART_REPLICA: "Restart {table} on {host} (SYSTEM RESTART REPLICA).",
    Repair.RESTORE_REPLICA: "Make {replica} of {table} on {host} anew in Keeper (SYSTEM RESTORE REPLICA).",
    Repair.FORCE_RESTORE_DATA: "Have {table} on {host} take Keeper's parts for right (force_restore_data).",
    Repair.REFETCH_PARTS: "Check {table} on {host} and fetch its broken parts again (CHECK TABLE).",
    Repair.RETRY_QUEUE: "Have {table} on {host} try its queue again (SYSTEM RESTART REPLICA).",
    Repair.KILL_MUTATION: "Kill the failing mutation of {table} (KILL MUTATION on {host}).",
    Repair.RECLONE_REPLICA: "Drop replica {replica} of {table} from Keeper and create it on {host} again.",
}


async def _read_only(site: Site, report: HealthReport, finding: Finding) -> _Draft:
    state = _state(report, finding)
    replica = state.replica(str(finding.evidence["replica"]))
    if finding.severity is not Severity.CRITICAL:
        raise AdviceOnly("it has only just become read-only.")
    if replica.registered is None:
        raise AdviceOnly("it is not known why it is read-only.")
    if await is_kept_active(site.keeper, site.env, state.path, replica.name):
        raise AdviceOnly("two servers that run one replica have to be told apart by a person.")
    if replica.told is not None and _OTHER_COLUMNS in replica.told.readonly_reason:
        raise AdviceOnly(
            "its columns are not Keeper's, and which of the two was restored from an older copy a person has "
            "to say."
        )
    unexpected, all_rows = await _unexpected_rows(site, finding)
    if all_rows == 0 or unexpected <= all_rows * WRONG_PARTS_RATIO:
        return _of_replica(Repair.RESTART_REPLICA, finding, "it serves no writes as it is")
    if objection := state.objection(replica.name, Repair.FORCE_RESTORE_DATA.peers):
        raise AdviceOnly(
            f"{unexpected} of its {all_rows} rows are in parts that Keeper does not know, and {objection}."
        )
    return _of_replica(
        Repair.FORCE_RESTORE_DATA,
        finding,
        f"{unexpected} of its {all_rows} rows are in parts that Keeper does not know; they go to detached/ "
        "and stay there, and the other replicas have all that Keeper knows",
    )


async def _restore(site: Site, report: HealthReport, finding: Finding) -> _Draft:
    _refuse_old(report, finding.host, Repair.RESTORE_REPLICA)
    if finding.severity is not Severity.CRITICAL:
        raise AdviceOnly("it has only just become read-only.")
    state = _state(report, finding)
    name = str(finding.evidence["replica"])
    if objection := state.objection(name, Repair.RESTORE_REPLICA.peers):
        raise AdviceOnly(f"{objection[0].upper()}{objection[1:]}.")
    rows = await _rows(site, finding)
    if state.exists:
        why = "it clones an active replica, and takes its own parts for those that are the same"
        return _of_replica(Repair.RESTORE_REPLICA, finding, why, rows=rows)
    why = "nobody has the table in Keeper; the replica with the most rows comes first and the others join it"
    return _of_replica(Repair.RESTORE_REPLICA, finding, why, rows=rows)


async def _reclone(site: Site, report: HealthReport, finding: Finding) -> _Draft:
    state = _state(report, finding)
    name = str(finding.evidence["replica"])
    if objection := state.objection(name, Repair.RECLONE_REPLICA.peers):
        raise AdviceOnly(f"{objection[0].upper()}{objection[1:]}.")
    donor = next(other for other in state.others(name) if other.host is not None)
    assert donor.host is not None and donor.told is not None
    sql = (
        f"SELECT create_table_query FROM system.tables WHERE name = {quote_string(donor.told.table.table)} "
        f"AND database = {quote_string(donor.told.table.database)}"
    )
    answer = await site.ask(donor.host, lambda client: client.query_rows(sql))
    if isinstance(answer, OnclusterError):
        raise answer
    create = create_for(str(answer.scalar), path=state.path, donor=donor.name, replica=name)
    if redact(create) != create:
        raise AdviceOnly("The table's definition has a secret in it, which must not stand in a plan.")
    return _of_replica(
        Repair.RECLONE_REPLICA,
        finding,
        f"the replica is not active, its host does not have the table, and {donor.name} has all data",
        create=create,
    )


def _kill_mutation(finding: Finding) -> _Draft:
    evidence = finding.evidence
    table = TableName(str(evidence["database"]), str(evidence["table"]))
    act = Act(
        kind=Repair.KILL_MUTATION.value,
        host=str(evidence["teller"]),
        subject=finding.subject,
        what=_SENTENCES[Repair.KILL_MUTATION].format(table=table, host=evidence["teller"]),
        why=finding.what,
        payload={
            "database": table.database,
            "table": table.table,
            "path": evidence["path"],
            "replica": evidence["replica"],
            "mutation_id": evidence["mutation_id"],
        },
        danger=Repair.KILL_MUTATION.danger,
    )
    return _Draft(act, Repair.KILL_MUTATION, str(evidence["path"]))


# --- facts that only a plan needs ---------------------------------------------------------------------------


async def _unexpected_rows(site: Site, finding: Finding) -> tuple[int, int]:
    """Rows in parts on the disk that Keeper does not know, and all rows, as a server counts them."""
    evidence = finding.evidence
    replica = TablePaths(str(evidence["path"])).replica(str(evidence["replica"]))
    try:
        names = (await site.keeper.children(replica.parts)).names
    except NoNode:
        names = ()
    expected = ActivePartSet([part for part in map(PartName.try_parse, names) if part is not None])
    unexpected = total = 0
    for name, rows in await _local_parts(site, finding):
        total += rows
        part = PartName.try_parse(name)
        if part is not None and expected.get_containing(part) is None:
            unexpected += rows
    return unexpected, total


async def _rows(site: Site, finding: Finding) -> int:
    return sum(rows for _, rows in await _local_parts(site, finding))


async def _local_parts(site: Site, finding: Finding) -> list[tuple[str, int]]:
    sql = (
        "SELECT name, toUInt64(rows) FROM system.parts WHERE active AND "
        f"database = {quote_string(str(finding.evidence['database']))} AND "
        f"table = {quote_string(str(finding.evidence['table']))}"
    )

    async def read(client: NodeClient) -> list[tuple[str, int]]:
        return [(str(name), int(rows)) for name, rows in (await client.query_rows(sql)).rows]

    answer = await site.ask(_host(site, finding), read)
    if isinstance(answer, OnclusterError):
        raise answer
    return answer


def _state(report: HealthReport, finding: Finding) -> TableState:
    return state_of(report.facts, str(finding.evidence["path"]))


def _refuse_objection(report: HealthReport, finding: Finding, repair: Repair) -> None:
    objection = _state(report, finding).objection(str(finding.evidence["replica"]), repair.peers)
    if objection:
        raise AdviceOnly(f"{objection[0].upper()}{objection[1:]}.")


def _refuse_old(report: HealthReport, host: str, repair: Repair) -> None:
    since, what = _SINCE[repair]
    version = next(facts.version for facts in report.facts.hosts.values() if facts.host.readable == host)
    if version < since:
        raise AdviceOnly(f"version {'.'.join(map(str, version))} has no {what}.")


def _host(site: Site, finding: Finding) -> HostId:
    return next(host for host in site.hosts if host.readable == finding.host)


def _where(finding: Finding) -> str:
    return " ".join(
        filter(None, (finding.kind.value, finding.subject, finding.host and f"on {finding.host}"))
    )
