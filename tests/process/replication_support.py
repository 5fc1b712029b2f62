"""Three real nodes with replicas of one table, a client that tells *refused* from *unknown*, and what has to
hold when all is quiet.

Replaying: every test prints its seed. `ONCLUSTER_REPLICATION_SEED=7` begins with that seed instead of 1,
`ONCLUSTER_REPLICATION_ROUNDS=5` does five seeds in place of one, and more in each. The seed decides on
statements and on the times between faults; when a statement comes to a certain point is the machine's
affair.
"""

from __future__ import annotations

import asyncio
import enum
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from xml.etree import ElementTree

import aiohttp

from engine.env import SystemEnv
from engine.errors import NoNode
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.testing.cluster_files import clusters_xml
from engine.testing.launch import Launch
from engine.testing.local_cluster import LocalCluster, LocalNode
from engine.testing.proxy import TcpProxy
from tests.warm import warm

HOSTS = ("node01", "node02", "node03")
ENV = SystemEnv()
PATIENCE_S = 120.0
STATEMENT_S = 30.0
SESSION_MS = 4000
"""Longer for a session than a loaded machine lets a process wait."""


def amount(*, default: int, in_rounds: int) -> int:
    """How much a test does when it is one of many, and when rounds are asked for."""
    return in_rounds if "ONCLUSTER_REPLICATION_ROUNDS" in os.environ else default


def seeds(*, default: int = 1) -> list[int]:
    """For `parametrize`."""
    first = int(os.environ.get("ONCLUSTER_REPLICATION_SEED", "1"))
    rounds = int(os.environ.get("ONCLUSTER_REPLICATION_ROUNDS", str(default)))
    return list(range(first, first + rounds))


@dataclass(frozen=True, slots=True)
class Said:
    """How a statement ended. Of what was not acknowledged nobody knows whether it has taken effect: even an
    error may stand for a lost reply."""

    is_acknowledged: bool
    text: str
    code: int = 0

    @property
    def must(self) -> str:
        assert self.is_acknowledged, self.text
        return self.text


class Replicas:
    """The nodes, a proxy between each of them and ZooKeeper if wanted, and a client."""

    def __init__(
        self,
        directory: Path,
        *,
        is_proxied: bool = False,
        hosts: Sequence[str] = HOSTS,
        launch: Launch = warm,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "given.xml"
        file.write_text(clusters_xml({"all": [list(hosts)]}))
        self.local = LocalCluster(
            directory / "run", cluster_file=file, session_timeout_ms=SESSION_MS, launch=launch
        )
        self.hosts = tuple(hosts)
        self.links: dict[str, TcpProxy] = {}
        self._is_proxied = is_proxied
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._http = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        )
        if self._is_proxied:
            for host in self.hosts:
                link = TcpProxy("127.0.0.1", self.local.ports.zookeeper)
                self.links[host] = await self._stack.enter_async_context(link)
                self._through(host, link.port)
        await self._stack.enter_async_context(self.local)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _through(self, host: str, port: int) -> None:
        overlay = self.local.files.node_directory(host) / "config.d" / "20-zookeeper.xml"
        root = ElementTree.fromstring(overlay.read_text())
        for element in root.iter("port"):
            element.text = str(port)
        overlay.unlink()
        overlay.write_text(ElementTree.tostring(root, encoding="unicode"))

    def node(self, host: str) -> LocalNode:
        return self.local.nodes[host]

    def data(self, host: str) -> Path:
        return self.local.files.node_directory(host) / "data"

    def pid(self, host: str) -> int:
        pid = self.node(host).process.pid
        assert pid is not None
        return pid

    async def kill9_all(self) -> None:
        await asyncio.gather(*(node.kill9() for node in self.local.nodes.values()))

    async def start_again(self, host: str) -> None:
        """Also when ZooKeeper is slow to notice that the process was killed; a start that fails, fails."""
        await self.node(host).start(timeout_s=90.0)

    # -- statements ----------------------------------------------------------------------------------------

    async def ask(self, host: str, sql: str, *, within_s: float = STATEMENT_S, **settings: str) -> Said:
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._http.post(
                self.node(host).url, data=sql, params=settings, timeout=timeout
            ) as answer:
                text = (await answer.text()).rstrip("\n")
                code = int(answer.headers.get("X-ClickHouse-Exception-Code", "0"))
                # An error behind the first bytes of an answer comes with status 200.
                return Said(answer.status == 200 and not code, text, code)
        except (aiohttp.ClientError, TimeoutError) as error:
            return Said(False, f"{host}: {error!r}", -1)

    async def query(self, host: str, sql: str, **settings: str) -> str:
        """The answer to what has to succeed."""
        said = await self.ask(host, sql, within_s=STATEMENT_S, **settings)
        assert said.is_acknowledged, f"{host}: {sql[:200]}\n{said.text}"
        return said.text

    async def until_done(self, where: str | Callable[[], str], sql: str, **settings: str) -> str:
        """Repeat what may be repeated, on a node or on those that are chosen, until one acknowledges it;
        that node."""
        last = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    host = where if isinstance(where, str) else where()
                    said = await self.ask(host, sql, within_s=STATEMENT_S, **settings)
                    if said.is_acknowledged:
                        return host
                    last = said.text
                    await ENV.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"nobody did this in {PATIENCE_S:g} s: {sql[:200]}\n{last}") from None

    async def eventually(self, host: str, sql: str, expected: str, **settings: str) -> None:
        said = Said(False, "")
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    said = await self.ask(host, sql, within_s=STATEMENT_S, **settings)
                    if said.is_acknowledged and said.text == expected:
                        return
                    await ENV.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{host}: {sql}\n{said.text!r} is not {expected!r}") from None


