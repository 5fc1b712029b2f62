"""Setting drift right on the hosts that are apart, and nowhere else.

Safety argument.
1. `plan_drift_repair` changes nothing. Each act is one statement for one host, which makes what is missing or
   adds to what is there; nothing is ever dropped, renamed or rewritten. What would need that is a note of the
   plan: a person decides. What a host will do by itself (an entry waits in its queue) is left to it. Where
   hosts give no answer that could turn the majority round, nothing is planned.
2. Before each act the host is looked at again: what is as wanted by now is not needed; what is there and
   different is refused. So is an act whose reference host no longer has what was planned: the cluster moved
   on, and a new plan is needed.
3. The statement is sent to the host itself, not to the queue: no other host and no ledger hears of it. A
   crash or a lost answer leaves it done or not done, and the look of the resumed run tells which.
4. An act is done when the host was looked at afterwards and has what was wanted.

A missing replicated table is made as a new replica: it fetches its data from the others. Where Keeper still
knows a replica of that name, the host had it before: that is no drift but a lost replica, and
`oncluster health` repairs it. Objects of a Replicated database are left to a person: what is sent to one host
is carried out on all replicas of the database.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from engine.client import NodeClient
from engine.errors import OnclusterError, Refused, SqlError, UnknownOutcome
from engine.names import HostId, quote_identifier
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.again import make_again
from engine.operations.carrying_out import Performer
from engine.operations.drift.compare import agrees_with_keeper
from engine.operations.drift.gather import look_at_object
from engine.operations.drift.model import Drift, DriftKind, HostSchema, ObjectName, Schemas, Space
from engine.operations.drift.normalise import Definition
from engine.operations.drift.repair_sql import Advice, Remedy, ShardHas, alterations, creation
from engine.operations.drift.report import DriftReport
from engine.operations.site import Site

OPERATION = "drift-repair"
_FAR = frozenset({"Distributed", "Buffer", "Merge"})


class DriftRepair(enum.StrEnum):
    """Kinds of acts."""

    CREATE = "create-object"
    ALTER = "alter-table"


def plan_drift_repair(site: Site, report: DriftReport) -> Plan:
    """What sets right as much of the report as can be without a risk. Changes nothing."""
    notes = list(report.notes)
    ranked: list[tuple[int, int, Act]] = []
    for drift in report.drifts:
        explanation = drift.explanation
        if explanation is not None and (explanation.will_catch_up or explanation.is_ahead):
            notes.append(f"Left alone: {drift.what} {explanation.what}")
            continue
        if drift.kind not in (DriftKind.MISSING, DriftKind.DIFFERS):
            notes.append(f"By hand: {drift.what}")
            continue
        if not drift.is_settled:
            notes.append(f"Left alone until more hosts answer: {drift.what}")
            continue
        for remedy in _remedies(report.schemas, drift):
            if isinstance(remedy, Advice):
                notes.append(f"By hand, on {drift.host.readable}: {remedy.what}")
            else:
                ranked.append(
                    (_rank(report.schemas, drift), len(ranked), _act(report.schemas, drift, remedy))
                )
    acts = tuple(act for _, _, act in sorted(ranked, key=lambda item: item[:2]))
    return Plan(OPERATION, site.cluster, acts, report.findings, tuple(notes))


def _remedies(schemas: Schemas, drift: Drift) -> Iterator[Remedy | Advice]:
    host = schemas.hosts[drift.host]
    if _is_in_replicated_database(host, drift.object):
        yield Advice(
            f"{drift.object} is of a Replicated database, which carries statements to all its replicas: "
            f"SYSTEM SYNC DATABASE REPLICA {quote_identifier(drift.object.database)} there; what is apart "
            "after that, set right once, on one of them."
        )
        return
    reference = _reference(schemas, drift)
    wanted = schemas.hosts[reference].objects[drift.object]
    if drift.kind is DriftKind.DIFFERS:
        is_behind = not agrees_with_keeper(schemas, host, drift.object)
        yield from alterations(
            drift,
            wanted,
            host.objects[drift.object],
            version=host.version,
            shard_has=ShardHas.WHAT_IS_WANTED if is_behind else ShardHas.WHAT_THE_HOST_HAS,
        )
        return
    donor = schemas.hosts[reference].places.get(drift.object)
    if donor is not None and wanted.is_replicated:
        own_name = host.macros.get("replica", "")
        table = schemas.keeper.get(donor.path)
        if (
            _is_same_shard(schemas, drift.host, reference)
            and table is not None
            and own_name in table.replicas
        ):
            yield Advice(f"{drift.object} had a replica {own_name} here before: see `oncluster health`.")
            return
    yield creation(
        drift.object,
        wanted,
        donor=donor,
        target=host.macros,
        is_same_shard=_is_same_shard(schemas, drift.host, reference),
    )


def _is_in_replicated_database(host: HostSchema, name: ObjectName) -> bool:
    database = host.objects.get(ObjectName(Space.DATABASE, "", name.database))
    return database is not None and database.engine == "Replicated"


def _reference(schemas: Schemas, drift: Drift) -> HostId:
    """A host of the same shard where one has what is wanted."""
    assert drift.reference is not None
    wanted = schemas.hosts[drift.reference].objects[drift.object].digest
    for shard in schemas.shards:
        if drift.host in shard:
            for host in shard:
                schema = schemas.hosts.get(host)
                definition = schema.objects.get(drift.object) if schema else None
                if definition is not None and definition.digest == wanted:
                    return host
    return drift.reference


def _is_same_shard(schemas: Schemas, one: HostId, other: HostId) -> bool:
    return any(one in shard and other in shard for shard in schemas.shards)


def _rank(schemas: Schemas, drift: Drift) -> int:
    """What others rest on comes first."""
    assert drift.reference is not None
    definition = schemas.hosts[drift.reference].objects[drift.object]
    match definition.kind:
        case "database":
            return 0
        case "function":
            return 1
        case "table":
            return 4 if definition.engine in _FAR else 2
        case "dictionary":
            return 3
        case "view":
            return 5
        case _:
            return 6


def _act(schemas: Schemas, drift: Drift, remedy: Remedy) -> Act:
    reference = _reference(schemas, drift)
    wanted = schemas.hosts[reference].objects[drift.object]
    why = f"{drift.agree} of {drift.of} hosts have it so, {reference.readable} among them."
    if drift.explanation is not None:
        why += f" {drift.explanation.what}"
    payload: dict[str, Any] = {
        "sql": remedy.sql,
        "object": drift.object.to_json(),
        "part": remedy.part,
        "wanted": wanted.parts.get(remedy.part) if remedy.part else wanted.digest,
        "reference": reference.readable,
    }
    return Act(
        kind=(DriftRepair.ALTER if remedy.part else DriftRepair.CREATE).value,
        host=drift.host.readable,
        subject=f"{drift.object} {remedy.part}".rstrip(),
        what=f"{remedy.what} on {drift.host.readable}: {remedy.sql}",
        why=why,
        payload=payload,
        danger=Danger.REPAIRS,
    )


# --- performing -------------------------------------------------------------------------------------------


def drift_performer(site: Site) -> Performer:
    """Performs the acts of `plan_drift_repair`."""

    async def perform(act: Act) -> ActResult:
        host, reference = _host(site, act.host), _host(site, act.payload["reference"])
        name = ObjectName.from_json(act.payload["object"])
        part, wanted = act.payload["part"], act.payload["wanted"]
        model = await _look(site, reference, name)
        if _state_of(model, part) != wanted:
            return ActResult(
                ActState.REFUSED, f"{name} is no longer as planned on {reference.readable}: plan again."
            )
        found = await _look(site, host, name)
        if found is not None and _state_of(found, part) == wanted:
            return ActResult(ActState.NOT_NEEDED, "It is as wanted.")
        if found is not None and not part:
            return ActResult(ActState.REFUSED, f"{name} is there by now, and is something else: plan again.")
        if found is None and part:
            return ActResult(ActState.REFUSED, f"{name} is not there any more: plan again.")
        refusal = await _run(site.client(host), act.payload["sql"])
        found = await _look(site, host, name)
        if found is not None and _state_of(found, part) == wanted:
            return ActResult(ActState.DONE)
        return ActResult(ActState.FAILED, refusal or "It was carried out and is not as wanted: plan again.")

    return perform


def _host(site: Site, readable: str) -> HostId:
    for host in site.hosts:
        if host.readable == readable:
            return host
    raise Refused(f"{readable} is no host of {site.cluster} any more: plan again.")


async def _run(client: NodeClient, sql: str) -> str:
    """What the server has against it; empty where it has nothing. Raises UnknownOutcome, NodeUnavailable."""
    try:
        await make_again(client, sql)
    except SqlError as error:
        return error.display_text
    return ""


async def _look(site: Site, host: HostId, name: ObjectName) -> Definition | None:
    found = await site.ask(host, lambda client: look_at_object(client, name))
    if isinstance(found, UnknownOutcome):
        # A look that was not answered has changed nothing; the act itself is not in doubt by it.
        raise OnclusterError(f"{host.readable} could not be looked at: {found}")
    if isinstance(found, OnclusterError):
        raise found
    return found


def _state_of(definition: Definition | None, part: str) -> str | None:
    """What an act is about: one part, or the whole object."""
    if definition is None:
        return None
    return definition.parts.get(part) if part else definition.digest
