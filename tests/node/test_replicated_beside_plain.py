"""Random statements on a replicated table of a node, and on a plain one of chDB: both answer alike.

chDB is ClickHouse, so what it does with a MergeTree table is what a replicated one has to do, too: the same
statements succeed, and leave the same rows, the same parts with the same bytes, the same definition. What a
replicated table keeps in ZooKeeper is what chDB writes there for a new table of that definition.

Where both refuse a statement their codes may differ: of several things that are wrong either may be told. A
failing seed prints itself and what it ran; `ONCLUSTER_SEED=n` replays it, `ONCLUSTER_SEEDS=n` runs n times as
many.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator

import pytest

from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import blocking_cluster
from tests.few import few_first
from tests.node.http_client import HttpAt
from tests.node.random_statements import SETTINGS, TABLES, statement
from tests.simulation.seeds import chosen_seeds
from tests.unit.replicated.chdb import Clickhouse
from tests.warm import warm

pytestmark = pytest.mark.slow

STATEMENTS = 12
NO_MERGES = "max_bytes_to_merge_at_max_space_in_pool = 1, max_number_of_merges_with_ttl_in_pool = 0"
OF_ONE = (
    "max_number_of_merges_with_ttl_in_pool",
    "non_replicated_deduplication_window",
    "allow_nullable_key",
)
"""Settings that stand for nothing in the comparison."""
SESSION = {"mutations_sync": "1", "alter_sync": "1", "allow_suspicious_low_cardinality_types": "1"}

LOOKS = {
    "rows": "SELECT * FROM t ORDER BY ALL",
    "columns": "SELECT table, * EXCEPT (database, table, serialization_hint) FROM system.columns {of} "
    "ORDER BY table, position",
    "parts": "SELECT table, partition_id, rows, level, part_type, hash_of_all_files FROM system.parts {of} "
    "AND active AND rows > 0 ORDER BY ALL",
    "definition": "SHOW CREATE TABLE t FORMAT TSVRaw",
    "indexes": "SELECT * EXCEPT database FROM system.data_skipping_indices {of} ORDER BY ALL",
    "projections": "SELECT * EXCEPT database FROM system.projections {of} ORDER BY ALL",
    "detached": "SELECT table, partition_id, reason, count() FROM system.detached_parts {of} GROUP BY ALL "
    "ORDER BY ALL",
    "mutations": "SELECT table, count() FROM system.mutations {of} AND NOT is_done GROUP BY ALL ORDER BY ALL",
    "tables": "SELECT name, replaceOne(engine, 'Replicated', ''), partition_key, sorting_key, primary_key, "
    "sampling_key, total_rows, comment FROM system.tables {of} ORDER BY name",
}


class Side:
    """One of the two: statements run in its database."""

    def __init__(self, node: HttpAt, database: str) -> None:
        self._node = node
        self.database = database

    def run(self, sql: str) -> tuple[int, str]:
        """Code and text of the answer; statements behind one that fails are not run."""
        code, text = 0, ""
        for one in sql.split("; "):
            reply = self._node.post(one, database=self.database, **SESSION)
            code, text = reply.code, reply.text
            if code:
                break
        return code, text

    def looks(self) -> dict[str, str]:
        found = {}
        for what, sql in LOOKS.items():
            code, text = self.run(sql.format(of="WHERE database = currentDatabase()"))
            text = f"code {code}" if code else text
            found[what] = plain(text) if what == "definition" else text
        return found

    def columns(self) -> list[str]:
        return self._node.query(
            f"SELECT name FROM system.columns WHERE database = '{self.database}' AND table = 't'"
        ).split("\n")[:-1]


def plain(text: str) -> str:
    """SHOW CREATE as if the table were not replicated, with its settings in the order of their names."""
    text = re.sub(r"ENGINE = Replicated(\w+)\('[^']*', '[^']*'(?:, )?", r"ENGINE = \1(", text)
    text = re.sub(r"CREATE TABLE \w+\.", "CREATE TABLE ", text.replace("MergeTree()", "MergeTree"))
    found = re.search(r"\nSETTINGS (.*)", text)
    if found is None:
        return text
    settings = sorted(each for each in re.split(r", (?=\w+ =)", found[1]) if not each.startswith(OF_ONE))
    return f"{text[: found.start()]}\nSETTINGS {', '.join(settings)}{text[found.end() :]}"


class Beside:
    """A node, and chDB that writes into the same ZooKeeper."""

    def __init__(self, node: HttpAt, clickhouse: Clickhouse) -> None:
        self._node = node
        self._clickhouse = clickhouse
        self._numbers = itertools.count()

    def run(self, seed: int) -> None:
        rng = random.Random(seed)
        ours, theirs = Side(self._node, f"ours{seed}"), Side(self._node, f"theirs{seed}")
        engine, arguments, columns, keys = rng.choice(TABLES)
        settings = f"{NO_MERGES}, allow_nullable_key = 1"
        settings += f", {own}" if (own := rng.choice(SETTINGS)) else ""
        rest = f"PARTITION BY toYYYYMM(d) {keys} SETTINGS {settings}"
        self._node.query(f"CREATE DATABASE {ours.database}")
        self._node.query(f"CREATE DATABASE {theirs.database}")
        for table in ("t", "u"):
            place = f"'/{seed}/{table}', 'r'" + (f", {arguments}" if arguments else "")
            made = ours.run(f"CREATE TABLE {table} ({columns}) ENGINE = Replicated{engine}({place}) {rest}")
            like = theirs.run(
                f"CREATE TABLE {table} ({columns}) ENGINE = {engine}({arguments}) {rest}, "
                "non_replicated_deduplication_window = 10000"
            )
            assert (made, like) == ((0, ""), (0, ""))
        told = [f"seed {seed}: {engine}({arguments}) ({columns}) {keys} {own}"]
        for _ in range(STATEMENTS):
            sql = statement(rng, theirs.columns())
            told.append(sql)
            (code, text), (their_code, their_text) = ours.run(sql), theirs.run(sql)
            told.append(f"    ours {code} {text[:500]}    theirs {their_code} {their_text[:500]}")
            assert (code == 0) == (their_code == 0), "\n".join(told)
            here, there = ours.looks(), theirs.looks()
            differing = {what: (here[what], there[what]) for what in LOOKS if here[what] != there[what]}
            told += [f"{what}:\n{a}---\n{b}" for what, (a, b) in differing.items()]
            assert not differing, "\n".join(told)
            if code == 0 and sql.startswith(("ALTER", "CREATE INDEX", "DROP INDEX", "EXCHANGE")):
                self._compare_keeper(ours, "\n".join(told))
        self._node.query(f"DROP DATABASE {ours.database} SYNC")
        self._node.query(f"DROP DATABASE {theirs.database} SYNC")

    def _compare_keeper(self, side: Side, told: str) -> None:
        """A new table of our definition, made by chDB, has the same `metadata` and `columns`."""
        _, shown = side.run("SHOW CREATE TABLE t FORMAT TSVRaw")
        path = re.search(r"MergeTree\('([^']*)', 'r'", shown)
        assert path is not None, shown
        if "` Nested(" in shown:
            return  # an ALTER has led to it; CREATE would make several columns of it
        new = f"/oracle/{next(self._numbers)}"
        create = re.sub(r"CREATE TABLE \w+\.t", "CREATE TABLE o.t", shown).replace(f"'{path[1]}'", f"'{new}'")
        try:
            self._clickhouse.query(create)
        except AssertionError:
            return  # an ALTER may lead to what CREATE refuses
        self._clickhouse.query("DETACH TABLE o.t PERMANENTLY")
        self._clickhouse.query("DROP DATABASE o")
        self._clickhouse.query("CREATE DATABASE o ENGINE = Atomic")
        assert self._definition(path[1]) == self._definition(new), told

    def _definition(self, path: str) -> str:
        return self._node.query(
            f"SELECT name, value FROM system.zookeeper WHERE path = '{path}' "
            "AND name IN ('metadata', 'columns') ORDER BY name FORMAT TSVRaw"
        )


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    directory = tmp_path_factory.mktemp("beside")
    (directory / "given.xml").write_text(clusters_xml({"all": [["n1"]]}))
    files = {"cluster_file": directory / "given.xml", "hosts": ("n1",)}
    with blocking_cluster(directory / "run", **files, launch=warm) as (local, _):
        assert local.zookeeper is not None
        clickhouse = Clickhouse(directory / "chdb", local.zookeeper.config)
        try:
            yield Beside(HttpAt(local.node("n1").url), clickhouse)
        finally:
            clickhouse.close()


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 3), few=1))
def test_a_replicated_table_answers_as_a_plain_one(beside: Beside, seed: int) -> None:
    beside.run(seed)