# -- what has to hold ----------------------------------------------------------------------------------------


PARTS = (
    "SELECT name, rows, hash_of_all_files FROM system.parts "
    "WHERE active AND database = 'default' AND table = '{table}' ORDER BY name FORMAT TSVRaw"
)
STATUS = (
    "SELECT is_readonly, is_session_expired, queue_size, parts_to_check, future_parts, "
    "total_replicas, active_replicas, lost_part_count, zookeeper_exception, last_queue_update_exception "
    "FROM system.replicas WHERE table = '{table}' FORMAT TSVRaw"
)
STRUCTURE = (
    "SELECT name, type, default_expression FROM system.columns WHERE database = 'default' "
    "AND table = '{table}' ORDER BY position FORMAT TSVRaw"
)
UNFINISHED = "SELECT count() FROM system.mutations WHERE table = '{table}' AND NOT is_done FORMAT TSVRaw"
QUEUE = (
    "SELECT node_name, type, source_replica, new_part_name, num_tries, postpone_reason, last_exception "
    "FROM system.replication_queue FORMAT TSVRaw"
)


async def quiet(replicas: Replicas, table: str, hosts: Sequence[str] = ()) -> str:
    """Wait until the replicas have nothing to do and the same parts; those parts. R3."""
    hosts = hosts or replicas.hosts
    seen: dict[str, str] = {}
    parts = PARTS.format(table=table)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answers = [await replicas.ask(host, f"SYSTEM SYNC REPLICA {table}") for host in hosts]
                answers += [await replicas.ask(host, UNFINISHED.format(table=table)) for host in hosts]
                shown = [await replicas.ask(host, parts) for host in hosts]
                status = [await replicas.ask(host, STATUS.format(table=table)) for host in hosts]
                count = str(len(hosts))
                sane = f"0\t0\t0\t0\t0\t{count}\t{count}\t"
                seen = {host: said.text for host, said in zip(hosts, shown, strict=True)}
                seen |= {f"{h} status": s.text for h, s in zip(hosts, status, strict=True)}
                seen |= {f"{n}": s.text for n, s in enumerate(answers) if not s.is_acknowledged}
                if (
                    all(said.is_acknowledged for said in (*answers, *shown, *status))
                    and [said.text for said in answers[len(hosts) :]] == ["0"] * len(hosts)
                    and len({said.text for said in shown}) == 1
                    and all(said.text.startswith(sane) for said in status)
                ):
                    return shown[0].text
                await ENV.sleep(0.3)
    except TimeoutError:
        for host in hosts:
            seen[f"{host} queue"] = (await replicas.ask(host, QUEUE)).text
            said = await replicas.ask(
                host, "SELECT * FROM system.mutations WHERE NOT is_done FORMAT Vertical"
            )
            seen[f"{host} mutations"] = said.text
        lines = "\n\n".join(f"{name}:\n{text}" for name, text in seen.items())
        raise AssertionError(f"not quiet after {PATIENCE_S:g} s:\n{lines}") from None


async def check_all(
    replicas: Replicas,
    table: str,
    path: str,
    *,
    lost_parts: int = 0,
    detached: Callable[[str], bool] = lambda name: False,
    may_be_kept_twice: bool = False,
) -> None:
    """Wait until quiet, then look at everything: parts, Keeper, disks, status, structure. R3, R5.

    `detached` says which directories may be there. `may_be_kept_twice`: a replica that was being restored was
    killed after it took a part from `detached/` and before it removed it there; the same part, or one that
    covers it, is active. Restored once more, it puts its part beside that one (`_try1`).
    """
    while True:
        parts = await quiet(replicas, table)
        names = [line.split("\t")[0] for line in parts.splitlines()]
        try:
            await _check_hosts(replicas, table, names, lost_parts, detached, may_be_kept_twice)
            await _check_keeper(replicas, path, names)
            _check_staged(replicas)
        except (AssertionError, NoNode):
            if await quiet(replicas, table) == parts:
                raise  # else a merge came between
        else:
            return


_MAY_BE_STAGED = ("attaching.json", "dropped.json", "live.json", "originals", "renames.json", "tmp_sending")


