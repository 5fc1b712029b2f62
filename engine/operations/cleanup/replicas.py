"""Replicas in Keeper that no server has: orphaned ones, whose host lives and lacks the table, and dead ones,
whose host is gone.

Safety argument. A replica's nodes go only if all of this holds, when it is planned and again when it is done.
1. It is not active, and was not activated since it was first seen so, `gone_after_s` ago or more. Each look
   records the transaction that last wrote the replica's `host`, which every activation writes: the same
   transaction then and now means that there was no activation between.
2. Every host of the cluster was asked and none has the replica, read-only and broken ones included; none has
   a detached table of that name. A host that gives no answer blocks everything, unless a person says that it
   is gone for good.
3. The host that the replica names is of this cluster (orphaned); or it is in no cluster of the configuration,
   accepts no connection and is not active in the queue's `replicas/` (dead), and the table is one that hosts
   of this cluster have. Who is of another cluster of the configuration is left to that.
   A person's word that a host is gone replaces the time of 1 and the proofs of 3, never the rest.
4. The transaction that makes it impossible for the replica to become active checks the version of `host` and
   that it is not active now: decided is what was looked at. What follows is `SYSTEM DROP REPLICA`, step by
   step, and can be repeated: see `engine.replication.commands.drop`. It happens in Keeper, so that servers
   without that command (18.16) need not know it.
A crash leaves the replica whole, or without `host`: the same act goes on there, and so does a later plan.

It never touches an active replica, parts on a disk, or a table with replicas left.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import MultiFailed, SqlError
from engine.keeper.base import Check
from engine.names import HostId, TableName
from engine.operations.act import Act, ActResult, ActState, Danger
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.owners import Owners, answers_anywhere, ask_owners, not_answering, word_about
from engine.operations.cleanup.settings import CleanupSettings, GoneHost
from engine.operations.cleanup.table_tree import ReplicaInKeeper, TableInKeeper, Tree, read_table
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.homes import Homes, Told
from engine.operations.records import Sample
from engine.operations.site import Site
from engine.replication.commands.drop import Dropped, drop_dead_replica
from engine.replication.host import ReplicaHost
from engine.wording import duration, listed

METRIC = "inactive_replica_host_zxid"
"""Samples: the transaction that last wrote `host` of a replica that was not active."""
_OWNERS_FRESH_S = 15.0

Probe = Callable[[Site, ReplicaHost], Awaitable[bool]]


class ReplicaAct(enum.StrEnum):
    """Acts of this kind."""

    ORPHANED = "drop-orphaned-replica"
    DEAD = "drop-dead-replica"
    HALF_DROPPED = "finish-dropping-replica"


class Standing(enum.Enum):
    """What the host that a replica names is."""

    OURS = "a host of this cluster"
    ANOTHERS = "a host of another cluster of the configuration"
    UNKNOWN = "in no cluster of the configuration"
    NAMELESS = "not named: the replica was never active"


@dataclass(frozen=True, slots=True)
class Case:
    """One replica that nobody has, and why it may go, or not yet. `home` only names its host: what that is
    concluded from is too little to drop anything for."""

    kind: ReplicaAct
    replica: ReplicaInKeeper
    why: str
    blocked: str = ""
    inactive_s: float = 0.0
    word: GoneHost | None = None
    home: HostId | None = None

    @property
    def host(self) -> str:
        """As the configuration or a person calls it, else its address in Keeper."""
        address = _host_id(self.replica.host)
        if self.home is not None:
            return self.home.readable
        if self.word is not None:
            return self.word.name
        return "" if address is None else address.readable


async def plan_replicas(
    site: Site,
    settings: CleanupSettings,
    tree: Tree,
    owners: Owners,
    *,
    now_ms: int,
    probe: Probe = answers_anywhere,
) -> Found:
    """The replicas that nobody has, and those among them that may go now. Records samples."""
    judge = _Judge(site, settings, owners, now_ms, probe, _samples(site))
    homes = _homes(tree, owners)
    seen: list[Sample] = []
    cases: list[Case] = []
    for table in tree.tables:
        for replica in table.replicas:
            if replica.is_active:
                continue
            if replica.host_stat is not None:
                zxid = float(replica.host_stat.mzxid)
                seen.append(Sample(METRIC, zxid, subject=replica.path, at_ms=now_ms))
            case = await judge.case(table, replica)
            if case is not None:
                home = homes.home_of(table.path, replica.paths.name, _host_id(replica.host))
                cases.append(dataclasses.replace(case, home=home))
    site.records.add_samples(site.cluster, seen)
    acts = tuple(_act(case, settings.gone) for case in cases if not case.blocked)
    return Found(
        acts, tuple(_finding(site, case) for case in cases), (*_notes(owners, settings, cases), *judge.notes)
    )


# --- judging ----------------------------------------------------------------------------------------------


def _samples(site: Site) -> Mapping[str, Sequence[Sample]]:
    """By replica's path, the oldest first."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in site.records.samples(site.cluster, METRIC):
        found[sample.subject].append(sample)
    return found


