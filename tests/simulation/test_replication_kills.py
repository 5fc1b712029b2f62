"""kill −9 at every step of an operation on replicated tables, one run for each step.

A run without a kill tells the steps of the process that is to be killed: it passes a gate before and after
each request to Keeper and each write to its disk. What differs between two gates is what Keeper and the disk
hold; so of several gates with the same of both one is as good as the others, and the process is killed at the
first. `ONCLUSTER_SEEDS=2` kills at every gate.

After the kill the node starts again, before or after its old session is over, the user repeats what was not
acknowledged, and the replicas have to keep every promise (`engine.testing.replication.checkers`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.replication.commands.alter import alter_table
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.commands.waiting import Sync
from engine.replication.part_name import PartName
from engine.replication.replica import startup_check
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.switches import Activity
from engine.testing.replication.checkers import violations
from engine.testing.replication.cluster import ReplicationCluster
from engine.testing.replication.history import History, Outcome
from engine.testing.replication.node import SimulatedNode
from engine.testing.replication.quiet import unrest
from engine.testing.replication.scenario import Scenario
from engine.testing.replication.steps import Block
from engine.testing.replication.workload import Workload
from engine.testing.simulation import SimulationEnv, run_simulation
from engine.testing.simulation_report import Violation, counting_events
from tests.few import few_first

pytestmark = pytest.mark.slow

SEED = 7
LONG_LOG = Scenario(SEED, replicas=3, has_merges=False)
SHORT_LOG = Scenario(SEED, replicas=3, has_merges=False, has_short_log=True)
LONGEST_S = 300.0
IS_EVERY_GATE = int(os.environ.get("ONCLUSTER_SEEDS", "1")) > 1


@dataclass
class Scene:
    """Three replicas, and the process that is to be killed."""

    cluster: ReplicationCluster
    workload: Workload
    kill_at: int | None
    steps: list[int] = field(default_factory=list)
    """Gates, counted from the beginning of the operation, at which something had changed."""
    blocks: int = 0
    is_over: bool = False
    _last: object = None

    def node(self, name: str) -> SimulatedNode:
        return self.cluster.nodes[name]

    def watch(self, name: str) -> None:
        """From now on the process on this node is the one to be killed, at the gate chosen."""
        node = self.node(name)
        process = node.process
        assert process is not None
        begun = process.gates
        if self.kill_at is not None:
            process.kill_at = begun + self.kill_at

        def passed(gate: int) -> None:
            disk = node.disk
            places = (disk.active, disk.staged, disk.temporary, disk.detached, disk.broken)
            state = (
                len(self.cluster.history.transactions),
                [[(name, id(stored)) for name, stored in place.items()] for place in places],
                disk.definition,
            )
            if (state != self._last or IS_EVERY_GATE) and not self.is_over:
                self.steps.append(gate - begun)
            self._last = state

        process.on_gate = passed

    async def insert(self, name: str, *, quorum: int = 0, again: str = "") -> None:
        """Of one row; if it is not acknowledged, `again` is where it is repeated."""
        self.blocks += 1
        options = InsertOptions(quorum=quorum, quorum_timeout_s=30.0)
        block = Block(self.blocks, "1", [{"k": self.blocks, "v": 0}], options)
        outcome = await self.workload._attempt(self.node(name), block)
        while outcome is not Outcome.OK and again:
            await self.cluster.env.sleep(1.0)
            outcome = await self.workload._attempt(self.node(again), block)

    async def do(self, name: str, what: str, operation: Callable[[Any], Awaitable[object]]) -> Outcome:
        """A user's statement on a node."""
        node = self.node(name)

        async def run() -> object:
            return await operation(node.ctx)

        outcome, _ = await self.workload._on(node, what, run())
        return outcome

    async def quiet(self) -> None:
        """Until nothing is to be done, and nobody restores anything; or for long enough."""
        waited_s = 0.0
        while waited_s < LONGEST_S and unrest(self.cluster):
            await self.cluster.env.sleep(1.0)
            waited_s += 1.0

    async def until(self, condition: Callable[[], bool]) -> None:
        waited_s = 0.0
        while not condition():
            assert waited_s < LONGEST_S
            await self.cluster.env.sleep(0.5)
            waited_s += 0.5


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Operation:
    """`reached` is what the run without a kill must have come to; `least` its least number of steps."""

    act: Act
    reached: str
    least: int
    scenario: Scenario = LONG_LOG


# -- the operations ------------------------------------------------------------------------------------------


async def insert(scene: Scene) -> None:
    scene.watch("n1")
    await scene.insert("n1", again="n2")


async def insert_with_quorum(scene: Scene) -> None:
    scene.watch("n1")
    await scene.insert("n1", quorum=2, again="n2")


async def insert_with_quorum_fetched(scene: Scene) -> None:
    scene.watch("n2")
    scene.node("n3").process.kill()  # type: ignore[union-attr]
    await scene.insert("n1", quorum=2, again="n1")


async def fetch(scene: Scene) -> None:
    """Straight from the log."""
    scene.watch("n2")
    await scene.insert("n1")


async def fetch_by_the_queue(scene: Scene) -> None:
    """More entries than are fetched straight from the log."""
    behind = scene.node("n2").ctx
    assert behind is not None
    behind.switches.stop(Activity.PULLING)
    for _ in range(6):
        await scene.insert("n1")
    scene.watch("n2")
    behind.switches.start(Activity.PULLING)
    behind.log_changed.set()


