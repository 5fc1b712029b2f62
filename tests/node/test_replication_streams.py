"""Parts between real nodes when the sender's disk, the way or the receiver's disk is bad; a replica's name
that two nodes claim; how much memory replicated tables take when nothing happens.

What must hold: a damaged, truncated or foreign part is refused before anybody can read it, the right one is
fetched as soon as somebody has it, and nothing of the attempts stays (R3, R5).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.replication.host import ReplicaHost
from engine.testing.launch import cold
from tests.process.replication_support import ENV, HOSTS, Replicas, check_all, quiet, seeds
from tests.small_disk import small_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TABLE, PATH = "t", "/clickhouse/tables/streams/t"
CREATE = (
    f"CREATE TABLE {TABLE} (id UInt64, p UInt8, noise String) "
    f"ENGINE = ReplicatedMergeTree('{PATH}', '{{replica}}') PARTITION BY p ORDER BY id"
)
SUM = f"SELECT count(), sum(cityHash64(id, noise)) FROM {TABLE}"
ALREADY_ACTIVE, READONLY = 224, 242


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as running:
        for host in HOSTS:
            await running.query(host, CREATE)
        yield running


def insert(first: int, count: int, *, partition: int = 0, noise_bytes: int = 20) -> str:
    return (
        f"INSERT INTO {TABLE} SELECT number + {first}, {partition}, "
        f"randomString({noise_bytes}) FROM numbers({count})"
    )


async def part_directory(replicas: Replicas, host: str, name: str) -> Path:
    sql = (
        f"SELECT path FROM system.parts WHERE active AND table = '{TABLE}' AND name = '{name}' FORMAT TSVRaw"
    )
    return Path(await replicas.query(host, sql))


async def until_tried(replicas: Replicas, host: str, text: str) -> str:
    """Until an entry of its queue has failed with such an error; that error."""
    sql = "SELECT last_exception FROM system.replication_queue WHERE last_exception != '' FORMAT TSVRaw"
    async with asyncio.timeout(60):
        while not re.search(text, error := await replicas.query(host, sql)):
            await ENV.sleep(0.05)
    return error


async def test_a_part_that_was_damaged_on_the_senders_disk_is_seen_by_nobody_else_and_is_repaired(
    replicas: Replicas,
) -> None:
    """1. node03 does not fetch; node01 and node02 have a part. 2. A byte of node01's copy is lost, and node02
    sends nothing. 3. node03 fetches: it refuses what comes, and node01 looks at its own copy. 4. node02 sends
    again: both get the right one."""
    first, second, third = HOSTS
    await replicas.query(third, f"SYSTEM STOP FETCHES {TABLE}")
    await replicas.query(first, insert(0, 1000), insert_quorum="2")
    right = await replicas.query(second, SUM)
    await replicas.query(second, f"SYSTEM STOP REPLICATED SENDS {TABLE}")
    file = await part_directory(replicas, first, "0_0_0_0") / "data.bin"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(damaged)

    await replicas.query(third, f"SYSTEM START FETCHES {TABLE}")
    await until_tried(replicas, third, "0_0_0_0")
    assert await replicas.query(third, f"SELECT count() FROM {TABLE}") == "0"
    # It is out of sight before it is repaired.
    await replicas.eventually(first, f"SELECT count() FROM {TABLE}", "0")
    await replicas.query(second, f"SYSTEM START REPLICATED SENDS {TABLE}")

    for host in HOSTS:
        await replicas.eventually(host, SUM, right)
    await check_all(replicas, TABLE, PATH, detached=lambda name: name == "broken_0_0_0_0")
    aside = "SELECT count() FROM system.detached_parts WHERE name = 'broken_0_0_0_0'"
    assert [await replicas.query(host, aside) for host in HOSTS] == ["1", "0", "0"]


# -- a bad way -----------------------------------------------------------------------------------------------


class Harm(enum.Enum):
    CUT = "the answer ends early"
    FLIPPED = "a bit is another"
    FOREIGN = "another part comes"
    LONGER = "more comes than was said"


class BadWay:
    """Stands between a replica and those who fetch from it; `harm` is done to every answer with a part."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._target = port
        self._rng = rng
        self.harm: Harm | None = None
        self.harmed = 0
        self.foreign = ("", "")

    async def __aenter__(self) -> BadWay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if self.harm is Harm.FOREIGN:
                wanted, sent = (name.encode() for name in self.foreign)
                head = head.replace(b"part=" + wanted, b"part=" + sent)
            head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            from_node, to_node = await asyncio.open_connection("127.0.0.1", self._target)
            to_node.write(head)
            answer = await from_node.read(-1)
            to_node.close()
            writer.write(self._harmed(answer))
            await writer.drain()
        writer.close()

    def _harmed(self, answer: bytes) -> bytes:
        body = answer.index(b"\r\n\r\n") + 4
        if self.harm is None or not answer.startswith(b"HTTP/1.1 200"):
            return answer
        self.harmed += 1
        at = self._rng.randrange(body, len(answer))
        match self.harm:
            case Harm.CUT:
                return answer[:at]
            case Harm.FLIPPED:
                return answer[:at] + bytes([answer[at] ^ (1 << self._rng.randrange(8))]) + answer[at + 1 :]
            case Harm.LONGER:
                # The length that the answer declares goes, so that its end is the connection's.
                bare = re.sub(rb"(?i)\r\n(content-length|transfer-encoding):[^\r]*", b"", answer[:body])
                return bare + answer[body:] + b"\0"
            case Harm.FOREIGN:
                return answer


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds())
async def test_what_was_harmed_on_the_way_is_refused_until_the_right_part_comes(
    replicas: Replicas, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(f"way {seed}")
    first, second, third = HOSTS
    for host in (second, third):
        await replicas.query(host, f"SYSTEM STOP REPLICATED SENDS {TABLE}")
    await replicas.query(third, f"SYSTEM STOP FETCHES {TABLE}")
    await replicas.query(first, insert(0, 10, partition=9), insert_quorum="2")
    async with replicas.local.keeper() as keeper, contextlib.AsyncExitStack() as stack:
        path = f"{PATH}/replicas/{first}/host"
        real = ReplicaHost.from_bytes((await keeper.get(path)).data)
        way = await stack.enter_async_context(BadWay(real.port, rng))
        await keeper.set(path, replace(real, port=way.port).to_bytes())
        for number, harm in enumerate(Harm):
            before = await replicas.query(second, SUM)
            name = f"{number}_0_0_0"
            way.harm, way.foreign, seen = harm, (name, "9_0_0_0"), way.harmed
            await replicas.query(first, insert(100 * (number + 1), 50, partition=number))
            async with asyncio.timeout(60):
                while way.harmed < seen + 4:
                    await ENV.sleep(0.02)
            print(harm.name, (await until_tried(replicas, second, name))[:200])
            assert await replicas.query(second, SUM) == before, harm
            way.harm = None
            await replicas.eventually(second, SUM, await replicas.query(first, SUM))
    for host in (second, third):
        await replicas.query(host, f"SYSTEM START REPLICATED SENDS {TABLE}")
    await replicas.query(third, f"SYSTEM START FETCHES {TABLE}")
    await check_all(replicas, TABLE, PATH)


# -- a full disk ---------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """60 MiB for the data of one node."""
    place = tmp_path / "run" / "nodes" / HOSTS[2] / "data"
    place.mkdir(parents=True)
    with small_disk(place):
        yield place


async def test_a_replica_whose_disk_is_full_reads_on_and_catches_up_when_there_is_room(
    data: Path, replicas: Replicas
) -> None:
    first, _, third = HOSTS
    await replicas.query(third, insert(0, 100), insert_quorum="3")
    for number in range(4):  # 20 MiB each, which do not compress
        await replicas.query(first, insert(1000 * (number + 1), 20, partition=1, noise_bytes=1 << 20))
    print(await until_tried(replicas, third, "(?i)no space|not enough|disk"))
    assert await replicas.query(third, f"SELECT count() FROM {TABLE} WHERE p = 0") == "100"
    said = await replicas.ask(third, insert(9000, 60, partition=2, noise_bytes=1 << 20))
    assert not said.is_acknowledged
    print(said.text[:300])
    assert await replicas.query(third, "SELECT 1") == "1"

    await replicas.query(first, f"ALTER TABLE {TABLE} DROP PARTITION 1")
    # Whether the insert that was refused has taken effect is for all replicas alike.
    await quiet(replicas, TABLE)
    await replicas.until_done(third, insert(20_000, 10, partition=3))
    await check_all(replicas, TABLE, PATH)
    await replicas.node(third).kill9()
    await replicas.start_again(third)
    await check_all(replicas, TABLE, PATH)
    assert await replicas.query(third, SUM) == await replicas.query(first, SUM)
    left = {each.name for each in (data / "oncluster" / "staged").iterdir()}
    assert len(left) == 1


@pytest.mark.extended
async def test_what_is_acknowledged_while_a_table_comes_and_goes_is_on_every_replica(
    replicas: Replicas,
) -> None:
    """While it is detached or attached chDB has a table that has no replica; nobody may write into that."""
    first, second, _ = HOSTS
    acknowledged: list[int] = []
    codes: set[int] = set()
    is_over = asyncio.Event()

    async def write(writer: int) -> None:
        number = writer
        while not is_over.is_set():
            number += 2
            said = await replicas.ask(first, f"INSERT INTO {TABLE} (id) VALUES ({number})")
            if said.is_acknowledged:
                acknowledged.append(number)
            codes.add(said.code)

    async def come_and_go() -> None:
        for _ in range(3):
            await replicas.query(first, f"DETACH TABLE {TABLE}")
            await replicas.query(first, f"ATTACH TABLE {TABLE}")
            await replicas.until_done(first, insert(500, 1))
        is_over.set()

    await asyncio.gather(write(0), write(1), come_and_go())
    print(len(acknowledged), codes)
    assert codes <= {0, 60, READONLY}, "an insert was left hanging"
    await check_all(replicas, TABLE, PATH)
    here = await replicas.query(second, f"SELECT id FROM {TABLE} ORDER BY id FORMAT TSVRaw")
    assert set(acknowledged) <= {int(number) for number in here.split()}


# -- one name, two nodes -------------------------------------------------------------------------------------


async def test_of_two_nodes_that_claim_a_replica_the_second_only_reads(replicas: Replicas) -> None:
    """1. node03 is down; its replica is dropped for it. 2. node02 makes a replica of that name. 3. node03
    comes back: it must not act as that replica. 4. The other one goes; node03's is restored."""
    first, second, third = HOSTS
    await replicas.query(first, insert(0, 10), insert_quorum="3")
    refused = await replicas.ask(second, CREATE.replace("{replica}", third).replace(" t (", " twin ("))
    assert refused.code == 253, refused
    await replicas.node(third).kill9()
    await replicas.until_done(second, f"SYSTEM DROP REPLICA '{third}' FROM ZKPATH '{PATH}'")
    await replicas.query(second, CREATE.replace("{replica}", third).replace(" t (", " twin ("))
    await replicas.eventually(second, "SELECT count() FROM twin", "10")

    await replicas.start_again(third)
    said = await replicas.ask(third, insert(100, 1))
    assert said.code == READONLY, said
    assert await replicas.query(third, f"SELECT count() FROM {TABLE}") == "10"
    await replicas.query(first, insert(200, 5), insert_quorum="3")
    assert await replicas.query(second, "SELECT count() FROM twin") == "15"
    assert await replicas.query(third, f"SELECT count() FROM {TABLE}") == "10"
    dropped = await replicas.query(third, "SELECT is_readonly FROM system.replicas")
    assert dropped == "1"

    await replicas.query(second, "DROP TABLE twin SYNC")
    async with asyncio.timeout(60):
        while not (await replicas.ask(third, f"SYSTEM RESTORE REPLICA {TABLE}")).is_acknowledged:
            await ENV.sleep(0.2)
    await quiet(replicas, TABLE)
    assert await replicas.query(third, f"SELECT count() FROM {TABLE}") == "15"


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.extended
async def test_a_node_with_twenty_replicated_tables_takes_less_than_400_mib_when_idle(tmp_path: Path) -> None:
    async with Replicas(tmp_path, hosts=HOSTS[:1], launch=cold) as replicas:
        (host,) = HOSTS[:1]
        for number in range(20):
            path = f"/clickhouse/tables/idle/{number}"
            await replicas.query(host, CREATE.replace(PATH, path).replace(" t (", f" t{number} ("))
            await replicas.query(host, insert(0, 1000).replace(" t ", f" t{number} "))
        used = psutil.Process(replicas.pid(host)).memory_info().rss / (1 << 20)
        print(f"{used:.0f} MiB after use")
        await replicas.local.nodes[host].restart()
        await replicas.eventually(host, "SELECT sum(is_readonly) FROM system.replicas", "0")
        idle = psutil.Process(replicas.pid(host)).memory_info().rss / (1 << 20)
        print(f"{idle:.0f} MiB idle")
        assert max(used, idle) < 400
