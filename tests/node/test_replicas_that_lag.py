"""Random statements on two replicas of which one lags: both end alike.

One replica has its queue, fetches, merges or sends stopped now and then, is detached, or is killed.
Statements reach both of them: plans are made of old definitions, parts come before the ALTER that made them,
entries wait for each other. Then everything goes on, and both have the same rows, parts and definition.

A failing seed prints itself and what it ran; `ONCLUSTER_SEED=n` replays it, `ONCLUSTER_SEEDS=n` runs n times
as many.
"""

from __future__ import annotations

import random
import re
import time

import pytest

from tests.few import few_first
from tests.node.random_statements import SETTINGS, TABLES, statement
from tests.node.replicated_pair import Pair
from tests.simulation.seeds import chosen_seeds

pytestmark = pytest.mark.slow

STEPS = 40
STOPS = ("FETCHES", "MERGES", "REPLICATION QUEUES", "REPLICATED SENDS")
OF_ONE_SERVER = ("EXCHANGE", "RENAME", "DROP TABLE", "DETACH TABLE", "CREATE TABLE")
MAY_NOT_CONVERT = re.compile(
    r"(MODIFY|ALTER) COLUMN .*\b(U?Int\d+|Float64|Date|DateTime|Array|Enum8|Decimal|FixedString|Map|Tuple"
    r"|Nested|Bool|UUID|JSON|Variant|SimpleAggregateFunction|IPv4)\b"
)
"""Text that is no number, say: no part with it could be read or merged any more, as in ClickHouse."""
COMMON = {"allow_suspicious_low_cardinality_types": "1", "receive_timeout": "60"}
OWN = COMMON | {"mutations_sync": "1", "alter_sync": "1", "lightweight_deletes_sync": "1"}
NOBODY = COMMON | {"mutations_sync": "0", "alter_sync": "0", "lightweight_deletes_sync": "0"}
"""Whom a statement waits for."""

SIZES = "data_compressed_bytes, data_uncompressed_bytes, marks_bytes"
LOOKS = {
    "rows": "SELECT * FROM t ORDER BY ALL",
    "sum": "SELECT count(), sum(cityHash64(*)) FROM t",
    "columns": f"SELECT table, * EXCEPT (database, table, serialization_hint, {SIZES}) FROM system.columns "
    "{of} ORDER BY table, position",
    "parts": "SELECT table, name, rows, level, part_type, hash_of_all_files FROM system.parts {of} "
    "AND active AND rows > 0 ORDER BY ALL",
    "definition": "SHOW CREATE TABLE t FORMAT TSVRaw",
    "indexes": f"SELECT * EXCEPT (database, {SIZES}) FROM system.data_skipping_indices {{of}} ORDER BY ALL",
    "projections": "SELECT * EXCEPT database FROM system.projections {of} ORDER BY ALL",
    "mutations": "SELECT table, count() FROM system.mutations {of} AND NOT is_done GROUP BY ALL ORDER BY ALL",
}
WITHIN_S = 60.0


