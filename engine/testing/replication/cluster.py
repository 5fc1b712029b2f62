"""Replicas of one table in a simulation: disks that outlive processes, Keeper, the network, an observer.

Whoever writes a script starts the nodes, has things go wrong, uses the table (`workload`), and
calls `finish`, which ends the faults, waits until the replicas are quiet and returns the history.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
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
from engine.replication.paths import TablePaths
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.queue.queue import ReplicaQueue
from engine.replication.replicated_table import ReplicatedTable
from engine.replication.settings import ReplicatedSettings
from engine.testing.keeper_history import ObservedTree
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.history import Definition, History, SeenStaged, SeenVisible
from engine.testing.replication.isolation import Isolation
from engine.testing.replication.loss import KeeperLoss
from engine.testing.replication.mishaps import Mishaps
from engine.testing.replication.network import MemoryPartNetwork, NetworkFaults
from engine.testing.replication.node import Recreation, SimulatedNode
from engine.testing.replication.quiet import damaged_parts, final_state, unrest
from engine.testing.replication.rows import Rows
from engine.testing.replication.scenario import Scenario
from engine.testing.replication.store import MemoryPartStore
from engine.testing.replication.store_events import Origin, Staged, StoreFaults, Visible
from engine.testing.simulated_process import GatedEnv, Process, gated_factory
from engine.testing.simulation import SimulationEnv

SESSION_TIMEOUT_S = 6.0
ROOT = "/clickhouse/tables/t"
TABLE = TableName("d", "t")
SOURCE_TABLE = TableName("d", "source")
_SETTLING_S = 2 * 3600.0


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
        faults = NetworkFaults(random.Random(f"network {scenario.seed}"), seen=self._note)
        self.network = MemoryPartNetwork(env, faults)
        if scenario.has_damaged_transfers:
            self.network.faults.damaged = self.network.faults.broken_off = 0.1
        self.settings = settings_of(scenario)
        self.kills = list(scenario.kill_gates)
        self.away_s = (0.1, 20.0)
        """How long a process that was killed is away, at least and at most."""
        self.is_calm = False
        self.zombies: list[asyncio.Task[object]] = []
        self.inserted: dict[tuple[str, Rows], list[PartName]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.loss = KeeperLoss(self)
        self.mishaps = Mishaps(self)
        self.isolation = Isolation(self)
        for number in range(1, scenario.replicas + 1):
            self._make_node(number)
        self._create_table()

    # --- the table ----------------------------------------------------------------------------------------

    def _make_node(self, number: int) -> None:
        name = f"n{number}"
        faults = StoreFaults(random.Random(f"disk {self.scenario.seed} {name}"))
        faults.seen = self._note
        if self.scenario.has_full_disks and number == 1:
            faults.disk_full = 0.1
        if self.scenario.has_io_errors and number == 3:
            faults.io_error = 0.1
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

    def _note(self, what: str) -> None:
        self.reached[what] += 1

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

        node.address = node.address or node.name
        self.network.attach(node.name, node.me, node.store, process=process, address=node.address)
        holder = SessionHolder(gated_factory(opening, process), env)
        node.ctx = ReplicaContext(
            name=TABLE,
            paths=self.paths,
            me=node.me,
            env=env,
            holder=holder,
            store=node.store,
            fetcher=self.network.fetcher(node.name),
            host=ReplicaHost(node.address, 9009, 9000, TABLE.database, TABLE.table),
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
            asyncio.get_running_loop().call_later(self.rng.uniform(*self.away_s), self.restart, node)

    def restart(self, node: SimulatedNode) -> None:
        if not node.is_running and not node.is_kept_down:
            self.start(node)

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
        nodes = self.server.tree.nodes
        if self.paths.columns in nodes:
            self.history.definition = Definition(
                nodes[self.paths.columns].data, nodes[self.paths.metadata].data
            )
        for node in self.nodes.values():
            if node.process is not None:
                node.process.is_alive = False
                node.process.cancel_tasks(self.env.loop)
        return self.history

    def calm_down(self) -> None:
        self.is_calm = True
        self.isolation.stop()
        self.plan.calm()
        for fault, count in self.plan.happened.items():
            self.reached[fault.value] += count
        self.mishaps.cure_log()
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
        max_delay_to_insert=0.0,
    )
