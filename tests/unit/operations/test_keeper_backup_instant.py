"""The claim of a backup, under faults and while others write: all but the nodes that it names as changing are
as they were at one instant. Every state that the tree ever had is kept; the backup has to be one of them."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import KeeperAnswer, KeeperUnavailable, UnknownOutcome
from engine.keeper.base import Create, Remove
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.operations.keeper_backup import PatientKeeper, dump_tree, live, open_backup
from engine.testing.simulation import run_simulation

SEEDS = range(24)
NAMES = "abcd"


def state_of(server):
    return {path: (node.data, node.version, node.cversion) for path, node in server.tree.nodes.items()}


def kept_states(server):
    """Filled with each state of the tree, from the present one on."""
    states = [state_of(server)]
    fire = server._fire

    def fire_and_keep():
        fire()
        states.append(state_of(server))

    server._fire = fire_and_keep
    return states


async def write_at_random(server, rng, env, *, pause_s):
    """Until it is cancelled; the writer meets the same faults."""
    keeper = await server.connect(client="writer")
    while True:
        if keeper.is_expired:
            keeper = await server.connect(client="writer")
        path = "".join(f"/{rng.choice(NAMES)}" for _ in range(rng.randint(1, 3)))
        data = str(rng.random()).encode()
        try:
            match rng.randint(0, 3):
                case 0:
                    await keeper.create(path, data)
                case 1:
                    await keeper.set(path, data)
                case 2:
                    await keeper.remove(path)
                case _:
                    await keeper.multi([Create(path, data), Remove(f"/{rng.choice(NAMES)}")])
        except (KeeperAnswer, UnknownOutcome):
            pass
        await env.sleep(rng.uniform(0, pause_s))


def backed_up(tmp_path, seed, *, pause_s, rate):
    """(facts, the backup's nodes, all states of the tree)"""

    async def main(env):
        rng = random.Random(seed)
        plan = FaultPlan.rough(rng, rate=rate)
        plan.is_calm = True
        server = MemoryKeeperServer(env.fork(), latency_s=(0.0005, 0.004), faults=plan)
        keeper = await server.connect(client="writer")
        for first in NAMES:
            await keeper.create(f"/{first}", b"begin")
            for second in NAMES:
                await keeper.create(f"/{first}/{second}", b"begin")
        states = kept_states(server)
        writer = asyncio.ensure_future(write_at_random(server, rng, env, pause_s=pause_s))
        plan.is_calm = False
        path = tmp_path / f"b{seed}-{pause_s}"
        facts = None
        for _ in range(50):  # each call continues what the one before has left
            try:
                async with PatientKeeper(server.factory(client="backup"), env, patience_s=20) as source:
                    facts = await dump_tree(source, path, source_name="test", env=env, rounds=3)
                    break
            except KeeperUnavailable:
                pass
        plan.calm()
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        assert facts is not None
        nodes = {
            record.path: (record.data, record.stat.version, record.stat.cversion)
            async for record in open_backup(path).records()
        }
        return facts, nodes, states

    return run_simulation(seed, main)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(live, "BATCH_NODES", 5)


def is_state(nodes, state, changing):
    """Whether the backup is this state, but for the nodes that it names."""
    others = {path: node for path, node in state.items() if path not in changing}
    return {path: node for path, node in nodes.items() if path not in changing} == others


@pytest.mark.slow
def test_a_backup_is_one_state_of_the_tree_but_for_the_nodes_it_names(tmp_path):
    seen = set()
    for seed in SEEDS:
        for pause_s, rate in ((0.3, 0.03), (0.01, 0.0)):
            facts, nodes, states = backed_up(tmp_path, seed, pause_s=pause_s, rate=rate)
            changing = set(facts.changing)
            assert any(is_state(nodes, state, changing) for state in states), (seed, pause_s, changing)
            for path in nodes:
                assert path == "/" or (path.rpartition("/")[0] or "/") in nodes, (seed, path)
            seen.add("of one instant" if facts.is_of_one_instant else "changing")
            if facts.is_of_one_instant and facts.rounds > 1:
                seen.add("came to rest")
    # The interesting cases did happen.
    assert seen == {"of one instant", "changing", "came to rest"}
