"""Random statements about three replicated tables at once, and about plain ones of chDB: the rows stay alike.

Partitions go from table to table, tables change their names, go and come again, and either replica is asked.
The other is often behind, because nobody waits for it. A failing seed prints itself and what it ran;
`ONCLUSTER_SEED=n` replays it, `ONCLUSTER_SEEDS=n` runs n times as many.
"""

from __future__ import annotations

import random

import pytest

from tests.few import few_first
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import Pair
from tests.simulation.seeds import chosen_seeds

pytestmark = pytest.mark.slow

STEPS = 25
TABLES = ("a", "b", "c")
COLUMNS = "k UInt64, d Date, v String"
DEFINITIONS = (
    ("MergeTree", "", COLUMNS, "ORDER BY k"),
    (
        "MergeTree",
        "",
        f"{COLUMNS}, g String MATERIALIZED concat(v, 'g'), INDEX i v TYPE set(3)",
        "ORDER BY k",
    ),
    ("MergeTree", "", f"{COLUMNS}, x Nullable(String) DEFAULT v", "ORDER BY k TTL d + INTERVAL 90 YEAR"),
    (
        "ReplacingMergeTree",
        "o, z",
        f"{COLUMNS}, o UInt64 DEFAULT k, z UInt8 DEFAULT k % 3 = 0",
        "ORDER BY k % 4",
    ),
    ("SummingMergeTree", "o", f"{COLUMNS}, o UInt64 DEFAULT k", "ORDER BY k % 3"),
    ("CollapsingMergeTree", "s", f"{COLUMNS}, s Int8 DEFAULT if(k % 2, 1, -1)", "ORDER BY intDiv(k, 2)"),
)
"""Engine, its arguments, columns, keys."""
KEYS = ("toYYYYMM(d)", "k % 2", "tuple()", "(k % 2, toYYYYMM(d))")
SETTINGS = "max_bytes_to_merge_at_max_space_in_pool = 1, max_number_of_merges_with_ttl_in_pool = 0"
SESSION = {
    "mutations_sync": "1",
    "alter_sync": "1",
    "lightweight_deletes_sync": "1",
    "insert_deduplicate": "0",
    "allow_replace_partition_from_empty_source": "1",
}
"""Statements wait for the replica that is asked: what it has yet to do would not go along to other tables."""
LOOKS = (
    "SELECT * FROM {t} ORDER BY ALL",
    "SELECT count() FROM {t} WHERE v = 'x1'",
    "DESCRIBE TABLE {t}",
)


