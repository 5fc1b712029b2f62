"""Replicas with nothing to do wait for watches: they ask Keeper nothing, and are told at once."""

from __future__ import annotations

from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import Live, run

_HOUR_S = 3600.0


def _requests(live: Live) -> dict[str, int]:
    return {client: sum(counts.values()) for client, counts in live.server.operations.items()}


def test_only_cleanup_asks_keeper_anything_while_nothing_happens() -> None:
    async def main(live: Live) -> None:
        settings = ReplicatedSettings()
        replicas = await live.cluster(3, settings)
        for value in range(12):
            await replicas[value % 3].insert(value)
        await live.quiet()
        await live.env.sleep(2 * _HOUR_S)  # merges are made, old parts and entries removed

        before = _requests(live)
        await live.env.sleep(_HOUR_S)
        rounds = _HOUR_S / settings.max_cleanup_delay_period
        for replica in replicas:
            assert 0 < _requests(live)[replica.name] - before[replica.name] <= 8 * rounds

        for replica in replicas:
            replica.ctx.switches.stop(Activity.CLEANUP)
        await live.env.sleep(2 * settings.max_cleanup_delay_period)
        before = _requests(live)
        await live.env.sleep(_HOUR_S)
        assert _requests(live) == before

        asleep_s = live.env.monotonic_s()
        await replicas[0].insert(1000)
        while min(replica.keys()[-1] for replica in replicas) < 1000:
            await live.env.sleep(0.001)
        assert live.env.monotonic_s() - asleep_s < 0.1, (
            "in virtual time, in which nothing but waiting takes any"
        )

    run(main)