class Lagging:
    """Tables `t` and `u` with a replica on either node; the second node's are those that lag."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair = pair
        self._rng = random.Random(seed)
        self._database = f"lag{seed}"
        self._stopped: set[tuple[str, str]] = set()
        engine, arguments, columns, keys = self._rng.choice(TABLES)
        settings = ", ".join(["allow_nullable_key = 1", self._rng.choice(SETTINGS)]).removesuffix(", ")
        self.told = [f"seed {seed}: {engine}({arguments}) ({columns}) {keys} {settings}"]
        for number, node in enumerate(pair.both):
            node.query(f"CREATE DATABASE {self._database}")
            for table in "tu":
                place = f"'/lag{seed}/{table}', 'r{number}'" + (f", {arguments}" if arguments else "")
                node.query(
                    f"CREATE TABLE {self._database}.{table} ({columns}) ENGINE = Replicated{engine}({place}) "
                    f"PARTITION BY toYYYYMM(d) {keys} SETTINGS {settings}"
                )

    def step(self) -> None:
        rng, x = self._rng, self._rng.random()
        if x < 0.12:
            stop = rng.choice(STOPS), rng.choice("ttu")
            self._stopped.add(stop)
            self._second(f"SYSTEM STOP {stop[0]} {stop[1]}")
        elif x < 0.18 and self._stopped:
            stop = rng.choice(sorted(self._stopped))
            self._stopped.discard(stop)
            self._second(f"SYSTEM START {stop[0]} {stop[1]}")
        elif x < 0.20:
            self.end_alike()
        elif x < 0.22:
            self._stopped = {stop for stop in self._stopped if stop[1] != "t"}
            self._second("DETACH TABLE t")
            self._second("ATTACH TABLE t")
        elif x < 0.24:
            self._stopped.clear()
            self.told.append("  the second is killed")
            self._pair.kill9("n2")
        else:
            self._statement()

    def end_alike(self) -> None:
        """Everything goes on, and nothing differs."""
        self._stopped.clear()
        self.told.append("  everything goes on")
        for stop in STOPS:
            for table in "tu":
                self._second(f"SYSTEM START {stop} {table}")
        for number in (0, 1):  # what cannot be done on some part stays for ever, as it does in ClickHouse
            self._run(number, "KILL MUTATION WHERE database = currentDatabase() AND NOT is_done", OWN)
        for number in (0, 1):
            for table in "tu":
                code, text = self._run(number, f"SYSTEM SYNC REPLICA {table}", OWN)
                assert code == 0, "\n".join([*self.told, text, *self._queues()])
        deadline = time.monotonic() + WITHIN_S
        while differing := self._differing():
            assert time.monotonic() < deadline, "\n".join([*self.told, *differing])
            time.sleep(0.1)

    def drop(self) -> None:
        for node in self._pair.both:
            node.query(f"DROP DATABASE {self._database} SYNC")

    def _statement(self) -> None:
        columns = self._pair.n1.query(
            f"SELECT name FROM system.columns WHERE database = '{self._database}' AND table = 't'"
        ).split("\n")[:-1]
        sql = statement(self._rng, columns)
        if sql.startswith(OF_ONE_SERVER) or MAY_NOT_CONVERT.search(sql) or "_sync = 2" in sql:
            return  # the last would wait for the one that lags
        number = 1 if self._rng.random() < 0.2 else 0
        # While nobody gets what only the second has, the first would wait for it.
        is_cut_off = any(activity == "REPLICATED SENDS" for activity, _ in self._stopped)
        self._run(number, sql, NOBODY if number or is_cut_off or self._rng.random() < 0.3 else OWN)

    def _second(self, sql: str) -> None:
        code, text = self._run(1, sql, OWN)
        assert code == 0, "\n".join([*self.told, text])

    def _run(self, number: int, sql: str, settings: dict[str, str]) -> tuple[int, str]:
        waits = "nobody" if settings is NOBODY else "its own"
        self.told.append(f"  n{number + 1}, for {waits}: {sql}")
        try:
            reply = self._pair.both[number].post(sql, database=self._database, **settings)
        except TimeoutError as error:
            raise AssertionError("\n".join([*self.told, "    no answer", *self._queues()])) from error
        self.told.append(f"    {reply.code or 'done'} {reply.text[:300].strip()}")
        return reply.code, reply.text

    def _differing(self) -> list[str]:
        first, second = ({what: self._look(node, what) for what in LOOKS} for node in (0, 1))
        return [f"{what}:\n{first[what]}---\n{second[what]}" for what in LOOKS if first[what] != second[what]]

    def _look(self, number: int, what: str) -> str:
        sql = LOOKS[what].format(of="WHERE database = currentDatabase()")
        reply = self._pair.both[number].post(sql, database=self._database)
        if reply.code:  # JSON, say, has no order
            return f"code {reply.code}"
        if what == "definition":  # name, settings and comment are a replica's own
            return re.sub(r"\n(SETTINGS|COMMENT) .*", "", re.sub(r"'r\d'", "", reply.text))
        return reply.text

    def _queues(self) -> list[str]:
        columns = "type, new_part_name, num_tries, last_exception, postpone_reason"
        return [node.query(f"SELECT {columns} FROM system.replication_queue") for node in self._pair.both]


@pytest.mark.parametrize("seed", few_first(chosen_seeds(1, 6), few=1))
def test_a_replica_that_lags_ends_like_the_other(pair: Pair, seed: int) -> None:
    lagging = Lagging(pair, seed)
    for _ in range(STEPS):
        lagging.step()
    lagging.end_alike()
    lagging.drop()
