"""Two nodes and ClickHouse 26.9 in one DDL queue: whoever initiates, all execute it, and all agree."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from engine.testing.cluster_files import clusters_xml
from tests.few import few_first
from tests.interop.replica_in_chdb import QUEUE, ReplicaInChdb, replica_in_chdb
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import Pair, eventually, running_pair
from tests.simulation.seeds import chosen_seeds

pytestmark = [pytest.mark.slow, pytest.mark.extended]

DATA = Path(__file__).parents[1] / "data"
STATEMENTS = 60
REAL = "localhost:9001"
CLUSTERS = {"mixed": [["n1", "n2", REAL]], "two": [["n1"], [REAL]], "gone": [["n1", REAL], ["absent", "n2"]]}
VERSION = "5"
OF_ALL = {
    "alter_sync": "2",
    "mutations_sync": "2",
    "distributed_ddl_task_timeout": "60",
    "distributed_ddl_output_mode": "throw",
    "distributed_ddl_entry_format_version": VERSION,
}
MOMENTS_S = (0.0, 0.003, 0.01, 0.03, 0.1)
"""Behind the begin of a statement."""
SERVER = "<tcp_port>9001</tcp_port><macros><shard>01</shard><replica>real</replica></macros>"
COLUMNS = "(k UInt64, n Int32 DEFAULT 5, v LowCardinality(String), d DateTime)"
ENGINES = (
    "MergeTree ORDER BY k",
    "MergeTree PARTITION BY k % 2 ORDER BY (k, n) TTL d + INTERVAL 9 YEAR",
    "ReplicatedMergeTree ORDER BY k",
    "ReplicatedMergeTree ORDER BY k",
    "ReplicatedReplacingMergeTree(n) ORDER BY k",
    "ReplicatedMergeTree('/own/{shard}/{uuid}', '{replica}') PARTITION BY toYYYYMM(d) ORDER BY k",
    "Memory",
    "Log",
)
STATEMENT = (DATA / "on_cluster_statements.txt").read_text().splitlines()
ODD = (DATA / "odd_on_cluster_statements.sql").read_text().rstrip(";\n").split(";\n\n")
"""Texts, names and clauses that an entry has to carry as they are."""
MODES = (
    "throw",
    "none",
    "null_status_on_timeout",
    "never_throw",
    "none_only_active",
    "throw_only_active",
    "null_status_on_timeout_only_active",
)
TABLES = (
    "name, uuid, create_table_query FROM system.tables WHERE database = 'd' AND name NOT LIKE '.inner%' "
    "ORDER BY name FORMAT TSV"
)
Ask = Callable[[str], tuple[int, str]]


@dataclass
class Shared:
    """One queue."""

    pair: Pair
    real: ReplicaInChdb
    finished: set[str] = field(default_factory=set)
    """Entries, as far as was looked."""

    @property
    def sides(self) -> list[tuple[str, Ask]]:
        """A node and 26.9 alike often."""
        nodes = [
            (name, partial(on_node, node)) for name, node in zip(("n1", "n2"), self.pair.both, strict=True)
        ]
        return [*nodes, ("26.9", self.real.run), ("26.9", self.real.run)]

    def kill(self, name: str) -> None:
        """And start it again."""
        if name == "n1":
            self.pair.kill9("n1")
        else:
            self.real.kill9()
            # Its worker begins when it is asked for, also by what is refused before anything is waited for.
            self.real.query("SET distributed_ddl_entry_format_version = 1000")
            assert self.real.run("DROP DATABASE absent ON CLUSTER mixed")[0] == 287
            self.real.query(f"SET distributed_ddl_entry_format_version = {VERSION}")

    def children(self, path: str) -> dict[str, str]:
        """Of a node in Keeper, with their contents."""
        sql = f"SELECT name, value FROM system.zookeeper WHERE path = '{path}' FORMAT JSONEachRow"
        rows = map(json.loads, self.pair.n2.query(sql).splitlines())
        return {row["name"]: row["value"] for row in rows}

    def entries(self) -> dict[str, str]:
        """Their texts."""
        found = self.children(QUEUE.root)
        return {name: found[name] for name in sorted(found) if name.startswith("query-")}

    def unfinished(self) -> list[str]:
        """Entries that not all of their hosts have done."""
        left = {name: text for name, text in self.entries().items() if name not in self.finished}
        hosts = {name: text.split("hosts: [")[1].split("]")[0].split(",") for name, text in left.items()}
        self.finished |= {
            name for name in left if len(self.children(QUEUE.finished(name))) == len(hosts[name])
        }
        return sorted(left.keys() - self.finished)

    def differing(self) -> list[str]:
        """What is seen of the tables, if it is not the same everywhere."""
        seen = [ask(f"SELECT {TABLES}")[1] for _, ask in self.sides[:3]]
        return seen if len(set(seen)) > 1 else self.unfinished()

    def compare(self, told: list[str]) -> None:
        try:
            eventually(self.differing, [], within_s=60)
        except AssertionError as error:
            pytest.fail("\n".join([*told[:1], *told[-12:], str(error).replace("\\n", "\n")]))


def on_node(node: HttpAt, sql: str, **settings: str) -> tuple[int, str]:
    reply = node.post(sql, **{**OF_ALL, **settings})
    return reply.code, reply.text


@contextmanager
def one_queue(directory: Path, *, keeps: int | None = None) -> Iterator[Shared]:
    clusters = clusters_xml(CLUSTERS).partition("<clickhouse>")[2].rpartition("</clickhouse>")[0]
    more = SERVER + clusters
    with running_pair(directory, more=CLUSTERS) as pair:
        assert pair.zookeeper is not None
        config = pair.zookeeper.config
        with replica_in_chdb(directory / "real", config, more=more, keeps=keeps) as real:
            pair.n1.query("DROP DATABASE d ON CLUSTER all")
            shared = Shared(pair, real)
            shared.real.set(OF_ALL)
            yield shared


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with one_queue(tmp_path_factory.mktemp("with_26_9")) as shared:
        yield shared


@pytest.fixture
def shared(queue: Shared) -> Iterator[Shared]:
    queue.real.set(OF_ALL)
    assert queue.real.run("CREATE DATABASE d ON CLUSTER mixed")[0] == 0
    yield queue
    queue.real.set(OF_ALL)
    assert queue.real.run("DROP DATABASE d ON CLUSTER mixed SYNC")[0] == 0


def some_statement(rng: random.Random, number: int) -> str:
    t, u = (f"t{rng.randrange(4)}" for _ in range(2))
    return rng.choice(STATEMENT).format(t=t, u=u, number=number, columns=COLUMNS, engine=rng.choice(ENGINES))


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 2), few=2))
def test_whoever_initiates_all_execute_it(shared: Shared, seed: int) -> None:
    rng = random.Random(seed)
    told, done = [f"seed {seed}"], 0
    for number in range(1, STATEMENTS + 1):
        name, ask = rng.choice(shared.sides)
        sql = some_statement(rng, number)
        code, text = ask(sql)
        told.append(f"{name}: {sql}    {code} {text[:400]}")
        done += not code
        shared.compare(told)
    assert done > STATEMENTS // 10


@pytest.mark.parametrize("killed", ["n1", "26.9"])
@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 2), few=2))
def test_who_is_killed_at_any_moment_has_done_it_in_the_end(shared: Shared, seed: int, killed: str) -> None:
    rng = random.Random(seed)
    told = [f"seed {seed}"]
    for number in range(1, STATEMENTS // 2 + 1):
        name, ask = rng.choice([side for side in shared.sides if side[0] != killed])
        sql = some_statement(rng, number)
        if sql.startswith("DETACH") and "PERMANENTLY" not in sql:
            continue  # the next start attaches it
        killing = threading.Timer(rng.choice(MOMENTS_S), shared.kill, [killed])
        if is_killed := rng.random() < 0.25:
            killing.start()
        code, text = ask(sql)
        if is_killed:
            killing.join()
        told.append(f"{f'{killed} killed, ' * is_killed}{name}: {sql}    {code} {text[:400]}")
        shared.compare(told)


@pytest.mark.parametrize("version", range(2, 9))
def test_entries_of_every_version_are_understood_both_ways(shared: Shared, version: int) -> None:
    """Those of version 1 are written for servers of 2018, without the UUIDs that the statements need."""
    told = [f"version {version}"]
    for n, (name, ask) in enumerate(shared.sides[1:3], start=2 * version):
        changed = {
            "distributed_ddl_entry_format_version": str(version),
            "session_timezone": "Asia/Tokyo",
            "max_block_size": "1234",
        }
        shared.real.set(changed)
        for odd in ODD:
            sql = odd.replace("{n}", str(n))
            code, text = on_node(shared.pair.n2, sql, **changed) if name == "n2" else ask(sql)
            told.append(f"{name}: {sql}    {code} {text[:400]}")
            assert code == 0, told[-1]
        shared.compare(told)


@pytest.mark.parametrize("mode", MODES)
def test_both_answer_alike_in_every_mode_of_output(shared: Shared, mode: str) -> None:
    cases = (
        ("CREATE TABLE d.new{n} ON CLUSTER two (a Int8) ENGINE = Memory", "60"),
        ("CREATE TABLE d.there{n} ON CLUSTER mixed (a Int8) ENGINE = Memory", "60"),
        ("CREATE TABLE d.gone{n} ON CLUSTER gone (a Int8) ENGINE = Memory", "2"),
        ("CREATE TABLE d.later{n} ON CLUSTER two (a Int8) ENGINE = Memory", "0"),
    )
    numbers = itertools.count()

    def differing(sql: str, timeout: str) -> list[tuple[int, list[str]]]:
        """Each of both makes a table of its own, which is there for `there`."""
        changed = {"distributed_ddl_output_mode": mode, "distributed_ddl_task_timeout": timeout}
        shared.real.set(changed)
        answers = []
        for ask in (shared.real.run, partial(on_node, shared.pair.n1, **changed)):
            n = next(numbers)
            shared.pair.n2.query(f"CREATE TABLE d.there{n} (a Int8) ENGINE = Memory")
            answers.append(_alike(ask(sql.format(n=n) + " FORMAT TabSeparatedWithNamesAndTypes")))
        return answers if answers[0] != answers[1] else []

    for sql, timeout in cases:
        # A host that was too slow for a short timeout once is quicker the next time.
        eventually(partial(differing, sql, timeout), [], within_s=60)


def _alike(answer: tuple[int, str]) -> tuple[int, list[str]]:
    """The order of hosts, how many were at work just then, and who was asked aside."""
    code, text = answer
    for pattern, constant in (
        (r"query-\d+", "query-N"),
        (r"waiting for [\d.]+", "waiting for S"),
        (r"(there|gone)\d+", "\\1"),
        (r" \(version [\d.]+\)", ""),
        (r", \d are inactive", ""),
        (r"\t\d+\t\d+$", ""),
    ):
        text = re.sub(pattern, constant, text, flags=re.MULTILINE)
    return code, sorted(text.strip("\n").split("\n"))


def test_a_queue_that_26_9_cleans_loses_nothing(tmp_path: Path) -> None:
    with one_queue(tmp_path, keeps=3) as shared:
        assert shared.real.run("CREATE DATABASE d ON CLUSTER mixed")[0] == 0
        made = 0
        while next(iter(shared.entries())) == "query-0000000000" or made < 12:
            made += 1
            name, ask = shared.sides[made % 3]
            answer = ask(
                f"CREATE TABLE d.t{made} ON CLUSTER mixed (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a"
            )
            assert (answer[0], len(answer[1].splitlines())) == (0, 3), (name, answer)
        shared.compare([f"{made} made"])
        assert len(shared.pair.n1.query(f"SELECT {TABLES}").splitlines()) == made