def merge_killing(victim: str) -> Act:
    async def merge(scene: Scene) -> None:
        for name in ("n1", "n2", "n1"):
            await scene.insert(name)
        await scene.quiet()
        scene.watch(victim)
        final = OptimizeOptions(extent=Extent.FINAL, sync=Sync.ALL, inactive_timeout_s=5.0)
        await scene.do("n1", "optimize", lambda ctx: optimize(ctx, final))

    return merge


def mutation_killing(victim: str) -> Act:
    async def mutation(scene: Scene) -> None:
        for name in ("n1", "n2"):
            await scene.insert(name)
        await scene.quiet()
        scene.watch(victim)

        async def update(ctx: Any) -> None:
            number = await create_mutation(ctx, "UPDATE v = 5 WHERE 1")
            await wait_for_mutation(ctx, number, sync=Sync.ALL, inactive_timeout_s=5.0)

        await scene.do("n1", "mutation", update)

    return mutation


def alter_killing(victim: str) -> Act:
    async def alter(scene: Scene) -> None:
        await scene.do("n1", "alter", lambda ctx: alter_table(ctx, "ADD COLUMN c UInt64", sync=Sync.ALL))
        for name in ("n1", "n2"):
            await scene.insert(name)
        await scene.quiet()
        scene.watch(victim)
        drop = "DROP COLUMN c"
        await scene.do(
            "n1", "alter", lambda ctx: alter_table(ctx, drop, sync=Sync.ALL, inactive_timeout_s=5.0)
        )

    return alter


def restore_killing(victim: str, *, of_table: bool) -> Act:
    """The person at each node says SYSTEM RESTORE REPLICA until it is done."""

    async def restore(scene: Scene) -> None:
        for name in ("n1", "n2", "n1"):
            await scene.insert(name)
        await scene.quiet()
        nodes = list(scene.cluster.nodes.values()) if of_table else [scene.node(victim)]
        scene.watch(victim)
        scene.cluster.loss.lose(nodes, is_everything=of_table, are_sessions_lost=True)

    return restore


async def clone(scene: Scene) -> None:
    node = scene.node("n3")
    await scene.insert("n3")
    await scene.quiet()
    assert node.process is not None
    node.is_kept_down = True
    node.process.kill()
    tree = scene.cluster.server.tree

    while tree.nodes[node.me.is_lost].data != b"1":
        await scene.insert("n1")
        await scene.cluster.env.sleep(5.0)
    node.is_kept_down = False
    scene.cluster.start(node)
    scene.watch("n3")


OPERATIONS = {
    "insert": Operation(insert, "insert ok", 6),
    "insert with a quorum": Operation(insert_with_quorum, "replication.quorum_reached", 6),
    "fetch for a quorum": Operation(insert_with_quorum_fetched, "replication.quorum_reached", 4),
    "fetch": Operation(fetch, "replica.fetched_directly", 4),
    "fetch by the queue": Operation(fetch_by_the_queue, "replica.fetched", 10),
    "merge where it is assigned": Operation(merge_killing("n1"), "staged merged", 6),
    "merge elsewhere": Operation(merge_killing("n2"), "staged merged", 5),
    "mutation where it is made": Operation(mutation_killing("n1"), "staged mutated", 8),
    "mutation elsewhere": Operation(mutation_killing("n2"), "staged mutated", 6),
    "alter where it is made": Operation(alter_killing("n1"), "replica.altered", 8),
    "alter elsewhere": Operation(alter_killing("n2"), "replica.altered", 6),
    "restore of the table": Operation(restore_killing("n1", of_table=True), "replica restored", 15),
    "restore of a replica": Operation(restore_killing("n2", of_table=False), "replica restored", 8),
    "clone": Operation(clone, "replica.cloned", 10, SHORT_LOG),
}


@dataclass(frozen=True)
class Result:
    steps: list[int]
    reached: dict[str, int]
    violations: list[Violation]


def play(operation: Operation, kill_at: int | None = None, *, away_s: float = 0.0) -> Result:
    """A killed process is away for so long."""
    steps: list[int] = []
    with counting_events("engine.replication") as reached:

        async def main(env: SimulationEnv) -> History:
            cluster = ReplicationCluster(operation.scenario, env, reached)
            cluster.away_s = (away_s, away_s)
            scene = Scene(cluster, Workload(cluster), kill_at, steps)
            cluster.start_all()
            await scene.quiet()
            await operation.act(scene)
            await scene.quiet()
            scene.is_over = True
            return await cluster.finish()

        history = run_simulation(SEED, main, max_steps=300_000)
    return Result(steps, dict(reached), violations(history))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("away_s", few_first([0.5, 15.0], few=1))
def test_a_kill_at_any_step_breaks_no_promise(name: str, away_s: float) -> None:
    operation = OPERATIONS[name]
    whole = play(operation)
    assert not whole.violations
    assert whole.reached.get(operation.reached)
    assert len(whole.steps) >= operation.least
    already = whole.reached.get("killed", 0)
    for gate in whole.steps:
        killed = play(operation, gate, away_s=away_s)
        assert killed.reached.get("killed", 0) == already + 1, f"not killed at gate {gate}"
        assert not killed.violations, f"killed at gate {gate}: {killed.violations}"
    print(f"{name}: killed at {len(whole.steps)} gates, the last of which is {whole.steps[-1]}")


def test_a_start_that_throws_away_what_keeper_knows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(ctx: ReplicaContext, expected: frozenset[PartName]) -> None:
        for part in sorted(ctx.store.staged):
            await ctx.store.discard(part)

    monkeypatch.setattr(startup_check, "_settle_staged", settle)
    operation = OPERATIONS["insert"]
    broken = [gate for gate in play(operation).steps if play(operation, gate, away_s=0.5).violations]
    assert broken
