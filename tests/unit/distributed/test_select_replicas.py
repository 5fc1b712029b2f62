"""Which replica of a shard a SELECT reads: each in turn, and none that is too far behind."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web

from engine.config.model import Cluster, NodeConfig, Replica, Shard, Topology, User
from engine.env import SystemEnv
from engine.errors import Code, SqlError
from engine.names import HostId
from engine.node.distributed.assembly import DistributedNode
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.peers.peer_watch import Pace
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import SystemTables
from engine.ports import free_ports
from engine.sql import Statement
from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

HERE = 1
"""The replica that is the node itself, 127.0.0.1: its own table has as many rows."""
NO_FALLBACK = {"fallback_to_stale_replicas_for_distributed_queries": "0"}
SQL = "SELECT count() FROM d"


class SetClock(SystemEnv):
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 1000.0

    def monotonic_s(self) -> float:
        return self.at_s


SERVER = {"X-ClickHouse-Server-Display-Name": "replica"}
"""The header that every answer of a server has."""


def refusal(code: int, text: str) -> web.Response:
    return web.Response(
        status=400,
        text=f"Code: {code}. DB::Exception: {text}\n",
        headers={"X-ClickHouse-Exception-Code": str(code)},
    )


@dataclass
class Replicas:
    """Replicas at 127.0.0.N: each counts N rows, and is as far behind as `delays_s` says. `inserted` is who
    was given rows, and with which settings."""

    delays_s: dict[int, int] = field(default_factory=dict)
    hanging_up: set[int] = field(default_factory=set)
    without_table: set[int] = field(default_factory=set)
    without_table_once: set[int] = field(default_factory=set)
    """Probes find it, the next SELECT does not, and then it is there."""
    denying: set[int] = field(default_factory=set)
    failing: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    """They take requests, and answer when nobody waits any more."""
    busy: dict[int, int] = field(default_factory=dict)
    """They answer a probe after so many pings."""
    hung: set[int] = field(default_factory=set)
    """They answer probes, and then nothing more, not even pings."""
    waiting: dict[int, asyncio.Transport] = field(default_factory=dict)
    also_waited_for: dict[int, list[int]] = field(default_factory=dict)
    """By who was asked: which silent ones had been asked and not been given up."""
    asked_delay: list[int] = field(default_factory=list)
    inserted: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    on_insert: Callable[[], None] = lambda: None
    on_missing: Callable[[], None] = lambda: None
    """Called when a SELECT does not find the table."""
    on_silent: Callable[[], None] = lambda: None
    """Called when one of `silent` is asked."""

    async def answer(self, request: web.Request) -> web.Response:
        number = int(request.host.partition(":")[0].rpartition(".")[2])
        if number in self.hanging_up and request.transport is not None:
            request.transport.abort()
        still = sorted(each for each, transport in self.waiting.items() if not transport.is_closing())
        self.also_waited_for[number] = still
        is_probe = request.method == "POST"
        transport = request.transport
        if request.path == "/ping" and number in self.busy:
            self.busy[number] -= 1
        while is_probe and self.busy.get(number, 0) > 0:
            await asyncio.sleep(0.01)
        if transport is not None and (number in self.silent or (number in self.hung and not is_probe)):
            self.waiting[number] = transport
            self.on_silent()
            while not transport.is_closing():
                await asyncio.sleep(0.01)
        if request.query.get("query", "").startswith("INSERT"):
            await request.read()
            self.on_insert()
            self.inserted.append((number, frozenset(request.query)))
            return web.Response(headers=SERVER)
        if number in self.without_table:
            return web.Response(
                status=404, text="Code: 60. no table", headers={"X-ClickHouse-Exception-Code": "60"}
            )
        if number in self.denying:
            return refusal(516, "u: Authentication failed (AUTHENTICATION_FAILED)")
        if request.method == "GET" and number in self.without_table_once:
            self.without_table_once.discard(number)
            self.on_missing()
            return refusal(60, "Table default.t does not exist. (UNKNOWN_TABLE)")
        if request.method == "GET" and number in self.failing:
            return refusal(
                6, "Cannot parse string 'x' (as it is): here (CANNOT_PARSE_TEXT) (version 26.9.2.1)"
            )
        if request.method == "GET":
            return web.Response(body=b"\x01\x01\x04__a0\x06UInt64" + struct.pack("<Q", number))
        if "absolute_delay" not in await request.text():
            return web.Response(headers=SERVER)
        self.asked_delay.append(number)
        return web.Response(text=f"{self.delays_s.get(number, 0)}\n", headers=SERVER)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Replicas, int]]:
    replicas, [port] = Replicas(), free_ports(1)
    app = web.Application()
    app.router.add_route("*", "/{ping:.*}", replicas.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    yield replicas, port
    await runner.cleanup()


@dataclass
class Reading:
    """A node with a Distributed table `d` over one shard."""

    replicas: Replicas
    clock: SetClock
    pool: ChdbPool
    router: StatementRouter
    node: DistributedNode

    @property
    def health(self) -> PeerHealth:
        return self.node._health

    async def ask(self, sql: str, settings: Mapping[str, str] | None = None) -> str:
        asked = Asked(sql, User("u"), self.pool.session(one_shot=True), settings=dict(settings or {}))
        data = b""
        async with self.router.run(asked) as answer:
            while chunk := await answer.read():
                data += chunk
            await answer.finish()
        return data.decode()

    async def who_is_read(self, settings: Mapping[str, str] | None = None) -> int:
        return int(await self.ask(SQL, settings))


Open = Callable[..., AbstractAsyncContextManager[Reading]]
"""A node with the replicas of these numbers, and itself where HERE is one of them."""


async def nowhere(asked: Asked, statement: Statement) -> object:
    raise AssertionError(asked.sql)


@pytest.fixture
def reading(tmp_path_factory: pytest.TempPathFactory, served: tuple[Replicas, int]) -> Open:
    @asynccontextmanager
    async def of(*numbers: int, profile: Mapping[str, str] | None = None) -> AsyncIterator[Reading]:
        replicas, port = served
        shard = Shard(
            1,
            tuple(
                Replica(f"127.0.0.{number}", 9000, http_port=port, default_database="default")
                for number in numbers
            ),
            internal_replication=True,
        )
        copying = replace(shard, internal_replication=False)
        topology = Topology({"c": Cluster("c", (shard,)), "copies": Cluster("copies", (copying,))})
        pool = await ChdbPool.open(tmp_path_factory.mktemp("node") / "data")
        clock = SetClock()
        node = DistributedNode(
            NodeConfig(path=str(pool.path), profiles={"default": profile or {}}),
            env=clock,
            pool=pool,
            topology=lambda: topology,
            is_local=lambda host: host.host == "127.0.0.1",
            run_other=None,
        )
        router = StatementRouter(
            tables=SystemTables([]),
            run_on_cluster=nowhere,  # type: ignore[arg-type]
            distributed=node,
        )
        await node.start()
        try:
            one = Reading(replicas, clock, pool, router, node)
            await pool.query("CREATE VIEW t AS SELECT number AS k FROM numbers(1)")
            await one.ask("CREATE TABLE d (k UInt64) ENGINE = Distributed(c, default, t, k)")
            yield one
        finally:
            await node.stop()
            await pool.close()

    return of


@pytest.mark.parametrize("seconds_between", [0, 2])
async def test_round_robin_reads_the_replicas_in_turn_also_for_a_text_that_comes_again(
    reading: Open, seconds_between: int
) -> None:
    async with reading(2, 3) as one:
        read = []
        for _ in range(6):
            read.append(await one.who_is_read({"load_balancing": "round_robin"}))
            one.clock.at_s += seconds_between
        assert read == [2, 3, 2, 3, 2, 3]


async def test_a_stale_replica_is_passed_over(reading: Open) -> None:
    async with reading(2, 3) as one:
        in_order = {"load_balancing": "in_order"}
        one.replicas.delays_s = {2: 300, 3: 299}
        assert await one.who_is_read(in_order) == 3
        assert await one.who_is_read({**in_order, "max_replica_delay_for_distributed_queries": "301"}) == 2
        assert await one.who_is_read({**in_order, "max_replica_delay_for_distributed_queries": "0"}) == 2
        one.replicas.delays_s = {3: 299}
        assert await one.who_is_read(in_order) == 2


async def test_of_stale_replicas_the_one_that_is_least_behind_is_read(reading: Open) -> None:
    async with reading(2, 3, 4) as one:
        in_order = {"load_balancing": "in_order"}
        one.replicas.delays_s = {2: 500, 3: 400, 4: 600}
        assert await one.who_is_read(in_order) == 3
        assert await one.who_is_read(in_order) == 3
        one.replicas.delays_s = {2: 500, 3: 700, 4: 600}
        one.clock.at_s += 2
        assert await one.who_is_read(in_order) == 2


@pytest.mark.parametrize("numbers", [(2, 3), (2,), (HERE, 2), (HERE,)])
async def test_where_all_are_stale_and_none_may_be_read_it_is_an_error(
    reading: Open, numbers: tuple[int, ...]
) -> None:
    async with reading(*numbers) as one:
        one.replicas.delays_s = dict.fromkeys(numbers, 300)
        for _ in range(2):
            with pytest.raises(SqlError) as raised:
                await one.who_is_read(NO_FALLBACK)
            assert raised.value.code == Code.ALL_REPLICAS_ARE_STALE
        assert await one.who_is_read() in numbers
        one.replicas.delays_s = {}
        assert await one.who_is_read(NO_FALLBACK) in numbers


async def test_the_only_replica_is_not_asked_how_far_it_is_behind_where_that_changes_nothing(
    reading: Open,
) -> None:
    async with reading(2) as one:
        one.replicas.delays_s = {2: 300}
        assert await one.who_is_read() == 2
        assert one.replicas.asked_delay == []


async def test_this_nodes_own_table_is_read_unless_another_is_less_behind(reading: Open) -> None:
    async with reading(2, HERE) as one:
        one.replicas.delays_s = {HERE: 299, 2: 0}
        assert await one.who_is_read() == HERE
        one.clock.at_s += 2
        one.replicas.delays_s = {HERE: 300, 2: 0}
        assert await one.who_is_read() == 2
        one.replicas.delays_s = {HERE: 300, 2: 400}
        one.clock.at_s += 2
        assert await one.who_is_read() == HERE
        one.replicas.delays_s = {HERE: 500, 2: 400}
        assert await one.who_is_read() == 2


async def test_what_a_replica_was_behind_grows_with_the_age_of_that_answer(reading: Open) -> None:
    """An answer of the last second counts, as long as the replica cannot have become stale since."""
    async with reading(2, 3) as one:
        in_order = {"load_balancing": "in_order"}
        one.replicas.delays_s = {2: 298}
        assert await one.who_is_read(in_order) == 2
        one.clock.at_s += 0.5
        assert await one.who_is_read(in_order) == 2
        assert one.replicas.asked_delay == [2]

        one.clock.at_s += 1
        one.replicas.delays_s = {2: 299}
        assert await one.who_is_read(in_order) == 2
        one.clock.at_s += 0.5
        assert await one.who_is_read(in_order) == 2
        assert one.replicas.asked_delay == [2, 2, 2]

        one.replicas.delays_s = {2: 300}
        assert await one.who_is_read(in_order) == 3


@pytest.mark.parametrize(
    ("profile", "counts", "until_s"),
    [
        ({}, 3, 120),
        ({"distributed_replica_error_cap": "2"}, 2, 120),
        ({"distributed_replica_error_half_life": "10"}, 3, 20),
        ({"distributed_replica_error_half_life": "0"}, 0, 0),
    ],
)
async def test_failures_of_a_replica_count_as_the_default_profile_says(
    reading: Open, profile: Mapping[str, str], counts: int, until_s: int
) -> None:
    async with reading(2, 3, profile=profile) as one:
        one.replicas.hanging_up = {2}
        for _ in range(3):
            await one.who_is_read(
                {"load_balancing": "in_order", "distributed_replica_max_ignored_errors": "9"}
            )
        failed = HostId("127.0.0.2", 9000)
        assert one.node.failures_of(failed) == (counts, until_s)
        one.clock.at_s += until_s
        assert one.node.failures_of(failed) == (0, 0)


async def test_a_shard_that_denies_this_node_is_never_left_out_of_an_answer(reading: Open) -> None:
    """The answer had no rows: a wrong password looked like a shard that is down."""
    skip = {"skip_unavailable_shards": "1"}
    async with reading(2, 3) as one:
        one.replicas.denying = {2}
        one.replicas.without_table = {3}
        for settings in (skip, {}):
            with pytest.raises(SqlError, match=r"Received from .*Authentication failed") as raised:
                await one.ask(SQL, settings)
            assert raised.value.code == Code.AUTHENTICATION_FAILED
        one.replicas.denying, one.replicas.without_table = set(), {2, 3}
        assert await one.who_is_read(skip) == 0


@pytest.mark.parametrize("sql", [SQL, "SELECT k FROM d"])
async def test_the_error_of_a_replica_is_given_as_that_replica_gave_it(reading: Open, sql: str) -> None:
    """It was error 86, with all of the request to that replica in its text."""
    async with reading(2) as one:
        one.replicas.failing = {2}
        with pytest.raises(SqlError) as raised:
            await one.ask(sql)
        assert (raised.value.code, raised.value.name) == (6, "CANNOT_PARSE_TEXT")
        text = "Received from 127.0.0.2:9000. DB::Exception: Cannot parse string 'x' (as it is): here"
        assert raised.value.message == text


async def test_a_replica_that_says_nothing_is_passed_over_while_it_is_waited_for(reading: Open) -> None:
    """Every statement waited ten seconds for it."""
    hedged = {"load_balancing": "in_order", "hedged_connection_timeout_ms": "20"}
    async with reading(2, 3, 4) as one:
        one.replicas.silent = {2, 3}
        assert await one.who_is_read(hedged) == 4
        assert one.replicas.also_waited_for[3] == [2]
        assert one.node.failures_of(HostId("127.0.0.2", 9000))[0] == 1
        assert one.node.failures_of(HostId("127.0.0.3", 9000))[0] == 1
        assert await one.who_is_read(hedged) == 4


async def test_the_only_replica_is_waited_for_no_longer_than_the_statement_may_wait(reading: Open) -> None:
    async with reading(2) as one:
        one.replicas.silent = {2}
        with pytest.raises(SqlError, match=r"Log: 127\.0\.0\.2:9000: .* has not answered in time") as raised:
            await one.who_is_read({"receive_timeout": "0.05"})
        assert raised.value.code == Code.ALL_CONNECTION_TRIES_FAILED


QUICK = Pace(every_s=0.02, ping_s=0.3)


async def test_a_replica_that_has_much_to_do_is_waited_for(reading: Open) -> None:
    """After ten seconds all connection tries had failed (279): it has other statements to run before."""
    async with reading(2) as one:
        one.health.watch.pace = QUICK
        one.replicas.busy = {2: 5}
        assert await one.who_is_read() == 2
        assert one.node.failures_of(HostId("127.0.0.2", 9000))[0] == 0


@pytest.mark.parametrize("sql", [SQL, "SELECT groupBitOr(k) FROM d"])
async def test_a_replica_that_hangs_while_it_is_read_is_replaced_by_another(reading: Open, sql: str) -> None:
    """For five minutes such statements were waiting, and all others behind them."""
    async with reading(2, 3) as one:
        one.health.watch.pace = QUICK
        one.replicas.hung = {2}
        in_order = {"load_balancing": "in_order"}
        answers = await asyncio.gather(*(one.ask(sql, in_order) for _ in range(3)))
        assert answers == ["3\n"] * 3
        assert one.node.failures_of(HostId("127.0.0.2", 9000))[0] >= 1


@pytest.mark.parametrize("skip", [{}, {"skip_unavailable_shards": "1"}])
async def test_a_table_that_was_away_for_a_moment_is_read_when_it_is_back(
    reading: Open, skip: dict[str, str]
) -> None:
    """Between EXCHANGE or RENAME there and back: the SELECT ended with error 60, though a probe found it."""
    async with reading(2) as one:
        one.replicas.without_table_once = {2}
        assert await one.ask("SELECT groupBitOr(k) FROM d", skip) == "2\n"
        assert not one.replicas.without_table_once


@pytest.mark.parametrize(("limit_s", "begins_anew"), [("0", True), ("60", True), ("30", False)])
async def test_a_statement_begins_anew_only_within_its_time_limit(
    reading: Open, limit_s: str, begins_anew: bool
) -> None:
    """Each beginning had all of `max_execution_time` for itself."""
    async with reading(2) as one:

        def half_a_minute() -> None:
            one.clock.at_s += 30

        one.replicas.without_table_once = {2}
        one.replicas.on_missing = half_a_minute
        settings = {"max_execution_time": limit_s}
        if begins_anew:
            assert await one.ask("SELECT groupBitOr(k) FROM d", settings) == "2\n"
        else:
            with pytest.raises(SqlError) as late:
                await one.ask("SELECT groupBitOr(k) FROM d", settings)
            assert late.value.code == Code.UNKNOWN_TABLE


@pytest.mark.parametrize(
    ("passed_s", "code"), [(0, Code.ALL_CONNECTION_TRIES_FAILED), (30, Code.TIMEOUT_EXCEEDED)]
)
async def test_a_statement_whose_time_passes_before_a_replica_answers_says_so(
    reading: Open, passed_s: int, code: int
) -> None:
    async with reading(2) as one:

        def passes() -> None:
            one.clock.at_s += passed_s

        one.replicas.silent = {2}
        one.replicas.on_silent = passes
        with pytest.raises(SqlError) as late:
            await one.ask(SQL, {"max_execution_time": "0.5"})
        assert late.value.code == code
