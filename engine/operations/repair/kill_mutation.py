"""KILL MUTATION: a mutation that fails again and again is removed, for all replicas of the table.

Safety argument. Looked at anew: it is not done, and it fails. A mutation that has recovered meanwhile is left
alone. One statement removes one node of Keeper; all replicas forget the mutation. Parts that it has changed
stay changed, the others stay as they were, on every replica alike. Repeatable.
"""

from __future__ import annotations

from engine.names import quote_string
from engine.operations.health.facts import MutationFacts
from engine.operations.repair.performing import Steps, Work


def _seen(work: Work) -> list[MutationFacts]:
    return [
        mutation
        for host in work.state.hosts.values()
        for mutation in host.mutations
        if mutation.mutation_id == work.act.payload["mutation_id"]
        and (replica := host.replica(mutation.table)) is not None
        and replica.path == work.path
    ]


async def _is_failing(work: Work) -> bool:
    return any(mutation.fail_reason for mutation in _seen(work))


async def _kill(work: Work) -> None:
    await work.client.command(
        f"KILL MUTATION WHERE database = {quote_string(work.table.database)} "
        f"AND table = {quote_string(work.table.table)} "
        f"AND mutation_id = {quote_string(str(work.act.payload['mutation_id']))}"
    )


async def _is_still_there(work: Work) -> str:
    return f"{len(_seen(work))} replicas still have the mutation" if await _is_failing(work) else ""


KILL = Steps(needed=_is_failing, do=_kill, still_wrong=_is_still_there)