def _homes(tree: Tree, owners: Owners) -> Homes:
    addresses = {
        (table.path, replica.paths.name): _host_id(replica.host)
        for table in tree.tables
        for replica in table.replicas
    }
    told = (
        Told(host, path, name, addresses.get((path, name)))
        for host, tables in owners.hosts.items()
        for path, name in tables.replicas
    )
    return Homes.of(owners.hosts.keys() | owners.silent.keys(), told)


def inactive_since_ms(samples: Sequence[Sample], zxid: int) -> int | None:
    """The first of those looks that saw it not active and since which it was not activated, or None."""
    since = None
    for sample in reversed(samples):
        if int(sample.value) != zxid:
            break
        since = sample.at_ms
    return since


@dataclass(slots=True)
class _Judge:
    site: Site
    settings: CleanupSettings
    owners: Owners
    now_ms: int
    probe: Probe
    samples: Mapping[str, Sequence[Sample]]
    notes: list[str] = field(default_factory=list)
    _probed: dict[ReplicaHost, bool] = field(default_factory=dict)

    async def case(self, table: TableInKeeper, replica: ReplicaInKeeper) -> Case | None:
        """None: somebody has it, or it is not ours to judge."""
        name = replica.paths.name
        if self.owners.of(table.path, name):
            return None
        address = replica.host
        word = word_about(self.settings.gone, _host_id(address), name)
        silent = self._silent(self.settings.gone)
        if replica.host_stat is None:
            old_s = (self.now_ms - replica.newest_ms) / 1000
            why = (
                "Somebody has begun to drop it and did not end: it cannot become active any more, and no "
                "host has it."
            )
            young = f"begun {duration(old_s)} ago only" if old_s < self.settings.leftover_after_s else ""
            return Case(ReplicaAct.HALF_DROPPED, replica, why, blocked=silent or young, inactive_s=old_s)
        standing = self._standing(address)
        if standing is Standing.ANOTHERS and word is None:
            return None
        if standing is Standing.UNKNOWN and word is None and table.path not in self.owners.paths:
            return None  # perhaps another cluster's, which this configuration does not know
        kind = ReplicaAct.ORPHANED if standing in (Standing.OURS, Standing.NAMELESS) else ReplicaAct.DEAD
        if word is not None:
            kind = ReplicaAct.DEAD
        inactive_s, is_long_enough = self._inactive(replica)
        blocked = silent or self._detached(address)
        if not blocked and word is None:
            if not is_long_enough:
                limit = duration(self.settings.gone_after_s)
                blocked = f"seen inactive for {duration(inactive_s)}, not yet {limit}"
            elif standing is Standing.UNKNOWN and address is not None:
                blocked = await self._alive(address)
        return Case(kind, replica, self._why(standing, word, inactive_s), blocked, inactive_s, word)

    def _standing(self, address: ReplicaHost | None) -> Standing:
        if address is None:
            return Standing.NAMELESS
        host = HostId(address.host, address.tcp_port)
        if host in self.site.hosts:
            return Standing.OURS
        for cluster in self.site.config.topology.clusters.values():
            if host in cluster.host_ids:
                return Standing.ANOTHERS
        return Standing.UNKNOWN

    def _silent(self, gone: Iterable[GoneHost]) -> str:
        waiting = self.owners.not_asked(tuple(gone))
        return f"not decided while {listed(waiting)} does not answer" if waiting else ""

    def _inactive(self, replica: ReplicaInKeeper) -> tuple[float, bool]:
        stat = replica.host_stat
        assert stat is not None
        since = inactive_since_ms(self.samples.get(replica.path, ()), stat.mzxid)
        seen_s = 0.0 if since is None else max(0.0, (self.now_ms - since) / 1000)
        written_s = (self.now_ms - replica.newest_ms) / 1000
        inactive_s = min(seen_s, max(0.0, written_s))
        return inactive_s, since is not None and inactive_s >= self.settings.gone_after_s

    def _detached(self, address: ReplicaHost | None) -> str:
        if address is None:
            return ""
        hosts = self.owners.with_detached(TableName(address.database, address.table))
        if not hosts:
            return ""
        return (
            f"{address.database}.{address.table} is detached on {listed([host.readable for host in hosts])}"
        )

    async def _alive(self, address: ReplicaHost) -> str:
        host = HostId(address.host, address.tcp_port)
        active = self.site.queue.paths.replica_active(host)
        if await self.site.keeper.exists(active) is not None:
            return f"{host.readable} is active in the DDL queue"
        if address not in self._probed:
            self._probed[address] = await self.probe(self.site, address)
        return f"{address.host} still accepts connections" if self._probed[address] else ""

    def _why(self, standing: Standing, word: GoneHost | None, inactive_s: float) -> str:
        asked = f"None of the {len(self.owners.hosts)} hosts that were asked has it; it is not active"
        if word is not None:
            return f"{asked}, and {self.site.operator} says that {word.name} is gone: {word.reason}."
        since = f"{asked} and was not activated for {duration(inactive_s)}."
        match standing:
            case Standing.OURS:
                old = listed([host.readable for host in self.owners.cannot_say_detached])
                unless = f" {old} cannot say whether the table is detached: look there first." if old else ""
                return f"{since} Its host answers and has no such table.{unless}"
            case Standing.NAMELESS:
                return f"{since} It was made and never used."
            case Standing.UNKNOWN | Standing.ANOTHERS:
                return (
                    f"{since} Its address in Keeper is in no cluster of the configuration and accepts no "
                    "connection."
                )