def _check_staged(replicas: Replicas) -> None:
    for host in replicas.hosts:
        for directory in sorted((replicas.data(host) / "oncluster" / "staged").iterdir()):
            left = [each.name for each in sorted(directory.iterdir()) if each.name not in _MAY_BE_STAGED]
            assert not left, f"{host}: staged: {left}"


async def _check_hosts(
    replicas: Replicas,
    table: str,
    names: Sequence[str],
    lost_parts: int,
    detached: Callable[[str], bool],
    may_be_kept_twice: bool,
) -> None:
    hosts = replicas.hosts
    structures = {await replicas.query(host, STRUCTURE.format(table=table)) for host in hosts}
    assert len(structures) == 1, structures
    for host in hosts:
        checked = await replicas.query(
            host, f"CHECK TABLE {table} SETTINGS check_query_single_value_result = 0 FORMAT TSVRaw"
        )
        bad = [line for line in checked.splitlines() if line.split("\t")[1] != "1"]
        assert not bad, f"{host}: {bad}"
        status = (await replicas.query(host, STATUS.format(table=table))).split("\t")
        assert int(status[7]) == lost_parts, f"{host}: {status}"
        assert not status[8].strip() and not status[9].strip(), f"{host}: {status}"
        aside = await replicas.query(
            host, f"SELECT name FROM system.detached_parts WHERE table = '{table}' FORMAT TSVRaw"
        )
        strange = [name for name in aside.splitlines() if not detached(name)]
        if may_be_kept_twice:
            active = [PartName.parse(name) for name in names]
            strange = [name for name in strange if not _is_there(name, active)]
        assert not strange, f"{host}: in detached/: {strange}"


def _is_there(name: str, active: Sequence[PartName]) -> bool:
    part = PartName.try_parse(re.sub(r"_try[0-9]+\Z", "", name))
    return part is not None and any(one.contains(part) for one in active)


async def _check_keeper(replicas: Replicas, path: str, names: Sequence[str]) -> None:
    async with replicas.local.keeper() as keeper:
        headers: dict[str, set[PartHeader]] = {}
        for host in replicas.hosts:
            root = f"{path}/replicas/{host}"
            known = sorted((await keeper.children(f"{root}/parts")).names)
            assert known == sorted(names), f"{host}: Keeper has {known}, the replica {names}"
            for name in known:
                node = await keeper.get(f"{root}/parts/{name}")
                headers.setdefault(name, set()).add(PartHeader.from_bytes(node.data))
            assert (await keeper.get(f"{root}/is_lost")).data == b"0"
        differ = [name for name, found in headers.items() if len(found) != 1]
        assert not differ, f"different headers: {differ}"
        assert not (await keeper.children(f"{path}/quorum/parallel")).names
        assert await keeper.exists(f"{path}/quorum/status") is None
        for partition in (await keeper.children(f"{path}/block_numbers")).names:
            # A killed process's are there until its session has expired.
            async with asyncio.timeout(PATIENCE_S):
                while (await keeper.children(f"{path}/block_numbers/{partition}")).names:
                    await ENV.sleep(0.1)


async def rows_by_partition(replicas: Replicas, host: str, table: str) -> Mapping[int, list[int]]:
    text = await replicas.query(
        host, f"SELECT p, arrayStringConcat(arraySort(groupArray(id)), ',') FROM {table} GROUP BY p"
    )
    return {
        int(p): [int(number) for number in ids.split(",")]
        for p, ids in (line.split("\t") for line in text.splitlines())
    }


class Fault(enum.Enum):
    KILL = "kill -9, and start again"
    KILL_TWICE = "kill -9, and again while it starts"
    SLEEP = "SIGSTOP past its session, then SIGCONT"
    ZOOKEEPER = "ZooKeeper is killed and started"


async def hurt(
    replicas: Replicas,
    rng: random.Random,
    *,
    times: int,
    between_s: float,
    faults: Mapping[Fault, int] = MappingProxyType({Fault.KILL: 2, Fault.KILL_TWICE: 1}),
) -> None:
    """Faults drawn with these weights, one after the other; each is over before the next begins."""
    for _ in range(times):
        await ENV.sleep(rng.uniform(0.0, between_s))
        host = rng.choice(replicas.hosts)
        node = replicas.node(host)
        (fault,) = rng.choices(list(faults), list(faults.values()))
        match fault:
            case Fault.KILL | Fault.KILL_TWICE:
                await node.kill9()
                await ENV.sleep(rng.uniform(0.0, between_s / 2))
                if fault is Fault.KILL_TWICE:
                    node.process.start()
                    await ENV.sleep(rng.uniform(0.1, 2.5))
                    await node.kill9()
                await replicas.start_again(host)
            case Fault.SLEEP:
                node.pause()
                await ENV.sleep(SESSION_MS / 1000 * rng.uniform(0.8, 1.5))
                node.resume()
            case Fault.ZOOKEEPER:
                await replicas.local.zookeeper.kill()
                await ENV.sleep(rng.uniform(0.0, 2.0))
                await replicas.local.start_zookeeper()
