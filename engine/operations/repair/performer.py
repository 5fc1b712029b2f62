"""Which steps an act of the operation `repair` takes."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.operations.act import Act, ActResult, ActState
from engine.operations.carrying_out import Performer
from engine.operations.repair.force_restore import FORCE_RESTORE, take_back
from engine.operations.repair.kill_mutation import KILL
from engine.operations.repair.kinds import Repair
from engine.operations.repair.performing import Steps, Work, perform
from engine.operations.repair.reclone import RECLONE
from engine.operations.repair.refetch import REFETCH
from engine.operations.repair.restart import RESTART, RETRY, restart_host
from engine.operations.repair.restore import RESTORE
from engine.operations.repair.shard import TableState
from engine.operations.site import Site

_STEPS: dict[Repair, Steps] = {
    Repair.RESTART_REPLICA: RESTART,
    Repair.RETRY_QUEUE: RETRY,
    Repair.RESTORE_REPLICA: RESTORE,
    Repair.FORCE_RESTORE_DATA: FORCE_RESTORE,
    Repair.REFETCH_PARTS: REFETCH,
    Repair.KILL_MUTATION: KILL,
    Repair.RECLONE_REPLICA: RECLONE,
}


def repair_performer(site: Site, *, wait_s: float | None = None) -> Performer:
    """What `carry_out` needs. Each repair is waited for, and proven, for `wait_s` seconds at most; by default
    the configuration's `repair_wait_s`."""
    limit_s = float(site.config.health.repair_wait_s if wait_s is None else wait_s)

    async def perform_one(act: Act) -> ActResult:
        try:
            repair = Repair(act.kind)
        except ValueError:
            known = ", ".join(sorted(Repair))
            raise ConfigError(f"There is no repair {act.kind!r}.", hint=f"There are: {known}.") from None
        if repair is Repair.RESTART_REPLICAS:
            return await restart_host(site, act, limit_s)
        work = Work(site, act, limit_s, TableState(str(act.payload["path"]), False, {}, {}))
        result = await perform(work, _STEPS[repair])
        if repair is Repair.FORCE_RESTORE_DATA and result.state is ActState.FAILED and work.trouble:
            await take_back(work)
        return result

    return perform_one
