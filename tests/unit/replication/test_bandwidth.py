"""Parts are sent and fetched no faster than the table's settings allow, by all transfers together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from engine.replication.bandwidth import Bandwidth, PacedReceiver
from engine.replication.part_name import PartName
from engine.replication.part_store import PartFile
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.store import MemoryPartStore
from engine.testing.simulation import SimulationEnv, run_simulation


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for number, size in enumerate(sizes):
        yield bytes([number]) * size


async def drained(bandwidth: Bandwidth, *sizes: int) -> list[bytes]:
    return [piece async for piece in bandwidth.pace(pieces(*sizes))]


def test_transfers_share_the_bandwidth_and_lose_no_byte() -> None:
    async def main(env: SimulationEnv) -> tuple[list[list[bytes]], float]:
        bandwidth = Bandwidth(env, lambda: 1000)
        came = await asyncio.gather(drained(bandwidth, 2500, 700), drained(bandwidth, 300, 0, 500))
        return came, env.monotonic_s()

    (first, second), took_s = run_simulation(1, main)
    assert b"".join(first) == bytes(2500) + b"\x01" * 700
    assert b"".join(second) == bytes(300) + b"\x02" * 500
    assert max(map(len, first)) == 1000
    # 4,000 bytes; the last piece waits for those before it, not for itself.
    assert 3.0 <= took_s <= 4.0


def test_time_in_which_nothing_was_sent_is_not_made_up_for() -> None:
    async def main(env: SimulationEnv) -> float:
        bandwidth = Bandwidth(env, lambda: 1000)
        await env.sleep(3600)
        began_s = env.monotonic_s()
        await drained(bandwidth, 5000, 1000)
        return env.monotonic_s() - began_s

    assert run_simulation(1, main) == 5.0


def test_without_a_limit_nothing_waits_and_a_new_limit_holds_at_once() -> None:
    limits = iter([0, 0, 100, 100, 100])

    async def main(env: SimulationEnv) -> tuple[list[int], float]:
        came = await drained(Bandwidth(env, lambda: next(limits)), 10_000, 50_000, 300)
        return list(map(len, came)), env.monotonic_s()

    assert run_simulation(1, main) == ([10_000, 50_000, 100, 100, 100], 2.0)


def test_a_part_that_is_received_slowly_is_the_part() -> None:
    name = PartName.parse("all_0_0_0")

    async def main(env: SimulationEnv) -> tuple[bytes, float]:
        store = MemoryPartStore(StoreDisk(model_definition()), env)
        async with PacedReceiver(store, Bandwidth(env, lambda: 10)).receive(name) as incoming:
            written = bytearray()

            async def noted() -> AsyncIterator[bytes]:
                async for piece in pieces(5, 40):
                    written.extend(piece)
                    yield piece

            await incoming.write(PartFile("data.bin", 45), noted())
        return bytes(written), env.monotonic_s()

    assert run_simulation(1, main) == (bytes(5) + b"\x01" * 40, 3.5)