def _host_id(address: ReplicaHost | None) -> HostId | None:
    return None if address is None else HostId(address.host, address.tcp_port)


# --- acts and findings ------------------------------------------------------------------------------------


def _act(case: Case, gone: Sequence[GoneHost]) -> Act:
    replica = case.replica
    stat = replica.host_stat
    of = f" of {case.host}" if case.host else ""
    return Act(
        kind=case.kind,
        subject=replica.path,
        what=f"Drop replica {replica.paths.name}{of} at {_table_path(replica)} from Keeper.",
        why=case.why,
        payload={
            "table": _table_path(replica),
            "replica": replica.paths.name,
            "host_zxid": None if stat is None else stat.mzxid,
            "gone_by_word": None if case.word is None else case.word.name,
            "gone": [[word.name, word.reason] for word in gone],
        },
        danger=Danger.DESTROYS,
    )


def _finding(site: Site, case: Case) -> Finding:
    replica = case.replica
    if case.kind is ReplicaAct.HALF_DROPPED:
        kind, what = FindingKind.ORPHANED_REPLICA, "is half dropped"
    elif case.kind is ReplicaAct.DEAD:
        if case.word is not None:
            which = "is gone"
        elif case.home is not None:
            which = "is in Keeper under an address that is in no cluster of the configuration"
        else:
            which = "is in no cluster of the configuration"
        kind, what = FindingKind.DEAD_REPLICA, f"belongs to {case.host or replica.paths.name}, which {which}"
    else:
        kind, what = FindingKind.ORPHANED_REPLICA, "belongs to no table of any host"
    blocked = f" It stays for now: {case.blocked}." if case.blocked else ""
    advice = (
        "`oncluster cleanup plan` shows what removes it. As long as it is there, the log of its table is "
        "kept for it, and quorum and replica counts are wrong."
    )
    if case.blocked:
        advice += " Is its host gone for good, say so: --gone HOST=REASON."
    return Finding(
        kind,
        Severity.WARNING,
        site.cluster,
        f"Replica {replica.paths.name} at {_table_path(replica)} {what}.{blocked}",
        advice,
        host=case.host,
        subject=replica.path,
        evidence={"inactive_s": round(case.inactive_s), "last_written_ms": replica.newest_ms},
        since_ms=replica.newest_ms,
    )


