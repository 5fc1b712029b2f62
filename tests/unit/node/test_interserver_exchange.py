"""Parts between two stores over the interserver port: what arrives, in every version, and who is refused."""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

import aiohttp
import pytest

from engine.env import SystemEnv
from engine.errors import Code
from engine.node.interserver import (
    Credentials,
    HttpPartFetcher,
    InterserverConfig,
    InterserverCredentials,
    InterserverServer,
)
from engine.node.interserver.credentials import refusal_of
from engine.node.interserver.protocol import NEWEST_VERSION, PartFiles
from engine.replication.bandwidth import Bandwidth
from engine.replication.fetching import PartUnavailable
from engine.replication.file_hash import FileHash, file_hash
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDiffers, PartDigest
from engine.replication.part_name import PartName
from engine.replication.part_store import OutgoingPart, Part, PartFile
from engine.replication.paths import ReplicaPaths
from engine.replication.replica.switches import Activity, Switches
from engine.testing.replication.disk import Damage, StoreDisk, model_definition
from engine.testing.replication.store import MemoryPartStore

ENV = SystemEnv()
PART = PartName.parse("all_0_0_0")
REPLICA = ReplicaPaths("/clickhouse/tables/01/t/replicas/r1")


def empty_store() -> MemoryPartStore:
    return MemoryPartStore(StoreDisk(model_definition()), ENV)


async def store_with_part(rows: int = 10) -> MemoryPartStore:
    store = StoreWithBigPart(StoreDisk(model_definition()), ENV)
    new = await store.write("all", [{"k": n, "v": n * 10} for n in range(rows)])
    await store.stage_inserted(new, PART)
    await store.publish([PART])
    return store


BIG = PartName.parse("big_0_0_0")


class BigPart:
    """An OutgoingPart of more bytes than connections hold on their way; it is good for nothing else."""

    part = Part(BIG, PartDigest(0, 1, b"", b"", b""), b"", 1, 16 << 20, 0.0)
    files = (PartFile("data.bin", 16 << 20),)

    async def read(self, file: PartFile) -> AsyncIterator[bytes]:
        for _ in range(file.size_bytes >> 20):
            yield bytes(1 << 20)


class StoreWithBigPart(MemoryPartStore):
    @asynccontextmanager
    async def send(self, name: PartName) -> AsyncIterator[OutgoingPart]:
        if name == BIG:
            yield BigPart()
            return
        async with super().send(name) as part:
            yield part


@dataclass
class Sending:
    """A replica as the port sees it."""

    store: MemoryPartStore
    switches: Switches = field(default_factory=Switches)
    parts_to_check: list[PartName] = field(default_factory=list)
    send_bandwidth: Bandwidth = field(default_factory=lambda: Bandwidth(ENV, lambda: 0))

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None:
        self.parts_to_check.append(part)


@asynccontextmanager
async def serving(
    replica: Sending,
    *,
    credentials: InterserverCredentials | None = None,
    max_parallel_sends: int = 64,
    silence_s: float = 60.0,
) -> AsyncIterator[ReplicaHost]:
    config = InterserverConfig(
        "127.0.0.1",
        0,
        credentials=credentials,
        max_parallel_sends=max_parallel_sends,
        silence_s=silence_s,
    )
    server = InterserverServer(config, find={REPLICA.root: replica}.get, version="26.9.1.1")
    await server.start()
    try:
        yield ReplicaHost("127.0.0.1", server.port, 9000, "default", "t", server.scheme)
    finally:
        await server.stop()


