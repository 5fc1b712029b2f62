"""A peer that is broken, foreign or hostile: nothing of what it sends becomes a part."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.env import SystemEnv
from engine.errors import Code, OnclusterError, SqlError
from engine.node.interserver import FetchLimits, HttpPartFetcher
from engine.replication.fetching import PartUnavailable
from engine.replication.file_hash import file_hash
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDiffers, parse_checksums_file
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths
from engine.replication.varint import write_varint
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.store import MemoryPartStore
from engine.testing.replication.transfer import Incoming

ENV = SystemEnv()
PART = PartName.parse("all_0_0_0")
REPLICA = ReplicaPaths("/t/replicas/r1")
File = tuple[bytes, bytes]
_DRIP_S = 0.01


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def one_file(name: bytes, content: bytes, *, size: int | None = None, hashed: bytes | None = None) -> bytes:
    head = write_varint(len(name)) + name + u64(len(content) if size is None else size)
    return head + content + (file_hash(content) if hashed is None else hashed)


def body_of(files: list[bytes], *, count: int | None = None) -> bytes:
    return u64(len(files) if count is None else count) + b"".join(files)


def http(body: bytes, *, cookie: str = "", length: int | None = None, status: str = "200 OK") -> bytes:
    set_cookie = f"Set-Cookie: server_protocol_version={cookie}\r\n" if cookie else ""
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n{set_cookie}\r\n"
    ).encode() + body


@asynccontextmanager
async def peer(answer: bytes, *, stays_silent: bool = False, drip: bytes = b"") -> AsyncIterator[ReplicaHost]:
    """Answers every request with these bytes, goes on with those of `drip` one by one, and closes (or holds)
    the connection."""
    finished = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            for byte in drip:
                await asyncio.sleep(_DRIP_S)
                writer.write(bytes([byte]))
                await writer.drain()
            if stays_silent:
                await finished.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield ReplicaHost("127.0.0.1", server.sockets[0].getsockname()[1], 9000, "d", "t")
    finally:
        finished.set()
        server.close()


async def genuine() -> list[File]:
    """The files of a whole part, its list of files first."""
    store = MemoryPartStore(StoreDisk(model_definition()), ENV)
    new = await store.write("all", [{"k": n, "v": n} for n in range(100)])
    await store.stage_inserted(new, PART)
    files = store.disk.staged[PART].files
    return sorted(((n.encode(), c) for n, c in files.items()), key=lambda f: (f[0] != b"checksums.txt", f[0]))


async def wire(files: list[File]) -> list[bytes]:
    """As a sender writes them: behind a listed file stands the listed hash, which the model's is not
    CityHash."""
    listed = {f.name.encode(): f.hash for f in parse_checksums_file(dict(files)[b"checksums.txt"])}
    return [one_file(name, content, hashed=listed.get(name)) for name, content in files]


async def receive(
    answer: bytes, *, limits: FetchLimits | None = None, stays_silent: bool = False, drip: bytes = b""
) -> MemoryPartStore:
    """What a store looks like after a fetch that has to fail."""
    store = MemoryPartStore(StoreDisk(model_definition()), ENV)
    async with (
        peer(answer, stays_silent=stays_silent, drip=drip) as host,
        HttpPartFetcher(limits=limits) as fetcher,
    ):
        with pytest.raises(OnclusterError) as raised:
            await fetcher.fetch(host, REPLICA, PART, into=store, expected=None)
    assert not store.disk.staged
    assert not store.disk.active
    assert not store.disk.temporary
    assert isinstance(raised.value, PartDiffers | PartUnavailable)
    store.raised = raised.value  # type: ignore[attr-defined]
    return store


def reason(store: MemoryPartStore) -> OnclusterError:
    return store.raised  # type: ignore[attr-defined, no-any-return]


async def test_the_peer_made_by_hand_can_send_a_part_that_is_accepted() -> None:
    """Else the refusals below would say nothing."""
    store = MemoryPartStore(StoreDisk(model_definition()), ENV)
    async with peer(http(body_of(await wire(await genuine())))) as host, HttpPartFetcher() as fetcher:
        await fetcher.fetch(host, REPLICA, PART, into=store, expected=None)
    assert list(store.staged) == [PART]


@pytest.mark.parametrize(
    "name",
    [
        b"../../../etc/cron.d/x",
        b"/etc/passwd",
        b"a/b",
        b"..",
        b".",
        b"",
        b"a\x00b",
        b"a\nb",
        b"x" * 300,
        b"\\x",
    ],
)
async def test_hostile_file_names_are_refused(name: bytes) -> None:
    files = await wire(await genuine())
    store = await receive(http(body_of([*files, one_file(name, b"x")])))
    assert isinstance(reason(store), PartDiffers)


@pytest.mark.parametrize("projection", [b"..", b"../x", b"a/b", b"", b"\x00"])
async def test_hostile_names_of_projections_are_refused(projection: bytes) -> None:
    head = u64(10) + write_varint(24) + b"ttl format version: 1\n{}" + b"\x04Wide" + b"0" * 36 + u64(1)
    body = head + write_varint(len(projection)) + projection + body_of([one_file(b"../../x", b"")])
    assert isinstance(reason(await receive(http(body, cookie="7"))), PartDiffers)


async def test_a_file_that_stands_in_no_list_is_refused() -> None:
    files = await wire(await genuine())
    store = await receive(http(body_of([*files, one_file(b"surprise.bin", b"x")])))
    assert "does not belong" in str(reason(store))


async def test_a_file_that_comes_twice_is_refused() -> None:
    files = await wire(await genuine())
    assert "twice" in str(reason(await receive(http(body_of([*files, files[-1]])))))


async def test_a_missing_file_is_noticed() -> None:
    files = await wire(await genuine())
    assert "did not come" in str(reason(await receive(http(body_of(files[:-1])))))


async def test_a_uuid_file_does_not_travel() -> None:
    """In it a store keeps the replicated name: a peer must not choose it."""
    files = await wire(await genuine())
    for at in (0, len(files)):
        smuggled = [*files[:at], one_file(b"uuid.txt", b"00000000-0000-0000-0000-000000000000"), *files[at:]]
        assert "uuid.txt" in str(reason(await receive(http(body_of(smuggled)))))


@pytest.mark.parametrize("before_list", [True, False])
async def test_a_wrong_hash_is_noticed_whatever_the_order(before_list: bool) -> None:
    files = await genuine()
    if before_list:
        files = files[::-1]
    pieces = await wire(files)
    at = next(i for i, (name, _) in enumerate(files) if name == b"columns.txt")
    pieces[at] = one_file(*files[at], hashed=b"\x01" * 16)
    assert isinstance(reason(await receive(http(body_of(pieces)))), PartDiffers)


async def test_changed_bytes_with_a_matching_hash_on_the_wire_are_noticed_by_the_list_of_files() -> None:
    files = [(n, c[::-1] if n == b"data.bin" else c) for n, c in await genuine()]
    pieces = [one_file(name, content) for name, content in files]
    store = await receive(http(body_of(pieces)))
    assert isinstance(reason(store), PartDiffers)


async def test_an_answer_that_breaks_off_anywhere_leaves_nothing() -> None:
    whole = body_of(await wire(await genuine()))
    for cut in sorted({0, 1, 7, 8, 9, 30, len(whole) // 2, len(whole) - 17, len(whole) - 16, len(whole) - 1}):
        assert isinstance(reason(await receive(http(whole[:cut], length=len(whole)))), PartUnavailable)
        assert isinstance(reason(await receive(http(whole[:cut]))), PartUnavailable)


async def test_bytes_behind_the_part_are_refused() -> None:
    whole = body_of(await wire(await genuine()))
    assert "more bytes" in str(reason(await receive(http(whole + b"\0"))))


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 1 << 41])
async def test_a_declared_size_beyond_the_limit_is_refused_before_a_byte_is_read(size: int) -> None:
    store = await receive(
        http(body_of([one_file(b"data.bin", b"", size=size)]), length=1 << 50), stays_silent=True
    )
    assert isinstance(reason(store), PartDiffers)


@pytest.mark.parametrize("count", [0, 100_001, 2**64 - 1])
async def test_a_declared_number_of_files_out_of_bounds_is_refused(count: int) -> None:
    assert isinstance(reason(await receive(http(u64(count), length=1 << 40), stays_silent=True)), PartDiffers)


async def test_a_name_without_end_is_refused() -> None:
    endless = u64(1) + b"\xff" * 10 + b"\x7f"
    assert isinstance(reason(await receive(http(endless, length=1 << 40), stays_silent=True)), PartDiffers)


@pytest.mark.parametrize("cookie", ["11", "999999999999", "-1", "x", "1.2"])
async def test_a_version_that_was_not_asked_for_is_refused(cookie: str) -> None:
    assert isinstance(reason(await receive(http(b"", cookie=cookie))), PartDiffers)


async def test_another_size_than_allowed_is_refused_by_the_part_s_own_declaration() -> None:
    head = u64(2000)
    store = await receive(
        http(head, cookie="1", length=1 << 40), limits=FetchLimits(part_bytes=1000), stays_silent=True
    )
    assert "declares 2000 bytes" in str(reason(store))


async def test_a_part_for_which_there_is_no_room_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def have_room(_incoming: object, size: int) -> None:
        raise SqlError(Code.NOT_ENOUGH_SPACE, f"no room for {size} bytes")

    monkeypatch.setattr(Incoming, "have_room", have_room)
    store = MemoryPartStore(StoreDisk(model_definition()), ENV)
    head = http(u64(2000), cookie="1", length=1 << 20)
    async with peer(head, stays_silent=True) as host, HttpPartFetcher() as fetcher:
        with pytest.raises(SqlError, match="no room for 2000 bytes"):
            await fetcher.fetch(host, REPLICA, PART, into=store, expected=None)
    assert not store.disk.temporary


async def test_a_peer_that_falls_silent_is_given_up() -> None:
    whole = body_of(await wire(await genuine()))
    store = await receive(
        http(whole[:100], length=len(whole)), limits=FetchLimits(silence_s=0.05), stays_silent=True
    )
    assert isinstance(reason(store), PartUnavailable)


@pytest.mark.parametrize("head_bytes", [9, 30, 100], ids=["first line", "headers", "part"])
async def test_a_peer_that_drips_is_given_up(head_bytes: int) -> None:
    """It is never silent for as long as it may be, and would be done in a year."""
    whole = http(body_of(await wire(await genuine())))
    began_s = asyncio.get_running_loop().time()
    limits = FetchLimits(silence_s=20 * _DRIP_S, connect_s=0.2, least_bytes=100)
    store = await receive(whole[:head_bytes], limits=limits, drip=whole[head_bytes:])
    assert isinstance(reason(store), PartUnavailable)
    assert asyncio.get_running_loop().time() - began_s < len(whole) * _DRIP_S


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01\x02 this is no HTTP\r\n\r\n",
        http(b"", status="302 Found\r\nLocation: http://127.0.0.1:1/"),
        http(b"Code: 232. DB::Exception: No part all_0_0_0 in table", status="500 Internal Server Error"),
        http(b"", status="503 Service Unavailable"),
    ],
)
async def test_what_is_no_part_at_all_is_unavailable(answer: bytes) -> None:
    assert isinstance(reason(await receive(answer)), PartUnavailable)


async def test_no_changed_byte_of_a_part_goes_unnoticed() -> None:
    """Every 13th is changed, one at a time: sizes, names, hashes and content are all compared."""
    whole = body_of(await wire(await genuine()))
    for at in range(0, len(whole), 13):
        changed = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        await receive(http(changed), limits=FetchLimits(silence_s=0.2))
