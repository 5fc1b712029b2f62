"""Replicas of one table in a simulation: disks that outlive processes, Keeper, the network, an observer.

Whoever writes a script starts the nodes, has things go wrong, uses the table (`replication_workload`), and
calls `finish`, which ends the faults, waits until the replicas are quiet and returns the history.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import Counter
from dataclasses import dataclass, replace
from uuid import UUID

from engine.errors import OnclusterError
from engine.keeper.base import Create, Op
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.keeper.tree import Caller
from engine.names import TableName
from engine.replication.columns import Columns
from engine.replication.commands.create import create_replica
from engine.replication.commands.drop import drop_replica
from engine.replication.creation import NewReplica, later_nodes, leader_election_ops, replica_ops, table_ops
from engine.replication.host import ReplicaHost
from engine.replication.part_name import PartName
from engine.replication.part_store import PartStore
from engine.replication.paths import ReplicaPaths, TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue import ReplicaQueue
from engine.replication.replicated_table import ReplicatedTable
from engine.replication.settings import ReplicatedSettings
from engine.testing.keeper_history import ObservedTree
from engine.testing.replication_disk import Damage, StoreDisk, model_definition
from engine.testing.replication_history import History, SeenStaged, SeenVisible
from engine.testing.replication_isolation import Isolation
from engine.testing.replication_loss import KeeperLoss
from engine.testing.replication_network import MemoryPartNetwork, NetworkFaults
from engine.testing.replication_quiet import damaged_parts, final_state, unrest
from engine.testing.replication_rows import Rows
from engine.testing.replication_scenario import Scenario
from engine.testing.replication_store import MemoryPartStore, Origin, Staged, StoreFaults, Visible
from engine.testing.simulated_process import GatedEnv, Process, gated_factory
from engine.testing.simulation import SimulationEnv

SESSION_TIMEOUT_S = 6.0
ROOT = "/clickhouse/tables/t"
TABLE = TableName("d", "t")
SOURCE_TABLE = TableName("d", "source")
_SETTLING_S = 2 * 3600.0


class Recreation(enum.Enum):
    """What is left to do of a DROP TABLE with a CREATE TABLE behind it."""

    NOTHING = "nothing"
    DROP = "drop"
    CREATE = "create"


@dataclass(slots=True)
class SimulatedNode:
    """A machine: its disks, and the process that runs now, if any."""

    name: str
    number: int
    me: ReplicaPaths
    env: SimulationEnv
    disk: StoreDisk
    source_disk: StoreDisk
    faults: StoreFaults
    process: Process | None = None
    ctx: ReplicaContext | None = None
    table: ReplicatedTable | None = None
    store: MemoryPartStore | None = None
    incarnation: int = 0
    recreation: Recreation = Recreation.NOTHING
    cut_off_since: int | None = None
    """Since when (a moment of the history) Keeper cannot be reached."""

    @property
    def is_being_recreated(self) -> bool:
        return self.recreation is not Recreation.NOTHING

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive


class ReplicationCluster:
    """Nodes `n1`, `n2`, … with one replica each of one table, and a plain table of equal structure."""

    def __init__(self, scenario: Scenario, env: SimulationEnv, reached: Counter[str]) -> None:
        self.scenario = scenario
        self.env = env
        self.rng = random.Random(f"replication {scenario.seed}")
        self.reached = reached
        self.paths = TablePaths(ROOT)
        self.history = History(paths=self.paths)
        self.plan = FaultPlan.rough(random.Random(f"faults {scenario.seed}"), rate=scenario.fault_rate)
        self.server = MemoryKeeperServer(
            env, faults=self.plan, latency_s=(scenario.keeper_latency_s / 20, scenario.keeper_latency_s)
        )
        self.server.tree = ObservedTree(self.history, env.now_s)
        self.network = MemoryPartNetwork(env, NetworkFaults(random.Random(f"network {scenario.seed}")))
        if scenario.has_damaged_transfers:
            self.network.faults.damaged = self.network.faults.broken_off = 0.1
        self.settings = settings_of(scenario)
        self.kills = list(scenario.kill_gates)
        self.is_calm = False
        self.zombies: list[asyncio.Task[object]] = []
        self.inserted: dict[tuple[str, Rows], list[PartName]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.loss = KeeperLoss(self)
        self.isolation = Isolation(self)
        for number in range(1, scenario.replicas + 1):
            self._make_node(number)
        self._create_table()

    # --- the table ----------------------------------------------------------------------------------------

    def _make_node(self, number: int) -> None:
        name = f"n{number}"
        faults = StoreFaults(random.Random(f"disk {self.scenario.seed} {name}"))
        if self.scenario.has_full_disks and number == 1:
            faults.disk_full = 0.1
        if self.scenario.has_killed_publishers:
            faults.kill_at_publish = 0.2
        if self.scenario.has_slow_replica and number == 2:
            faults.write_s = (0.0, 4.0)
        if self.scenario.has_damaged_transfers:
            faults.damage_sent = 0.05
        self.nodes[name] = SimulatedNode(
            name,
            number,
            self.paths.replica(f"r{number}"),
            self.env.fork(),
            StoreDisk(model_definition()),
            StoreDisk(model_definition()),
            faults,
        )

    def new_replica(self, node: SimulatedNode) -> NewReplica:
        definition = node.disk.definition
        return NewReplica(
            definition.metadata.to_bytes(),
            definition.columns.to_bytes(),
            UUID(int=7),
            UUID(int=node.number),
        )

    def _create_table(self) -> None:
        """As if every node had said CREATE TABLE, one after another, long ago."""
        for depth in range(1, ROOT.count("/")):
            self.write([Create("/" + "/".join(ROOT.strip("/").split("/")[:depth]))])
        for node in self.nodes.values():
            new = self.new_replica(node)
            if node.number == 1:
                self.write(table_ops(self.paths, node.me, new))
                for op in later_nodes(self.paths, new):
                    if op.path not in self.server.tree.nodes:
                        self.write([op])
                self.write(leader_election_ops(self.paths))
            else:
                stat = self.server.tree.exists(self.paths.replicas, self._nobody)
                assert stat is not None
                ops = replica_ops(
                    self.paths,
                    node.me,
                    new,
                    replica_count=stat.num_children,
                    replicas_version=stat.version,
                )
                self.write(ops)

    @property
    def _nobody(self) -> Caller:
        return Caller(0, frozenset(), int(self.env.now_s() * 1000))

    def write(self, ops: list[Op] | tuple[Op, ...]) -> None:
        """Straight into the tree, by nobody's session; watches fire as for every write."""
        self.server.tree.multi(ops, self._nobody)
        self.server._fire()

    # --- processes ----------------------------------------------------------------------------------------

    def start_all(self) -> None:
        for node in self.nodes.values():
            self.start(node)

    def start(self, node: SimulatedNode) -> None:
        """A new process on the node; perhaps one that will be killed at some gate."""
        node.incarnation += 1
        kill_at = self.kills.pop() if self.kills and not self.is_calm else None
        client = f"{node.name}/{node.incarnation}"
        process = node.process = Process(client, kill_at=kill_at, on_kill=lambda: self._on_kill(node))
        node.cut_off_since = None if self.server.is_up else self.history.tick()
        env = GatedEnv(node.env, process)
        opening = self.server.factory(session_timeout_s=SESSION_TIMEOUT_S, client=client)
        node.store = self._store(node, env, process)
        source = MemoryPartStore(node.source_disk, env, process=process)

        def other_table(database: str, table: str) -> PartStore | None:
            if (database, table) == (SOURCE_TABLE.database, SOURCE_TABLE.table):
                return source
            return None

        self.network.attach(node.name, node.me, node.store, process=process)
        holder = SessionHolder(gated_factory(opening, process), env)
        node.ctx = ReplicaContext(
            name=TABLE,
            paths=self.paths,
            me=node.me,
            env=env,
            holder=holder,
            store=node.store,
            fetcher=self.network.fetcher(node.name),
            host=ReplicaHost(node.name, 9009, 9000, TABLE.database, TABLE.table),
            server_uuid=str(UUID(int=node.number)),
            settings=self.settings,
            queue=ReplicaQueue(),
            other_table=other_table,
        )
        node.table = ReplicatedTable(node.ctx)
        process.spawn(self._run(node, node.table), name=f"node {client}")

    async def _run(self, node: SimulatedNode, table: ReplicatedTable) -> None:
        try:
            await self.recreate(node)
            await table.start()
        except OnclusterError as error:
            self.history.notes.append(f"{node.name} does not start: {error}")
            raise

    async def recreate(self, node: SimulatedNode) -> None:
        """DROP TABLE and CREATE TABLE as a user who says each again until it works."""
        assert node.ctx is not None
        ctx = node.ctx
        while node.recreation is not Recreation.NOTHING:
            try:
                keeper = await ctx.holder.get()
                if node.recreation is Recreation.DROP and not self.loss.can_go_on_without(node):
                    node.recreation = Recreation.NOTHING  # nobody drops the only replica that has the data
                    return
                if node.recreation is Recreation.DROP:
                    await drop_replica(keeper, ctx.paths, ctx.me)
                    self.history.wiped.append((self.history.tick(), node.me.name))
                    self.history.disks_lost.setdefault(node.me.name, []).append(self.history.clock)
                    for place in (node.disk.active, node.disk.staged, node.disk.broken):
                        place.clear()
                    node.disk.detached.clear()
                    node.recreation = Recreation.CREATE
                columns = Columns.from_bytes((await keeper.get(ctx.paths.columns)).data)
                node.disk.definition = replace(node.disk.definition, columns=columns)
                await create_replica(keeper, ctx.paths, ctx.me, self.new_replica(node), node.disk.definition)
                node.recreation = Recreation.NOTHING
                self.reached["replica dropped and created"] += 1
            except OnclusterError as error:
                self.reached[f"recreation failed with {error.code}"] += 1
                await ctx.env.sleep(1.0)

    def _store(self, node: SimulatedNode, env: GatedEnv, process: Process) -> MemoryPartStore:
        def on_visible(change: Visible) -> None:
            added = tuple((name, node.disk.active[name]) for name in change.added)
            self.history.visible.append(
                SeenVisible(self.history.tick(), node.me.name, added, change.removed, change.active)
            )

        def on_staged(staged: Staged) -> None:
            self.history.staged.append(
                SeenStaged(self.history.tick(), node.me.name, staged.name, staged.origin, staged.content)
            )
            self.reached[f"staged {staged.origin.value}"] += 1
            if staged.origin is Origin.INSERTED:
                rows = staged.content.rows(str(staged.name))
                self.inserted.setdefault((staged.name.partition_id, rows), []).append(staged.name)

        return MemoryPartStore(
            node.disk, env, process=process, faults=node.faults, on_visible=on_visible, on_staged=on_staged
        )

    def _on_kill(self, node: SimulatedNode) -> None:
        """kill −9. The node starts again some time later."""
        self.reached["killed"] += 1
        assert node.process is not None
        # Nobody holds what waits for a dead session, and a task that is collected while it waits is an error.
        self.zombies += self.env.loop.unfinished_tasks()
        self.server.crash_client(node.process.name)
        node.process.cancel_tasks(self.env.loop)
        if not self.is_calm:
            asyncio.get_running_loop().call_later(self.rng.uniform(0.1, 20.0), self.restart, node)

    def restart(self, node: SimulatedNode) -> None:
        if not node.is_running:
            self.start(node)

    # --- what goes wrong ----------------------------------------------------------------------------------

    def stop_for_a_while(self, node: SimulatedNode, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: its session may be over by then, and it does not know."""
        process = node.process
        assert process is not None
        self.reached["stopped"] += 1
        process.stop()
        self.cut_off_from_keeper(node, for_s)
        asyncio.get_running_loop().call_later(for_s, process.go_on)

    def cut_off_from_keeper(self, node: SimulatedNode, for_s: float) -> None:
        process = node.process
        assert process is not None
        if node.cut_off_since is not None:
            return
        self.server.partition(process.name)
        node.cut_off_since = self.history.tick()

        def heal() -> None:
            self.server.heal(process.name)
            if node.process is process:
                node.cut_off_since = None

        asyncio.get_running_loop().call_later(for_s, heal)

    async def restart_keeper(self, down_s: float) -> None:
        self.reached["keeper restart"] += 1
        for node in self.nodes.values():
            node.cut_off_since = node.cut_off_since or self.history.tick()
        await self.server.restart(down_s=down_s)
        for node in self.nodes.values():
            if node.process is None or node.process.name not in self.server.network.partitions:
                node.cut_off_since = None

    def harm(self, node: SimulatedNode) -> None:
        """A part on this disk is damaged, if another replica has it whole."""
        names = [
            name
            for name in sorted(node.disk.active)
            if any(
                name in other.disk.active
                and name not in damaged_parts(other)
                and other.me.part(name) in self.server.tree.nodes
                for other in self.nodes.values()
                if other is not node
            )
        ]
        if names:
            name = self.rng.choice(names)
            self.reached["damaged on disk"] += 1
            node.disk.damage(name, self.rng.choice(list(Damage)), self.rng.getrandbits(30))
            self.history.harmed.append((self.history.tick(), node.me.name, name))

    def lose_disk(self, node: SimulatedNode) -> None:
        """All parts of a node are gone, and its process with them."""
        self.reached["disk lost"] += 1
        self.history.wiped.append((self.history.tick(), node.me.name))
        self.history.disks_lost.setdefault(node.me.name, []).append(self.history.clock)
        node.disk.active.clear()
        node.disk.staged.clear()
        node.disk.detached.clear()
        if node.process is not None:
            node.process.kill()

    # --- what can be seen from outside --------------------------------------------------------------------

    def holders(self, partition_id: str, rows: Rows) -> frozenset[str]:
        """Replicas that have these rows on disk under a name that Keeper knows."""
        names = self.inserted.get((partition_id, rows), [])
        found = set()
        for node in self.nodes.values():
            for held in (*node.disk.active, *node.disk.staged):
                is_around = any(
                    held.partition_id == name.partition_id
                    and held.min_block <= name.min_block
                    and name.max_block <= held.max_block
                    for name in names
                )
                if is_around and node.me.part(held) in self.server.tree.nodes:
                    found.add(node.me.name)
        return frozenset(found)

    def children(self, path: str) -> list[str]:
        if path not in self.server.tree.nodes:
            return []
        return sorted(self.server.tree.children(path, self._nobody).names)

    # --- the end ------------------------------------------------------------------------------------------

    async def finish(self) -> History:
        """End the faults, start what is down, wait until the replicas are quiet, and write down what is."""
        self.calm_down()
        await self._settle()
        self.loss.stop()
        for node in self.nodes.values():
            self.history.final[node.me.name] = final_state(self, node)
        for node in self.nodes.values():
            if node.process is not None:
                node.process.is_alive = False
                node.process.cancel_tasks(self.env.loop)
        return self.history

    def calm_down(self) -> None:
        self.is_calm = True
        self.isolation.stop()
        self.plan.calm()
        self.network.faults.calm()
        self.network.heal_all()
        if not self.server.is_up:
            self.server.start()
        for node in self.nodes.values():
            node.faults.calm()
            node.cut_off_since = None
            if node.process is not None:
                self.server.heal(node.process.name)
                node.process.go_on()
                node.process.kill_at = None
            self.restart(node)

    async def _settle(self) -> None:
        """Until nothing changes any more, or time is up."""
        waited_s, quiet, found = 0.0, 0, ""
        while waited_s < _SETTLING_S and quiet < 3:
            await self.env.sleep(10.0)
            waited_s += 10.0
            self._report_damage()
            found = unrest(self)
            quiet = 0 if found else quiet + 1
        if quiet < 3:
            self.history.notes.append(f"not quiet after {waited_s:g} s: {found}")

    def _report_damage(self) -> None:
        """Readers meet damaged parts, and a replica that meets one checks it."""
        for node in self.nodes.values():
            for name in damaged_parts(node):
                if node.ctx is not None and name not in node.ctx.parts_to_check:
                    node.ctx.check_later(name)


def settings_of(scenario: Scenario) -> ReplicatedSettings:
    """Quick loops; a short log where the scenario wants one."""
    longest, shortest = (4, 1) if scenario.has_short_log else (1000, 10)
    if scenario.has_long_absence:
        longest, shortest = 2, 1
    return ReplicatedSettings(
        max_replicated_logs_to_keep=longest,
        min_replicated_logs_to_keep=shortest,
        cleanup_delay_period=5.0,
        cleanup_delay_period_random_add=2.0,
        max_cleanup_delay_period=10.0,
        merge_selecting_sleep_ms=1000 if scenario.has_merges else 3_600_000,
        max_merge_selecting_sleep_ms=4000 if scenario.has_merges else 3_600_000,
        old_parts_lifetime=20.0,
        max_delay_to_insert=0.0,
    )