@asynccontextmanager
async def asked(replica: Sending, query: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer to a request made by hand."""
    async with (
        serving(replica) as host,
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{host.port}/?{query}") as response,
    ):
        yield response


async def fetch(
    host: ReplicaHost,
    into: MemoryPartStore,
    *,
    part: PartName = PART,
    replica: ReplicaPaths = REPLICA,
    **how: object,
) -> None:
    async with HttpPartFetcher(**how) as fetcher:  # type: ignore[arg-type]
        await fetcher.fetch(host, replica, part, into=into, expected=None)


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 1))
async def test_a_part_arrives_as_it_is_in_every_version_of_the_protocol(version: int) -> None:
    source, target = Sending(await store_with_part()), empty_store()
    async with serving(source) as host:
        await fetch(host, target, newest_version=version)
    assert target.staged[PART].digest == source.store.active[PART].digest
    await target.publish([PART])
    assert target.rows() == source.store.rows()


async def test_a_part_is_sent_at_the_pace_that_the_table_s_setting_wants() -> None:
    class Clock(SystemEnv):
        waited_s = 0.0

        def monotonic_s(self) -> float:
            return self.waited_s

        async def sleep(self, delay_s: float) -> None:
            self.waited_s += delay_s

    clock, target = Clock(), empty_store()
    source = Sending(await store_with_part(), send_bandwidth=Bandwidth(clock, lambda: 100))
    async with serving(source) as host:
        await fetch(host, target)
    assert target.staged[PART].digest == source.store.active[PART].digest
    size = target.staged[PART].size_bytes
    assert clock.waited_s >= (size - 100) / 100 > 0


async def test_the_header_in_keeper_is_compared() -> None:
    source, target = Sending(await store_with_part()), empty_store()
    other = await store_with_part(11)
    async with serving(source) as host, HttpPartFetcher() as fetcher:
        with pytest.raises(PartDiffers):
            await fetcher.fetch(host, REPLICA, PART, into=target, expected=other.active[PART].header)
        assert not target.staged
        await fetcher.fetch(host, REPLICA, PART, into=target, expected=source.store.active[PART].header)
    assert list(target.staged) == [PART]


async def test_an_old_server_that_asks_without_a_version_gets_no_cookie_and_files_only() -> None:
    source = Sending(await store_with_part())
    query = urlencode(
        {"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": str(PART), "compress": "false"}
    )
    async with asked(source, query) as response:
        body = await response.read()
        assert response.status == 200
        assert "server_protocol_version" not in response.cookies
    assert int.from_bytes(body[:8], "little") == 4
    assert body[8:22] == bytes([len("checksums.txt")]) + b"checksums.txt"


async def test_a_newer_peer_is_answered_in_our_newest_version() -> None:
    source = Sending(await store_with_part())
    query = urlencode(
        {"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": str(PART), "client_protocol_version": "57"}
    )
    async with asked(source, query) as response:
        assert response.cookies["server_protocol_version"].value == str(NEWEST_VERSION)


@pytest.mark.parametrize(
    ("part", "replica", "code"),
    [
        (PartName.parse("all_7_7_0"), REPLICA, Code.NO_SUCH_DATA_PART),
        (PART, ReplicaPaths("/clickhouse/tables/01/t/replicas/r9"), Code.NO_SUCH_INTERSERVER_IO_ENDPOINT),
    ],
)
async def test_what_is_not_there_is_unavailable_with_the_reason(
    part: PartName, replica: ReplicaPaths, code: Code
) -> None:
    target = empty_store()
    async with serving(Sending(await store_with_part())) as host:
        with pytest.raises(PartUnavailable) as raised:
            await fetch(host, target, part=part, replica=replica)
    assert raised.value.code == code
    assert not target.staged


@pytest.mark.parametrize("name", ["../../etc/passwd", "all_0_0_0/../x", "all", "detached/all_0_0_0", ""])
async def test_a_name_that_is_no_parts_is_refused_by_the_server(name: str) -> None:
    query = urlencode({"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": name})
    async with asked(Sending(await store_with_part()), query) as response:
        assert response.status == 500
        assert (await response.text()).startswith("Code: 233. DB::Exception: ")


async def test_stopped_sends_are_answered_with_aborted_until_they_are_started() -> None:
    source, target = Sending(await store_with_part()), empty_store()
    source.switches.stop(Activity.SENDS)
    async with serving(source) as host:
        with pytest.raises(PartUnavailable) as raised:
            await fetch(host, target)
        assert raised.value.code == Code.ABORTED
        source.switches.start(Activity.SENDS)
        await fetch(host, target)
    assert list(target.staged) == [PART]


async def test_too_many_sends_at_once_are_answered_with_429() -> None:
    """1. A peer begins to fetch and reads nothing more. 2. Another asks. 3. The first is done. 4. It asks
    again."""
    source, target = Sending(await store_with_part()), empty_store()
    query = urlencode({"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": str(BIG)})
    async with serving(source, max_parallel_sends=1) as host, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{host.port}/?{query}"
        first = await client.post(url)
        async with client.post(url) as second:
            assert (second.status, second.headers["Retry-After"]) == (429, "10")
        with pytest.raises(PartUnavailable) as raised:
            await fetch(host, target)
        assert raised.value.code == Code.TOO_MANY_SIMULTANEOUS_QUERIES
        await first.read()
        await fetch(host, target)
    assert list(target.staged) == [PART]


async def test_a_peer_that_stops_reading_does_not_keep_its_place() -> None:
    """1. A peer asks for a large part and reads nothing. 2. The only place is free again by itself."""
    source, target = Sending(await store_with_part()), empty_store()
    query = urlencode({"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": str(BIG)})
    async with serving(source, max_parallel_sends=1, silence_s=0.05) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port, limit=1024)
        writer.write(f"POST /?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while not target.staged:
            try:
                await fetch(host, target)
            except PartUnavailable as error:
                assert error.code == Code.TOO_MANY_SIMULTANEOUS_QUERIES
        writer.close()


async def test_nobody_at_the_port_means_unavailable() -> None:
    with pytest.raises(PartUnavailable):
        await fetch(ReplicaHost("127.0.0.1", 1, 9000, "d", "t"), empty_store())


async def test_a_peer_that_ends_its_side_behind_the_request_gets_its_part() -> None:
    """As ClickHouse 18.16 does."""
    source = Sending(await store_with_part())
    query = urlencode({"endpoint": f"DataPartsExchange:{REPLICA.root}", "part": str(PART)})
    async with serving(source) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(f"POST /?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {len(body)}".encode() in head


async def test_connections_are_used_again() -> None:
    source = Sending(await store_with_part())
    async with serving(source) as host, HttpPartFetcher() as fetcher:
        for _ in range(3):
            await fetcher.fetch(host, REPLICA, PART, into=empty_store(), expected=None)
        connector = fetcher._session().connector
        assert connector is not None
        assert sum(len(each) for each in connector._conns.values()) == 1


@pytest.mark.parametrize(
    "damage", [Damage.BIT_FLIP, Damage.TRUNCATION, Damage.EMPTY_FILE, Damage.MISSING_FILE]
)
async def test_a_part_damaged_where_it_lies_arrives_nowhere_and_the_sender_learns_of_it(
    damage: Damage,
) -> None:
    """1. It is fetched and found damaged. 2. The next request makes the sender look at its own copy."""
    source, target = Sending(await store_with_part()), empty_store()
    source.store.disk.damage(PART, damage, 12345)
    async with serving(source) as host, HttpPartFetcher() as fetcher:
        with pytest.raises(PartDiffers):
            await fetcher.fetch(host, REPLICA, PART, into=target, expected=None)
        assert not target.staged
        assert not target.disk.temporary
        with pytest.raises(PartUnavailable) as raised:
            await fetcher.fetch(host, REPLICA, PART, into=target, expected=None)
        assert raised.value.code == Code.CHECKSUM_DOESNT_MATCH
    assert set(source.parts_to_check) == {PART}


# -- credentials ---------------------------------------------------------------------------------------------


SECRET = Credentials("interserver", "s3cret")


async def test_credentials_are_asked_for_and_shown() -> None:
    source, target = Sending(await store_with_part()), empty_store()
    async with serving(source, credentials=InterserverCredentials(SECRET)) as host:
        for wrong in (None, Credentials("interserver", "guess"), Credentials("other", "s3cret")):
            with pytest.raises(PartUnavailable, match="401"):
                await fetch(host, target, credentials=wrong)
        assert not target.staged
        await fetch(host, target, credentials=SECRET)
    assert list(target.staged) == [PART]


async def test_credentials_where_none_are_configured_are_refused_as_clickhouse_does() -> None:
    async with serving(Sending(await store_with_part())) as host:
        with pytest.raises(PartUnavailable, match="server doesn't provide it"):
            await fetch(host, empty_store(), credentials=SECRET)


@pytest.mark.parametrize(
    ("shown", "known", "is_accepted"),
    [
        (None, InterserverCredentials(SECRET), False),
        (None, InterserverCredentials(SECRET, allow_empty=True), True),
        (Credentials("interserver", "old").to_header(), InterserverCredentials(SECRET), False),
        (
            Credentials("interserver", "old").to_header(),
            InterserverCredentials(SECRET, old=(Credentials("interserver", "old"),)),
            True,
        ),
        ("Bearer abc", InterserverCredentials(SECRET), False),
        ("Basic %%%", InterserverCredentials(SECRET, allow_empty=True), False),
        (None, None, True),
    ],
)
def test_who_is_accepted(shown: str | None, known: InterserverCredentials | None, is_accepted: bool) -> None:
    assert (refusal_of(shown, known) == "") is is_accepted


# -- formats -------------------------------------------------------------------------------------------------


# A column's file as chDB wrote it, compressed with zlib, and its hash in `checksums.txt`.
COLUMN_FILE = (
    "c-o8ZTH*ZrdSJUy&7R=5CzgI`l4E250!9X55N70HU}0k57hw25!oh_AP^d6OkA~K0XpM%}XlRXw)@W#r"
    "hSq3kjfU1}XpM%}XlRXw)@W#rhSq3k(IK?-7frjdq_fwgT6*L6JKLt8Zu$!pY`DiTvO-HA5*PrICW&S"
)
COLUMN_FILE_HASH = "467131e12f163e6365810a8566eb0597"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"130000", "116c8bd66b11750665fcc9ab669290fd"),
        (zlib.decompress(base64.b85decode(COLUMN_FILE)), COLUMN_FILE_HASH),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 1000, 2048, 5000])
def test_the_hash_of_a_file_is_clickhouses_in_whatever_pieces_it_comes(
    content: bytes, expected: str, piece_bytes: int
) -> None:
    hashed = FileHash()
    for at in range(0, len(content), piece_bytes):
        hashed.update(content[at : at + piece_bytes])
    assert hashed.digest().hex() == expected == file_hash(content).hex()


def test_files_of_projections_are_told_from_those_of_the_part() -> None:
    files = [PartFile("data.bin", 1), PartFile("p.proj/data.bin", 2), PartFile("p.proj/checksums.txt", 3)]
    sorted_ = PartFiles.of(files)
    assert sorted_.own == (files[0],)
    assert sorted_.projections == (("p", (files[1], files[2])),)
