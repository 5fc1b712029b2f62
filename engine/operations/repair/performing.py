"""Performs one repair: look, object, do, wait until it shows, prove.

Safety argument.
1. Looked at anew, from all hosts and Keeper: is the trouble still there? If not, nothing is done.
2. The other replicas of the table are looked at: while one of them is not healthy, no replica is touched that
   serves or whose data moves (`Peers`). So two replicas of a shard are never out at once, whatever became of
   the act before; acts of a run come one after another, and the lock of operations keeps other runs away.
3. One statement to one host, or a few steps that each may be done again (each repair's file says which). A
   crash before it leaves nothing; after it, the act was recorded as begun: a resumed run comes to 1, finds
   the trouble gone or still there, and goes on from there. A lost reply is the same: what is looked at
   decides, not the reply. A repair of several steps that stops after the first stays begun (`HalfDone`).
4. Waited for, at most `wait_s` seconds: the replica is healthy.
5. Proven: all replicas have equal checksums for equal parts. A repair that is not proven has failed, and says
   what differs.

Nothing is deleted here: servers move parts to `detached/`, and a mutation or a replica's entry in Keeper goes
only by an act of its own kind that was approved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.client import NodeClient
from engine.errors import (
    ConfigError,
    KeeperUnavailable,
    OnclusterError,
    OperationTimeout,
    ReplyLost,
    SqlError,
    Unavailable,
    UnknownOutcome,
)
from engine.names import HostId, TableName
from engine.operations.act import Act, ActResult, ActState
from engine.operations.carrying_out import HalfDone
from engine.operations.health.facts import ClusterFacts
from engine.operations.health.gather import gather_table
from engine.operations.repair.kinds import Repair
from engine.operations.repair.proof import prove
from engine.operations.repair.shard import TableState, state_of
from engine.operations.site import Site

PAUSE_S = 0.25
LONGEST_PAUSE_S = 2.0


@dataclass(slots=True)
class Work:
    """One act under way."""

    site: Site
    act: Act
    wait_s: float
    state: TableState

    @property
    def host(self) -> HostId:
        """Where it happens. Raises ConfigError when the cluster does not have that host any more."""
        return host_of(self.site, self.act.host)

    @property
    def client(self) -> NodeClient:
        return self.site.client(self.host)

    @property
    def table(self) -> TableName:
        return TableName(self.act.payload["database"], self.act.payload["table"])

    @property
    def path(self) -> str:
        return str(self.act.payload["path"])

    @property
    def replica(self) -> str:
        return str(self.act.payload["replica"])

    @property
    def trouble(self) -> str:
        """Of the replica, as last looked at; empty when it is healthy."""
        return self.state.replica(self.replica).trouble


async def _healthy(work: Work) -> str:
    return work.trouble


async def _nothing_against(work: Work) -> str:
    return ""


def _never_half_done(work: Work) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Steps:
    """What a kind of repair consists of.

    - `needed`: whether the trouble is there;
    - `objection`: why it must not be done although the other replicas allow it, empty if it may;
    - `do`: the one thing that it does; may be done again;
    - `still_wrong`: what is not yet as it should be, empty when the repair shows its effect;
    - `half_done`: what was done of several steps, in words, while the rest is still to do; empty otherwise.
      `work.state` is of just now.
    """

    needed: Callable[[Work], Awaitable[bool]]
    do: Callable[[Work], Awaitable[None]]
    objection: Callable[[Work], Awaitable[str]] = _nothing_against
    still_wrong: Callable[[Work], Awaitable[str]] = _healthy
    half_done: Callable[[Work], str] = _never_half_done


async def perform(work: Work, steps: Steps) -> ActResult:
    """All five steps. Raises UnknownOutcome when it was begun and nobody can tell what became of it, and
    HalfDone when it cannot go on after its first step."""
    work.state = await look(work)
    is_needed = await steps.needed(work)
    if is_needed:
        peers = Repair(work.act.kind).peers
        objection = work.state.objection(work.replica, peers) or await steps.objection(work)
        if objection:
            _raise_if_half_done(work, steps, objection)
            return ActResult(ActState.REFUSED, f"Not done: {objection}.")
        try:
            await steps.do(work)
        except ReplyLost:
            pass  # what is looked at now decides
        except UnknownOutcome:
            raise
        except OnclusterError as error:
            work.state = await _look_after(work)
            _raise_if_half_done(work, steps, _words(error))
            raise
    try:
        wrong = await _wait(work, steps.still_wrong)
        if wrong:
            _raise_if_half_done(work, steps, wrong)
            return ActResult(ActState.FAILED, f"After {work.wait_s:g} s: {wrong}.")
        proof = await prove(work.site, [work.path], wait_s=work.wait_s)
    except Unavailable as error:
        raise OperationTimeout(f"What became of it could not be looked at: {error}") from error
    if not proof.is_equal:
        return ActResult(ActState.FAILED, f"Done, and not proven: {proof.words}")
    return ActResult(ActState.DONE if is_needed else ActState.NOT_NEEDED, proof.words)


def _raise_if_half_done(work: Work, steps: Steps, obstacle: str) -> None:
    if done := steps.half_done(work):
        raise HalfDone(f"Half done: {done}, and it could not go on: {obstacle.rstrip('.')}.")


def _words(error: OnclusterError) -> str:
    return error.display_text if isinstance(error, SqlError) else error.message


async def _look_after(work: Work) -> TableState:
    """As `look`, when something was done already. Raises OperationTimeout."""
    try:
        return await look(work)
    except Unavailable as error:
        raise OperationTimeout(f"What became of it could not be looked at: {error}") from error


async def look(work: Work) -> TableState:
    """The table now. Raises KeeperUnavailable: without Keeper nobody knows who is healthy."""
    facts = await gather_table(work.site, work.path, work.site.hosts)
    return state_with_keeper(facts, work.path)


def state_with_keeper(facts: ClusterFacts, path: str) -> TableState:
    if not facts.keeper.is_answering:
        raise KeeperUnavailable(facts.keeper.error)
    return state_of(facts, path)


def host_of(site: Site, name: str) -> HostId:
    """Raises ConfigError."""
    for host in site.hosts:
        if host.readable == name:
            return host
    known = ", ".join(host.readable for host in site.hosts)
    raise ConfigError(f"{name} is no host of cluster {site.cluster}.", hint=f"There are: {known}.")


async def wait_until_healthy(work: Work) -> str:
    """What is still wrong with the replica when `wait_s` are over; empty as soon as nothing is."""
    return await _wait(work, _healthy)


async def _wait(work: Work, still_wrong: Callable[[Work], Awaitable[str]]) -> str:
    env = work.site.env
    deadline_s = env.monotonic_s() + work.wait_s
    pause_s = PAUSE_S
    while True:
        work.state = await look(work)
        wrong = await still_wrong(work)
        if not wrong or env.monotonic_s() >= deadline_s:
            return wrong
        await env.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
