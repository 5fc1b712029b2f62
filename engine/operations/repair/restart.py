"""SYSTEM RESTART REPLICA and RESTART REPLICAS: the server reads everything from Keeper anew.

Safety argument. A restart changes nothing that is stored. A replica that serves is out for a moment: that is
why the others have to be healthy before a stuck queue is tried again (`RETRY_QUEUE`). One that is read-only
serves no writes anyway, and reads go on. Repeatable at any point.
"""

from __future__ import annotations

from engine.errors import OperationTimeout, ReplyLost, Unavailable
from engine.operations.act import Act, ActResult, ActState
from engine.operations.health.ask_host import ask_host
from engine.operations.health.facts import HostFacts
from engine.operations.repair.performing import PAUSE_S, Steps, Work, host_of
from engine.operations.repair.proof import prove
from engine.operations.site import Site
from engine.wording import count, listed, shortened


async def _has_trouble(work: Work) -> bool:
    return bool(work.trouble)


async def _has_failing_entries(work: Work) -> bool:
    return bool(_failing(work))


async def _restart(work: Work) -> None:
    await work.client.command(f"SYSTEM RESTART REPLICA {work.table.quoted}")


async def _queue_is_stuck(work: Work) -> str:
    return work.trouble or _failing(work)


def _failing(work: Work) -> str:
    host = work.state.hosts[work.host]
    failing = [entry for entry in host.queue if entry.table == work.table and entry.exception]
    if not failing:
        return ""
    return (
        f"{count(len(failing), 'entry', 'entries')} of its queue failed, one with "
        f"{shortened(failing[0].exception)}"
    )


RESTART = Steps(needed=_has_trouble, do=_restart)
RETRY = Steps(needed=_has_failing_entries, do=_restart, still_wrong=_queue_is_stuck)


async def restart_host(site: Site, act: Act, wait_s: float) -> ActResult:
    """RESTART_REPLICAS: all tables of a host whose session is lost.

    Raises KeeperUnavailable when Keeper itself is away: a restart helps nobody then.
    """
    host = host_of(site, act.host)
    before = await _host_now(site, act.host)
    lost = [replica for replica in before.replicas if replica.is_session_expired]
    if lost:
        try:
            await site.client(host).command("SYSTEM RESTART REPLICAS")
        except ReplyLost:
            pass  # what is looked at now decides
    deadline_s = site.env.monotonic_s() + wait_s
    try:
        while True:
            now = await _host_now(site, act.host)
            still = [str(r.table) for r in now.replicas if r.is_session_expired or r.is_readonly]
            if not still:
                break
            if site.env.monotonic_s() >= deadline_s:
                return ActResult(
                    ActState.FAILED, f"After {wait_s:g} s these tables are still read-only: {listed(still)}."
                )
            await site.env.sleep(PAUSE_S)
        paths = {replica.path for replica in (lost or before.replicas) if replica.is_in_main_keeper}
        proof = await prove(site, paths, wait_s=wait_s)
    except Unavailable as error:
        raise OperationTimeout(f"What became of it could not be looked at: {error}") from error
    if not proof.is_equal:
        return ActResult(ActState.FAILED, f"Done, and not proven: {proof.words}")
    words = f"{len(paths)} tables have equal checksums on all their replicas that answer"
    return ActResult(ActState.DONE if lost else ActState.NOT_NEEDED, words)


async def _host_now(site: Site, name: str) -> HostFacts:
    await site.keeper.exists("/")
    found = await ask_host(site, host_of(site, name))
    if not found.is_answering:
        raise Unavailable(f"{name} does not answer: {found.error}")
    return found
