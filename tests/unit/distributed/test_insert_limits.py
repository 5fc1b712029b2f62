"""INSERT into Distributed tables under virtual time: waiting for a full spool, pauses, timeouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from engine.distributed.delivery import CONNECT_TIMEOUT_S, Block, Deliveries, Policy
from engine.distributed.inserter import ForegroundInsert, ShardBlocks
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_table import SpoolBlock, SpoolLimits, SpoolOptions, TableSpool
from engine.errors import Code, NodeUnavailable, SqlError
from engine.names import HostId
from engine.node.distributed.inserts import _is_foreground
from engine.node.distributed.sending.policy import policy_settings, timeouts_of, without_policy
from engine.testing.simulation import SimulationEnv, run_simulation
from engine.testing.spool_disk import ModelDisk

DIRECTORY = "shard1_replica1"
TOO_MUCH_PENDING = 574
PEER = Peer(HostId("host", 9000), "host", 8123, shard_number=1, replica_number=1)


async def rows() -> AsyncIterator[bytes]:
    yield b"x" * 1000


async def spool_with(files: int) -> TableSpool:
    spool = TableSpool(ModelDisk(random.Random(1)), SpoolOptions())
    for _ in range(files):
        await spool.put([SpoolBlock((DIRECTORY,), FileHead("token", ("k",)), rows())])
    return spool


def test_an_insert_waits_until_enough_was_sent() -> None:
    async def main(env: SimulationEnv) -> None:
        spool = await spool_with(3)
        limits = SpoolLimits(delay_bytes=spool.pending_bytes() - 1, max_delay_s=60)

        async def sent() -> None:
            await env.sleep(7.1)
            spool.disk.remove(f"{DIRECTORY}/1.bin")

        sending = asyncio.create_task(sent())
        begun_s = env.monotonic_s()
        await spool.admit(limits, env)
        assert 7.1 <= env.monotonic_s() - begun_s < 7.5
        await sending
        await spool.admit(limits, env)
        assert env.monotonic_s() - begun_s < 7.5

    run_simulation(1, main)


def test_an_insert_that_waited_in_vain_is_refused() -> None:
    async def main(env: SimulationEnv) -> None:
        spool = await spool_with(2)
        begun_s = env.monotonic_s()
        with pytest.raises(SqlError, match="bytes_to_delay_insert") as refused:
            await spool.admit(SpoolLimits(delay_bytes=1500, max_delay_s=5), env)
        assert refused.value.code == TOO_MUCH_PENDING
        assert 5 <= env.monotonic_s() - begun_s < 5.5
        begun_s = env.monotonic_s()
        with pytest.raises(SqlError, match="bytes_to_throw_insert") as refused:
            await spool.admit(SpoolLimits(throw_bytes=1600, delay_bytes=1500), env)
        assert refused.value.code == TOO_MUCH_PENDING
        assert env.monotonic_s() == begun_s

    run_simulation(1, main)


def test_pauses_of_a_sender_double_up_to_the_cap_and_errors_are_halved() -> None:
    async def main(env: SimulationEnv) -> None:
        spool = await spool_with(1)
        asked_s: list[float] = []
        failures = 6

        async def deliver(out: Outgoing) -> None:
            asked_s.append(env.monotonic_s())
            if len(asked_s) <= failures:
                raise NodeUnavailable("down")

        options = SenderOptions(sleep_s=0.5, max_sleep_s=10)
        sender = DirectorySender(spool, DIRECTORY, deliver, env, options)
        running = asyncio.create_task(sender.run())
        await env.sleep(100)
        pauses = [later - earlier for earlier, later in pairwise(asked_s)]
        assert pauses == pytest.approx([1, 2, 4, 8, 10, 10])
        assert (sender.facts().error_count, sender.facts().data_files) == (6, 0)
        counts = []
        for _ in range(4):
            await env.sleep(300)
            counts.append(sender.facts().error_count)
        assert counts == [3, 1, 0, 0]
        running.cancel()

    run_simulation(1, main)


class SlowSink:
    def __init__(self, env: SimulationEnv) -> None:
        self._env = env
        self.written = 0

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        await self._env.sleep(5)
        self.written += 1


class BusySink:
    """No connection is made within a second."""

    def __init__(self, env: SimulationEnv) -> None:
        self._env = env
        self.tries = 0

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        self.tries += 1
        await self._env.sleep(CONNECT_TIMEOUT_S)
        raise NodeUnavailable("no connection within a second")


@pytest.mark.parametrize(("timeout_s", "tries"), [(0, 3), (9, 3), (2.5, 2), (1.5, 1)])
def test_what_was_never_sent_is_not_in_doubt_when_the_time_is_over(timeout_s: float, tries: int) -> None:
    async def main(env: SimulationEnv) -> None:
        sink = BusySink(env)
        insert = ForegroundInsert(
            Deliveries(sink, env, own_host="me"), env, policy=Policy(), timeout_s=timeout_s
        )
        work = [ShardBlocks(PeerShard(1, 1, True, (PEER,)), [Block("d", "t", ("k",), "token", rows)])]
        with pytest.raises(SqlError, match="All connection tries failed") as failed:
            await insert.write(work)
        assert failed.value.code == Code.ALL_CONNECTION_TRIES_FAILED
        assert sink.tries == tries

    run_simulation(1, main)


@pytest.mark.parametrize(("timeout_s", "is_late"), [(0, False), (6, False), (4, True)])
def test_a_foreground_insert_has_a_timeout(timeout_s: float, is_late: bool) -> None:
    async def main(env: SimulationEnv) -> None:
        sink = SlowSink(env)
        deliveries = Deliveries(sink, env, own_host="me")
        insert = ForegroundInsert(deliveries, env, policy=Policy(), timeout_s=timeout_s)
        work = [ShardBlocks(PeerShard(1, 1, True, (PEER,)), [Block("d", "t", ("k",), "token", rows)])]
        if is_late:
            with pytest.raises(SqlError, match=r"did not answer in time.*Wrote 0 blocks") as late:
                await insert.write(work)
            assert late.value.code == Code.TIMEOUT_EXCEEDED == 159
            assert deliveries.failures.count(PEER.name) == 1
            # Rows for this node itself are waited for: they are written, and said to be.
            here = [replace(work[0], shard=replace(work[0].shard, peers=(replace(PEER, is_local=True),)))]
            with pytest.raises(SqlError, match=r"timeout exceeded.*Wrote 1 blocks") as late:
                await insert.write(here)
            assert late.value.code == Code.TIMEOUT_EXCEEDED
        else:
            await insert.write(work)
        assert sink.written == 1

    run_simulation(1, main)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"insert_distributed_sync": "1"}, True),
        ({"insert_distributed_sync": "0"}, False),
        ({"distributed_foreground_insert": "1"}, True),
        ({"distributed_foreground_insert": "0", "insert_distributed_sync": "1"}, False),
        ({"distributed_foreground_insert": "1", "insert_distributed_sync": "0"}, True),
        ({"insert_shard_id": "2"}, True),
    ],
)
def test_the_old_name_of_foreground_inserts_is_known(settings: Mapping[str, str], expected: bool) -> None:
    assert _is_foreground(settings) is expected


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, (300, 300)),
        ({"send_timeout": "900", "receive_timeout": "7"}, (900, 7)),
        ({"send_timeout": "0"}, (300, 300)),
    ],
)
def test_a_block_may_be_on_its_way_as_long_as_the_statement_says(
    settings: dict[str, str], seconds: tuple[float, float]
) -> None:
    assert timeouts_of(settings) == seconds
    # What is sent later is sent as the INSERT said, and the receiver is not told.
    assert timeouts_of(policy_settings(settings)) == seconds
    assert without_policy(settings) == {}
