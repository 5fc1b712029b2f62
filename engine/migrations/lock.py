"""One migration run per cluster at a time: a lease in Keeper that numbers its holders.

    <base>/lease           who holds it; JSON; never removed. Its version is the lock: all change it by
                           compare and set
    <base>/alive-<fence>   ephemeral, only for a holder that lives in one process
    <base>/recorded        the last fence that the ledger has taken, and the ledger
    <base>/renewed         when a holder of several processes last did something (the server's clock, in its
                           mtime)

Two kinds of holder:
- SESSION: one process from begin to end (the command line). It is gone when its Keeper session is.
- TTL: a run whose steps are processes of their own (Airflow's tasks). Nothing of it lives between two steps,
  so the lease is bound to the run's id: each step re-enters it and renews it. It is gone when no step ran for
  `ttl_s` seconds, by the Keeper server's clock; steps that wait renew while they wait.

Safety argument.
1. Taking over is one transaction on the version of `lease` that was read, so a stale read cannot give the
   lease to two. A SESSION holder's `alive` node is made in the transaction that gives it the lease: whoever
   sees the lease held and no such node sees a holder whose session is over.
2. The fence is one more than the greatest that Keeper or the ledger knows, so it rises even when Keeper lost
   its data. The ledger takes no write under a lesser one (M3), so a run whose lease has a lesser one, because
   it went on for a while in another Keeper, takes it anew. What is sent to the DDL queue is checked
   against the version of `lease` in the same transaction (`Lease.guard`), so a holder that slept cannot send
   either.
3. After a lost answer the lease is read again, behind a sync: a nonce tells whether it is ours.
4. The lease names the ledger. A cluster whose migrations are recorded elsewhere is refused until somebody
   says that this ledger takes over, because a ledger that has not seen what was applied would apply it again.
   So would a copy of before, put in the ledger's place: it lacks the fence that is in `recorded`.
What a crash leaves: a held lease, which its run re-enters (TTL) or anybody takes (SESSION, when the session
has timed out). Several processes of one run hold the same fence; what they write is keyed by what it says.
This module never removes another's `alive` node and never trusts a local clock.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace

from engine.env import Env
from engine.errors import (
    BadVersion,
    Busy,
    Code,
    ConnectionLoss,
    KeeperAnswer,
    MultiFailed,
    NodeExists,
    NoNode,
    OperationTimeout,
)
from engine.keeper.base import NO_SESSION, Check, Create, CreateMode, Keeper, Op, Remove, SetData
from engine.keeper.recipes import create_ancestors
from engine.migrations.errors import LedgerCorrupt, MigrationRefused, StaleFence

DEFAULT_TTL_S = 900.0
_MAX_TRIES = 8
_MOMENT_S, _PAUSE_S = 2.0, 0.2


class Binding(enum.StrEnum):
    SESSION = "session"
    TTL = "ttl"


@dataclass(frozen=True, slots=True)
class LeaseText:
    """The content of `lease`. `run_id` empty: free. `fence` is the last holder's, also when free."""

    fence: int = 0
    run_id: str = ""
    holder: str = ""
    since_ms: int = 0
    binding: Binding = Binding.SESSION
    ttl_s: float = DEFAULT_TTL_S
    nonce: str = ""
    ledger_id: str = ""
    ledger_url: str = ""

    @property
    def is_held(self) -> bool:
        return bool(self.run_id)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "fence": self.fence,
                "run_id": self.run_id,
                "holder": self.holder,
                "since_ms": self.since_ms,
                "binding": self.binding.value,
                "ttl_s": self.ttl_s,
                "nonce": self.nonce,
                "ledger_id": self.ledger_id,
                "ledger_url": self.ledger_url,
            },
            ensure_ascii=False,
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> LeaseText:
        """Raises LedgerCorrupt for anything that `to_bytes` did not write."""
        try:
            fields = json.loads(data)
            return cls(
                fence=int(fields["fence"]),
                run_id=str(fields["run_id"]),
                holder=str(fields["holder"]),
                since_ms=int(fields["since_ms"]),
                binding=Binding(fields["binding"]),
                ttl_s=float(fields["ttl_s"]),
                nonce=str(fields["nonce"]),
                ledger_id=str(fields["ledger_id"]),
                ledger_url=str(fields["ledger_url"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerCorrupt(f"The migration lock at {path} cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of `recorded`: `ledger_id` has taken `fence`, and everything before it."""

    ledger_id: str
    fence: int

    def to_bytes(self) -> bytes:
        return f"{self.ledger_id} {self.fence}".encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Recorded:
        """Raises LedgerCorrupt for anything that `to_bytes` did not write."""
        ledger_id, _, fence = data.decode(errors="replace").partition(" ")
        if not fence.isdecimal():
            raise LedgerCorrupt(f"What {path} says cannot be read: {data!r}")
        return cls(ledger_id, int(fence))


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants the lease. `ledger_max_fence` is the greatest that the ledger knows."""

    run_id: str
    holder: str
    binding: Binding
    ledger_id: str
    ledger_url: str
    ledger_max_fence: int
    ttl_s: float = DEFAULT_TTL_S
    adopt_ledger: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Held. `version` is that of the node `base/lease`."""

    base: str
    version: int
    text: LeaseText

    @property
    def fence(self) -> int:
        return self.text.fence

    @property
    def guard(self) -> tuple[Op, ...]:
        """To be put into a transaction that must not happen after the lease is lost."""
        return (Check(_lease(self.base), self.version),)


async def acquire(keeper: Keeper, base: str, claim: Claim, *, env: Env) -> Lease:
    """Take the lease or re-enter it.

    A holder that is one process may only be looking after the ledger: it is waited for for a moment. Raises
    Busy (names the holder), MigrationRefused (the cluster's migrations are in another ledger) and
    Keeper's errors; after ConnectionLoss and OperationTimeout it looks before it tries again.
    """
    await create_ancestors(keeper, _lease(base))
    await keeper.sync(_lease(base))
    nonce = str(env.new_uuid())
    lost: ConnectionLoss | OperationTimeout | None = None
    patient_until_s = env.monotonic_s() + _MOMENT_S
    tries = 0
    while tries < _MAX_TRIES:
        version, found = await _read(keeper, base)
        if found.is_held and found.nonce == nonce:
            return Lease(base, version, found)
        if not claim.adopt_ledger:
            check_ledger(found, ledger_id=claim.ledger_id, ledger_url=claim.ledger_url)
        is_own = found.run_id == claim.run_id and found.binding is claim.binding is Binding.TTL
        if is_own and found.fence >= claim.ledger_max_fence:
            lease = Lease(base, version, found)
            await renew(keeper, lease)
            return lease
        if found.is_held and not is_own and await _is_alive(keeper, base, found):
            if found.binding is Binding.TTL or env.monotonic_s() >= patient_until_s:
                raise _busy(found)
            await env.sleep(_PAUSE_S)
            continue
        tries += 1
        taken = LeaseText(
            fence=max(found.fence, claim.ledger_max_fence) + 1,
            run_id=claim.run_id,
            holder=claim.holder,
            since_ms=int(env.now_s() * 1000),
            binding=claim.binding,
            ttl_s=claim.ttl_s,
            nonce=nonce,
            ledger_id=claim.ledger_id,
            ledger_url=claim.ledger_url,
        )
        try:
            await keeper.multi(_taking(base, version, taken))
            lost = None
        except MultiFailed as refusal:
            if not _is_conflict(refusal):
                raise
            continue
        except (ConnectionLoss, OperationTimeout) as error:
            lost = error
            await keeper.sync(_lease(base))  # the server of a new connection may not know of it yet
    if lost is not None:
        raise lost
    version, found = await _read(keeper, base)
    if found.is_held and found.nonce == nonce:
        return Lease(base, version, found)
    raise _busy(found)


async def renew(keeper: Keeper, lease: Lease) -> None:
    """Say that the run is alive. Raises StaleFence when the lease is another's."""
    try:
        await keeper.multi([*lease.guard, SetData(_renewed(lease.base), lease.text.run_id.encode())])
    except MultiFailed as error:
        if error.index >= len(lease.guard) and isinstance(error.error, NoNode):
            try:
                await keeper.create(_renewed(lease.base), lease.text.run_id.encode())
            except NodeExists:
                pass
            return
        raise _lost_by(error, lease) from error


async def verify(keeper: Keeper, lease: Lease) -> None:
    """Raises StaleFence when the lease is another's."""
    await keeper.sync(_lease(lease.base))
    stat = await keeper.exists(_lease(lease.base))
    if stat is None or stat.version != lease.version:
        raise lost_lease(lease)


async def release(keeper: Keeper, lease: Lease) -> None:
    """Give the lease back; without effect when it is another's already."""
    free = replace(lease.text, run_id="", holder="", nonce="")
    ops: list[Op] = [SetData(_lease(lease.base), free.to_bytes(), lease.version)]
    if lease.text.binding is Binding.SESSION:
        ops.append(Remove(_alive(lease.base, lease.fence)))
    try:
        await keeper.multi(ops)
    except MultiFailed as refusal:
        if not _is_conflict(refusal):
            raise


async def recorded(keeper: Keeper, base: str) -> Recorded | None:
    """None where no ledger has taken a fence yet."""
    try:
        node = await keeper.get(_recorded(base))
    except NoNode:
        return None
    return Recorded.from_bytes(node.data, path=_recorded(base))


async def record(keeper: Keeper, lease: Lease) -> None:
    """Say that the ledger has taken the fence. Raises StaleFence when the lease is another's."""
    path, data = _recorded(lease.base), Recorded(lease.text.ledger_id, lease.fence).to_bytes()
    try:
        await keeper.multi([*lease.guard, SetData(path, data)])
    except MultiFailed as error:
        if error.index < len(lease.guard) or not isinstance(error.error, NoNode):
            raise _lost_by(error, lease) from error
        try:
            await keeper.multi([*lease.guard, Create(path, data)])
        except MultiFailed as again:
            if not isinstance(again.error, NodeExists):  # another process of the run was faster
                raise _lost_by(again, lease) from again


async def look(keeper: Keeper, base: str) -> LeaseText | None:
    """Who holds the lease, or held it last; None if nobody ever did."""
    try:
        node = await keeper.get(_lease(base))
    except NoNode:
        return None
    return LeaseText.from_bytes(node.data, path=_lease(base))


async def break_lease(keeper: Keeper, base: str, *, run_id: str = "") -> LeaseText | None:
    """Take the lease from its holder; returns what it said, None if nobody holds it. The holder can send
    nothing more.

    For a person who knows that the holder will not come back; the next run gets a greater fence. Raises Busy
    when another run holds it than `run_id`, where that is given, or by now.
    """
    await keeper.sync(_lease(base))
    version, found = await _read(keeper, base)
    if not found.is_held:
        return None
    if run_id and found.run_id != run_id:
        raise _busy(found)
    free = replace(found, run_id="", holder="", nonce="")
    try:
        await keeper.set(_lease(base), free.to_bytes(), version=version)
    except BadVersion:
        _, now = await _read(keeper, base)
        if now.is_held:
            raise _busy(now) from None
        return None
    return found


async def look_for_run(keeper: Keeper, base: str) -> LeaseText | None:
    """The run that holds the lease now; None if nobody does. Changes nothing, so a run that is bound to a
    time and not to a session is taken at its word."""
    found = await look(keeper, base)
    if found is None or not found.is_held:
        return None
    if found.binding is Binding.SESSION and not await _is_alive(keeper, base, found):
        return None
    return found


def check_ledger(found: LeaseText | None, *, ledger_id: str, ledger_url: str) -> None:
    """Raises MigrationRefused when the cluster's migrations are recorded in another ledger than this one.

    `ledger_id` is empty where there is none yet.
    """
    if found is not None and found.ledger_id and found.ledger_id != ledger_id:
        this = f"this is the ledger {ledger_id} at" if ledger_id else "there is none at"
        raise MigrationRefused(
            f"This cluster's migrations are recorded in the ledger {found.ledger_id} at {found.ledger_url}, "
            f"and {this} {ledger_url}.",
            hint="Use that ledger (--ledger-url). If it is lost: mark what is applied here, "
            "then repeat with --adopt-ledger.",
        )


def lost_lease(lease: Lease) -> StaleFence:
    return StaleFence(
        f"The run {lease.text.run_id} has lost the migration lock to another run; it stops here.",
        hint="`oncluster migrate status` shows who has it. What was sent already is carried out.",
    )


# --- inside -----------------------------------------------------------------------------------------------


def _lease(base: str) -> str:
    return f"{base}/lease"


def _recorded(base: str) -> str:
    return f"{base}/recorded"


def _renewed(base: str) -> str:
    return f"{base}/renewed"


def _alive(base: str, fence: int) -> str:
    return f"{base}/alive-{fence}"


async def _read(keeper: Keeper, base: str) -> tuple[int, LeaseText]:
    """The node's version and content; -1 and an empty content when it is not there."""
    try:
        node = await keeper.get(_lease(base))
    except NoNode:
        return -1, LeaseText()
    return node.stat.version, LeaseText.from_bytes(node.data, path=_lease(base))


def _taking(base: str, version: int, taken: LeaseText) -> list[Op]:
    data = taken.to_bytes()
    ops: list[Op] = [Create(_lease(base), data) if version < 0 else SetData(_lease(base), data, version)]
    if taken.binding is Binding.SESSION:
        ops.append(Create(_alive(base, taken.fence), mode=CreateMode.EPHEMERAL))
    return ops


async def _is_alive(keeper: Keeper, base: str, found: LeaseText) -> bool:
    if found.binding is Binding.SESSION:
        stat = await keeper.exists(_alive(base, found.fence))
        return stat is not None and stat.ephemeral_owner != NO_SESSION  # of a copy of Keeper's tree
    now_ms = await _server_now_ms(keeper, base)
    lease = await keeper.exists(_lease(base))
    renewed = await keeper.exists(_renewed(base))
    last_ms = max(stat.mtime_ms for stat in (lease, renewed) if stat is not None) if lease else 0
    return now_ms - last_ms < found.ttl_s * 1000


async def _server_now_ms(keeper: Keeper, base: str) -> int:
    """The Keeper server's clock, read off a node that is written for it."""
    path = f"{base}/clock"
    try:
        return (await keeper.set(path, b"")).mtime_ms
    except NoNode:
        pass
    try:
        await keeper.create(path)
    except NodeExists:
        pass
    return (await keeper.set(path, b"")).mtime_ms


def _is_conflict(refusal: MultiFailed) -> bool:
    """Whether another was faster. Keeper refuses also for a quota, an ACL, or because it may not write."""
    return isinstance(refusal.error, BadVersion | NodeExists | NoNode)


def _lost_by(refusal: MultiFailed, lease: Lease) -> KeeperAnswer | StaleFence:
    return lost_lease(lease) if _is_conflict(refusal) else refusal


def _busy(found: LeaseText) -> Busy:
    return Busy(
        f"Another migration run is at work on this cluster: run {found.run_id} of {found.holder}.",
        holder=found.holder,
        code=Code.QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING,
        hint="Wait for it, or see `oncluster migrate status`. If it will never come back: "
        f"`oncluster migrate unlock --run {found.run_id}`.",
    )
