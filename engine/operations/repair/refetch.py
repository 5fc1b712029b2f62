"""CHECK TABLE: parts that cannot be read are set aside and fetched from another replica.

Safety argument. The other replicas are healthy, and one of them reads the table to its end before this one is
touched: what is broken here is whole there. The server compares each part with its checksums; a broken one
goes to `detached/broken_…`, is taken off Keeper's list and queued for a fetch in one transaction. A crash at
any point leaves a part that is missing or queued, and the server fetches it at its next start. Done again it
finds what is still broken.
"""

from __future__ import annotations

from engine.operations.health.gather import read_table
from engine.operations.repair.performing import Steps, Work
from engine.wording import count, shortened


async def _is_damaged(work: Work) -> bool:
    host = work.state.hosts[work.host]
    if any(entry.table == work.table and entry.exception for entry in host.queue):
        return True
    bad = await read_table(work.site, work.host, work.table)
    return bad is not None and bad.is_damage


async def _objection(work: Work) -> str:
    reasons = []
    for other in work.state.others(work.replica):
        if other.host is None or other.told is None:
            continue
        bad = await read_table(work.site, other.host, other.told.table)
        if bad is None:
            return ""
        reasons.append(f"{other.name}: {shortened(bad.error)}")
    return f"no other replica could be read whole: {'; '.join(reasons) or 'there is none'}"


async def _check(work: Work) -> None:
    await work.client.command(f"CHECK TABLE {work.table.quoted}")


async def _still_wrong(work: Work) -> str:
    told = work.state.replica(work.replica).told
    if work.trouble or told is None:
        return work.trouble
    if told.parts_to_check:
        return f"{count(told.parts_to_check, 'part')} to be checked"
    if told.queue_size:
        return f"its queue has {count(told.queue_size, 'entry', 'entries')}"
    bad = await read_table(work.site, work.host, work.table)
    return "" if bad is None else f"it cannot be read whole: {shortened(bad.error)}"


REFETCH = Steps(needed=_is_damaged, objection=_objection, do=_check, still_wrong=_still_wrong)
