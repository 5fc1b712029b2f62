"""The demo's rows: where each goes, what is waited for, and how replicas are judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from engine.env import SystemEnv
from engine.errors import NodeUnavailable, Unavailable
from engine.local import demo_flights
from engine.local.demo_flights import ReplicaContent, _read_rows, contents_of, load_flights
from engine.local.demo_result import DemoResult
from engine.local.progress import StepEvent, Steps, StepState
from engine.local.state import Phase, ProcessEntry, StackState
from engine.testing.cluster_files import clusters_xml

pytestmark = pytest.mark.slow

CONTENT = ReplicaContent("node01", 1, rows=10, parts=2, digest="aa", inserted=10)
SHARDS = [["n1", "n2"], ["n3", "n4"]]
LINES = [[b"k\n", b"1\n", b"2\n", b"3\n"], [b"k\n", b"4\n"]]


def result(*data: ReplicaContent) -> DemoResult:
    return DemoResult(clusters=(), schemas={}, answered=(), seconds=0.0, data=data)


def test_every_flight_goes_to_one_shard_which_its_number_says() -> None:
    shards = _read_rows(2)
    rows = [lines[1:] for lines in shards]
    assert sum(map(len, rows)) == 336_776
    for shard, lines in enumerate(rows):
        assert {int(line.split(b",")[10]) % 2 for line in lines} == {shard}
    assert shards[0][0] == shards[1][0]
    assert shards[0][0].startswith(b"year,month,day,")


def test_replicas_are_the_same_when_each_shard_has_one_digest() -> None:
    other_shard = replace(CONTENT, host="node04", shard=2, digest="bb", inserted=0)
    assert result().same_data
    assert result(CONTENT, replace(CONTENT, host="node02"), other_shard).same_data
    assert not result(CONTENT, replace(CONTENT, host="node02", digest="cc"), other_shard).same_data


# -- with nodes that answer as told --------------------------------------------------------------------------


class Clock(SystemEnv):
    """Sleeping takes no time; the clock goes on as if it had."""

    now = 0.0

    def monotonic_s(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Shown:
    """Keeps the steps."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []

    def show(self, event: StepEvent) -> None:
        self.events.append(event)


@dataclass
class FakeNode:
    """Answers over HTTP. `contents` are its rows, parts and digest, look by look; the last stays."""

    contents: list[tuple[int, int, str]]
    engine: str = "ReplicatedMergeTree"
    refusal: str = ""
    hangs: bool = False
    inserted: list[bytes] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.Event().wait()
        sql, body = request.query["query"], await request.read()
        if sql.startswith("INSERT INTO flights.flights FORMAT CSVWithNames"):
            if self.refusal:
                return web.Response(status=500, text=self.refusal)
            self.inserted.append(body)
            return web.Response()
        if "system.tables" in sql:
            return web.Response(text=f"{self.engine}\n")
        assert "system.parts" in sql
        rows, parts, digest = self.contents[0]
        if len(self.contents) > 1:
            self.contents.pop(0)
        return web.Response(text=f"{rows}\t{parts}\t{digest}\n")


def nodes_with(*contents: tuple[int, int, str]) -> dict[str, FakeNode]:
    return {f"n{number}": FakeNode([content]) for number, content in enumerate(contents, 1)}


EQUAL = ((3, 1, "aa"), (3, 1, "aa"), (1, 1, "bb"), (1, 1, "bb"))


@asynccontextmanager
async def stack(
    directory: Path, nodes: dict[str, FakeNode], *, gone: Iterable[str] = ()
) -> AsyncIterator[StackState]:
    file = directory / "cluster.xml"
    file.write_text(clusters_xml({"order_cluster": SHARDS}))
    async with AsyncExitStack() as running:
        urls = dict.fromkeys(gone, f"http://127.0.0.1:{unused_port()}")
        for host, node in nodes.items():
            app = web.Application()
            app.router.add_post("/", node.answer)
            server = await running.enter_async_context(TestServer(app))
            urls.setdefault(host, str(server.make_url("/")))
        yield StackState(
            mark="m",
            owner=ProcessEntry("owner", 1, 0.0),
            phase=Phase.READY,
            zookeeper="",
            config_file=str(file),
            migrations="",
            ledger_url="",
            nodes=urls,
        )


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(demo_flights, "_read_rows", lambda shards: LINES[:shards])