def _notes(owners: Owners, settings: CleanupSettings, cases: Sequence[Case]) -> Iterable[str]:
    for host, error in owners.silent.items():
        word = word_about(settings.gone, host)
        if word is not None:
            yield f"{host.readable} gives no answer and is taken for gone: {word.reason}."
        elif cases:
            yield (
                f"{host.readable} {not_answering(error)}; no replica is dropped until it answers, or "
                f"somebody says that it is gone (--gone {host.readable}=REASON)."
            )
        else:
            yield f"{host.readable} {not_answering(error)}."
    for host in owners.hosts:
        word = word_about(settings.gone, host)
        if word is not None:
            yield f"{host.readable} was said to be gone ({word.reason}) and answers: what it says counts."


def _table_path(replica: ReplicaInKeeper) -> str:
    return replica.path.removesuffix(f"/replicas/{replica.paths.name}")


# --- doing ------------------------------------------------------------------------------------------------


class ReplicaPerformer:
    """Performs acts of one run. Hosts are asked anew every few seconds, not for every act."""

    def __init__(self, site: Site, *, probe: Probe = answers_anywhere) -> None:
        self._site = site
        self._probe = probe
        self._owners: Owners | None = None
        self._asked_s = 0.0

    async def __call__(self, act: Act) -> ActResult:
        """Raises Keeper's errors."""
        table_path, name = str(act.payload["table"]), str(act.payload["replica"])
        table = await read_table(self._site.keeper, table_path)
        replica = next((r for r in table.replicas if r.paths.name == name), None) if table else None
        if table is None or replica is None:
            return ActResult(ActState.NOT_NEEDED, "It is gone.")
        refusal = await self._refusal(act, table, replica)
        if refusal:
            return ActResult(ActState.REFUSED, refusal)
        stat = replica.host_stat
        proof = () if stat is None else (Check(replica.paths.host, stat.version),)
        try:
            dropped = await drop_dead_replica(self._site.keeper, table.paths, name, proof=proof)
        except MultiFailed as failed:
            return ActResult(ActState.REFUSED, f"It changed while it was looked at: {failed}")
        except SqlError as error:
            return ActResult(ActState.REFUSED, str(error))
        return ActResult(
            ActState.DONE,
            "It was the last replica: the table's path went with it." if _was_last(dropped) else "",
        )

    async def _refusal(self, act: Act, table: TableInKeeper, replica: ReplicaInKeeper) -> str:
        if replica.is_active:
            return "It is active."
        planned, stat = act.payload["host_zxid"], replica.host_stat
        if stat is not None and stat.mzxid != planned:
            return "It was active since it was planned."
        gone = tuple(GoneHost(str(name), str(reason)) for name, reason in act.payload["gone"])
        owners = await self._fresh_owners()
        if having := owners.of(table.path, replica.paths.name):
            return f"{listed([host.readable for host in having])} has it."
        if silent := owners.not_asked(gone):
            return f"{listed(silent)} does not answer."
        address = replica.host
        if address is None:
            return ""
        if detached := owners.with_detached(TableName(address.database, address.table)):
            return f"The table is detached on {listed([host.readable for host in detached])}."
        if act.kind != ReplicaAct.DEAD or act.payload["gone_by_word"] is not None:
            return ""
        host = HostId(address.host, address.tcp_port)
        if await self._site.keeper.exists(self._site.queue.paths.replica_active(host)) is not None:
            return f"{host.readable} is active in the DDL queue."
        return f"{address.host} accepts connections." if await self._probe(self._site, address) else ""

    async def _fresh_owners(self) -> Owners:
        now_s = self._site.env.monotonic_s()
        if self._owners is None or now_s - self._asked_s > _OWNERS_FRESH_S:
            self._owners = await ask_owners(self._site)
            self._asked_s = now_s
        return self._owners


def _was_last(dropped: Dropped) -> bool:
    return dropped is Dropped.TABLE