class Together:
    """The tables in databases of both nodes, and plain ones in another database of the first."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair = pair
        self._rng = random.Random(seed)
        self._replicated, self._plain = f"together{seed}", f"alone{seed}"
        self._made = 0
        self._definition, self._key = self._rng.choice(DEFINITIONS), self._rng.choice(KEYS)
        self.told = [f"seed {seed}: {self._definition} PARTITION BY {self._key}"]
        for node in pair.both:
            node.query(f"CREATE DATABASE {self._replicated}")
        pair.n1.query(f"CREATE DATABASE {self._plain}")
        for table in TABLES:
            self._create(table)

    def step(self) -> None:
        rng = self._rng
        x, (t, u) = rng.random(), rng.sample(TABLES, 2)
        if x < 0.85:
            self._at_one(self._statement(t, u))
        elif x < 0.97:
            self._everywhere(rng.choice((f"EXCHANGE TABLES {t} AND {u}", f"RENAME TABLE {t} TO w, w TO {t}")))
        elif x < 0.98:
            self._everywhere(f"DROP TABLE {t} SYNC")
            self._create(t)
        else:
            self._everywhere(f"DETACH TABLE {t} PERMANENTLY")
            self._everywhere(f"ATTACH TABLE {t}")

    def end_alike(self) -> None:
        for node in self._pair.both:
            self._sync(node)
        for table in TABLES:
            for look in LOOKS:
                sql = look.format(t=table)
                wanted = self._run(self._pair.n1, sql, self._plain)[1]
                for number, node in enumerate(self._pair.both, start=1):
                    found = self._run(node, sql, self._replicated)[1]
                    assert found == wanted, "\n".join([*self.told, f"n{number} {sql}", found, "---", wanted])
            self._pair.same(
                "SELECT name, hash_of_all_files FROM system.parts "
                f"WHERE database = '{self._replicated}' AND table = '{table}' ORDER BY name"
            )

    def drop(self) -> None:
        for node in self._pair.both:
            node.query(f"DROP DATABASE {self._replicated} SYNC")
        self._pair.n1.query(f"DROP DATABASE {self._plain} SYNC")

    def _statement(self, t: str, u: str) -> str:
        rng = self._rng
        rows = ", ".join(
            f"({rng.randrange(12)}, '2020-0{rng.choice('12')}-0{rng.choice('123')}', 'x{rng.randrange(5)}')"
            for _ in range(rng.randrange(1, 8))
        )
        ids = self._pair.n1.query(
            f"SELECT DISTINCT partition_id FROM system.parts WHERE database = '{self._plain}' AND active"
        ).split()
        some = f"PARTITION ID '{rng.choice(ids or ['all'])}'"
        where = rng.choice(("k % 3 = 1", "v = 'x1'", "d = '2020-01-02'", "1"))
        return rng.choice(
            [
                *[f"INSERT INTO {t} (k, d, v) VALUES {rows}"] * 6,
                *[f"ALTER TABLE {t} MOVE {some} TO TABLE {u}"] * 3,
                *[f"ALTER TABLE {t} REPLACE {some} FROM {u}"] * 2,
                f"ALTER TABLE {t} DROP {some}",
                f"TRUNCATE TABLE {t}",
                f"ALTER TABLE {t} UPDATE v = concat(v, '_') WHERE {where}",
                f"ALTER TABLE {t} DELETE WHERE {where}",
                f"DELETE FROM {t} WHERE {where}",
                f"OPTIMIZE TABLE {t} FINAL",
                f"ALTER TABLE {t} ADD COLUMN IF NOT EXISTS n UInt64 DEFAULT k + 1",
                f"ALTER TABLE {t} DROP COLUMN IF EXISTS n",
                f"ALTER TABLE {t} MODIFY COLUMN v LowCardinality(String)",
                f"ALTER TABLE {t} MODIFY COLUMN v String",
                f"ALTER TABLE {t} MODIFY COLUMN IF EXISTS x String",
                f"ALTER TABLE {t} ADD PROJECTION IF NOT EXISTS p (SELECT d, count() GROUP BY d)",
                f"ALTER TABLE {t} DROP PROJECTION IF EXISTS p",
            ]
        )

    def _create(self, table: str) -> None:
        self._made += 1
        engine, arguments, columns, keys = self._definition
        rest = f"PARTITION BY {self._key} {keys} SETTINGS {SETTINGS}"
        for number, node in enumerate(self._pair.both):
            place = f"'/{self._replicated}/{self._made}', 'r{number}'" + (
                f", {arguments}" if arguments else ""
            )
            sql = f"CREATE TABLE {table} ({columns}) ENGINE = Replicated{engine}({place}) {rest}"
            self._must(node, sql, self._replicated)
        sql = f"CREATE TABLE {table} ({columns}) ENGINE = {engine}({arguments}) {rest}"
        self._must(self._pair.n1, sql, self._plain)

    def _at_one(self, sql: str) -> None:
        """On a replica that knows what was done before; the other may not."""
        number = self._rng.randrange(2)
        node = self._pair.both[number]
        self._sync(node)
        code, text = self._run(node, sql, self._replicated)
        wanted, their_text = self._run(self._pair.n1, sql, self._plain)
        self.told.append(f"  n{number + 1}: {sql} -> {code} {text[:300]}   plain {wanted} {their_text[:300]}")
        assert (code == 0) == (wanted == 0), "\n".join(self.told)

    def _everywhere(self, sql: str) -> None:
        self.told.append(f"  {sql}")
        for node in self._pair.both:
            self._must(node, sql, self._replicated)
        self._must(self._pair.n1, sql, self._plain)

    def _sync(self, node: HttpAt) -> None:
        for table in TABLES:
            self._must(node, f"SYSTEM SYNC REPLICA {table}", self._replicated)

    def _must(self, node: HttpAt, sql: str, database: str) -> None:
        code, text = self._run(node, sql, database)
        assert code == 0, "\n".join([*self.told, sql, text])

    def _run(self, node: HttpAt, sql: str, database: str) -> tuple[int, str]:
        reply = node.post(sql, database=database, receive_timeout="60", **SESSION)
        return reply.code, reply.text


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 3), few=1))
def test_rows_go_from_table_to_table_as_between_plain_ones(pair: Pair, seed: int) -> None:
    together = Together(pair, seed)
    for _ in range(STEPS):
        together.step()
    together.end_alike()
    together.drop()