async def test_the_rows_of_a_shard_are_inserted_on_one_replica_and_looked_for_on_all(tmp_path: Path) -> None:
    nodes, shown = nodes_with(*EQUAL), Shown()
    async with stack(tmp_path, nodes) as state:
        found = await load_flights(state, Steps(shown), env=Clock())
    assert {host: node.inserted for host, node in nodes.items()} == {
        "n1": [b"k\n1\n2\n3\n"],
        "n2": [],
        "n3": [b"k\n4\n"],
        "n4": [],
    }
    assert [(each.host, each.shard, each.rows, each.digest, each.inserted) for each in found] == [
        ("n1", 1, 3, "aa", 3),
        ("n2", 1, 3, "aa", 0),
        ("n3", 2, 1, "bb", 1),
        ("n4", 2, 1, "bb", 0),
    ]
    last = shown.events[-1]
    assert (last.state, last.text) == (StepState.DONE, "4 rows on 2 replicas, equal on all 4")


async def test_replicas_are_waited_for_until_they_are_equal(tmp_path: Path) -> None:
    nodes, clock = nodes_with(*EQUAL), Clock()
    nodes["n2"].contents = [(0, 0, "00"), (3, 2, "ab"), (3, 1, "aa")]
    async with stack(tmp_path, nodes) as state:
        found = await load_flights(state, Steps(Shown()), env=clock)
    assert result(*found).same_data
    assert clock.now > 0


@pytest.mark.parametrize(
    "second",
    [(3, 1, "ac"), (0, 0, "00"), (2, 2, "aa")],
    ids=["other parts", "nothing", "fewer rows that show the same"],
)
async def test_replicas_that_stay_unequal_are_reported_with_what_each_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: tuple[int, int, str]
) -> None:
    monkeypatch.setattr(demo_flights, "_PATIENCE_S", 6.0)
    nodes, clock = nodes_with(*EQUAL), Clock()
    nodes["n2"].contents = [second]
    if second[2] == "aa":
        nodes["n1"].contents = [second]
    async with stack(tmp_path, nodes) as state:
        with pytest.raises(Unavailable, match=r"shard 1 are not equal after 6 s") as failed:
            await load_flights(state, Steps(Shown()), env=clock)
    rows, parts, _ = nodes["n1"].contents[0]
    assert failed.value.hint == f"n1: {rows} rows in {parts} parts; n2: {second[0]} rows in {second[1]} parts"
    assert 6 < clock.now < 7


async def test_nothing_is_inserted_where_the_table_is_not_replicated(tmp_path: Path) -> None:
    nodes = nodes_with(*EQUAL)
    for engine in ("MergeTree", ""):
        nodes["n1"].engine = engine
        async with stack(tmp_path, nodes) as state:
            assert await load_flights(state, Steps(Shown()), env=Clock()) == ()
            (tmp_path / "other.xml").write_text(clusters_xml({"another": SHARDS}))
            other = replace(state, config_file=str(tmp_path / "other.xml"))
            assert await load_flights(other, Steps(Shown()), env=Clock()) == ()
    assert not any(node.inserted for node in nodes.values())


async def test_what_a_node_says_against_the_rows_is_shown(tmp_path: Path) -> None:
    nodes = nodes_with(*EQUAL)
    nodes["n3"].refusal = "Code: 242. Table is in readonly mode"
    async with stack(tmp_path, nodes) as state:
        with pytest.raises(NodeUnavailable, match=r"n3 refused the demo's INSERT: Code: 242"):
            await load_flights(state, Steps(Shown()), env=Clock())


async def test_a_node_that_is_gone_or_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stack(tmp_path, nodes_with(*EQUAL), gone=["n4"]) as state:
        with pytest.raises(NodeUnavailable, match="n4 does not answer"):
            await contents_of(state, {1: 3, 2: 1}, env=Clock())
    nodes = nodes_with(*EQUAL)
    for node in nodes.values():
        node.hangs = True
    monkeypatch.setattr(demo_flights, "_ANSWER_WITHIN_S", 0.2)
    async with stack(tmp_path, nodes) as state:
        with pytest.raises(NodeUnavailable, match=r"n\d has not answered within"):
            await contents_of(state, {1: 3, 2: 1}, env=Clock())


async def test_what_was_loaded_otherwise_is_looked_for_by_the_rows_of_each_shard(tmp_path: Path) -> None:
    nodes = nodes_with(*EQUAL[:2], (0, 0, "00"), (0, 0, "00"))
    async with stack(tmp_path, nodes) as state:
        found = await contents_of(state, {1: 3}, env=Clock())
        assert [(each.host, each.rows, each.inserted) for each in found] == [
            ("n1", 3, 0),
            ("n2", 3, 0),
            ("n3", 0, 0),
            ("n4", 0, 0),
        ]
        with pytest.raises(Unavailable, match="shard 2"):
            await contents_of(state, {1: 3, 2: 1}, env=Clock())
    assert not any(node.inserted for node in nodes.values())
