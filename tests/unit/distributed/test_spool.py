"""Names, files and batches of a spool, on a real disk; definitions; whom a block is given to."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.distributed.batches import BatchLimits, BatchRecord, token_of
from engine.distributed.definition import DistributedDefinition
from engine.distributed.delivery import AllReplicasFailed, Block, Deliveries, Policy
from engine.distributed.peers import Peer, PeerShard
from engine.distributed.replica_choice import LoadBalancing
from engine.distributed.sender import DirectorySender, Outgoing, SenderOptions
from engine.distributed.spool_disk import LocalDisk
from engine.distributed.spool_file import FileHead, body_of, check_file, write_file
from engine.distributed.spool_names import (
    CURRENT_BATCH,
    SENT_BATCH,
    destination_of,
    is_destination,
    number_of,
)
from engine.distributed.spool_table import SpoolBlock, SpoolOptions, TableSpool
from engine.env import SystemEnv
from engine.errors import Code, Corrupt, NodeUnavailable, ReplyLost, SqlError
from engine.names import HostId
from engine.node.distributed.sending.spools import options_of, spool_options_of

HEAD = FileHead("token", ("k", "ключ"), 3, {"insert_quorum": "2"})


async def rows(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def peer(shard: int, replica: int, *, database: str = "") -> Peer:
    name = f"host-{shard}-{replica}"
    return Peer(
        HostId(name, 9000),
        name,
        8123,
        shard_number=shard,
        replica_number=replica,
        default_database=database,
    )


SHARDS = (
    PeerShard(1, 1, True, (peer(1, 1), peer(1, 2))),
    PeerShard(2, 1, False, (peer(2, 1, database="my db"),)),
)


# -- definitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Distributed('c', 'db', 't')",
        "Distributed('c', 'db', 't', rand())",
        "Distributed('c', '', 'it\\'s', cityHash64(a, b, tuple(1, 2)), 'default')",
        "Distributed('c', 'db', 't', k) SETTINGS bytes_to_throw_insert = 5, fsync_after_insert = 1",
    ],
)
def test_a_definition_is_shown_as_it_was_made(text: str) -> None:
    definition = DistributedDefinition.parse(text)
    assert definition.engine_full == text
    assert DistributedDefinition.parse(f"{text} COMMENT 'x'") == definition


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Distributed(c, d)", 42),
        ("Distributed", 42),
        ("Distributed(c, d, t, k, p, more)", 42),
        ("Distributed(c, d, 1 + 1)", 36),
        ("Distributed(c, d, t) SETTINGS nope = 1", 115),
        ("Distributed(c, d, t) SETTINGS fsync_after_insert = -1", 36),
        ("Distributed(c, d, t) SETTINGS bytes_to_throw_insert = 1, bytes_to_delay_insert = 2", 69),
    ],
)
def test_a_wrong_definition_is_refused(text: str, code: int) -> None:
    with pytest.raises(SqlError) as raised:
        DistributedDefinition.parse(text)
    assert raised.value.code == code


def test_old_names_of_settings_and_current_database_are_known() -> None:
    text = "Distributed(c, currentDatabase(), t) SETTINGS monitor_batch_inserts = true"
    definition = DistributedDefinition.parse(text, current_database="mine")
    assert (definition.database, definition.settings) == ("mine", {"background_insert_batch": "1"})


def test_what_a_table_s_settings_say_is_what_its_files_and_senders_do() -> None:
    given = "SETTINGS background_insert_batch = 1, background_insert_split_batch_on_failure = 1"
    options = options_of(DistributedDefinition.parse(f"Distributed(c, d, t) {given}"))
    assert options.batch is not None and options.splits_on_failure
    usual = DistributedDefinition.parse("Distributed(c, d, t)")
    assert options_of(usual) == SenderOptions(waits_for_more=False)
    assert spool_options_of(usual) == SpoolOptions()
    given = "SETTINGS background_insert_sleep_time_ms = 50, monitor_max_sleep_time_ms = 2000"
    slow = options_of(DistributedDefinition.parse(f"Distributed(c, d, t) {given}"))
    assert (slow.sleep_s, slow.max_sleep_s, slow.waits_for_more) == (0.05, 2.0, True)
    given = "SETTINGS fsync_after_insert, fsync_directories = 1"
    forced = DistributedDefinition.parse(f"Distributed(c, d, t) {given}")
    assert spool_options_of(forced) == SpoolOptions(fsync_files=True, fsync_directories=True)
    assert options_of(forced).fsync_directories


@pytest.mark.parametrize("splits", [True, False])
def test_files_of_a_batch_that_is_refused_as_too_large_go_alone_if_the_table_says_so(
    tmp_path: Path, splits: bool
) -> None:
    async def scenario() -> list[tuple[str, int]]:
        spool, sent = TableSpool(LocalDisk(tmp_path), SpoolOptions()), list[tuple[str, int]]()
        spool.load()
        for number in range(3):
            head = FileHead(f"token {number}", ("k",), 1)
            await spool.put([SpoolBlock(("shard1_all_replicas",), head, rows(b"x"))])

        async def deliver(out: Outgoing) -> None:
            sent.append((out.token, out.rows))
            if out.rows > 1:
                raise SqlError(Code.MEMORY_LIMIT_EXCEEDED, "too much")

        options = SenderOptions(batch=BatchLimits(), splits_on_failure=splits)
        sender = DirectorySender(spool, "shard1_all_replicas", deliver, SystemEnv(), options)
        with contextlib.suppress(SqlError):
            await sender.send_all()
        assert len(list(spool.pending("shard1_all_replicas"))) == (0 if splits else 3)
        return sent

    first, *alone = asyncio.run(scenario())
    assert first[1] == 3
    assert alone == ([(f"token {number}", 1) for number in range(3)] if splits else [])


@pytest.mark.parametrize(
    "error", [SqlError(Code.UNKNOWN_TABLE, "none"), OSError("disk"), ZeroDivisionError()]
)
def test_a_directory_is_sent_again_after_any_error(tmp_path: Path, error: Exception) -> None:
    async def scenario() -> None:
        spool, tries, is_sent = TableSpool(LocalDisk(tmp_path), SpoolOptions()), [error], asyncio.Event()
        spool.load()
        await spool.put([SpoolBlock(("shard1_all_replicas",), FileHead("token", ("k",), 1), rows(b"x"))])

        async def deliver(out: Outgoing) -> None:
            if tries:
                raise tries.pop()
            is_sent.set()

        options = SenderOptions(sleep_s=0.001)
        sender = DirectorySender(spool, "shard1_all_replicas", deliver, SystemEnv(), options)
        sending = asyncio.create_task(sender.run())
        async with asyncio.timeout(60):
            await is_sent.wait()
        assert sender.facts().error_count == 1
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(scenario())


def test_rows_that_do_not_fit_their_table_are_not_broken_and_hold_up_those_behind_them_until_it_was_changed(
    tmp_path: Path,
) -> None:
    """What the runbooks broken-spool and spool-backlog say. Batches do the same."""

    async def scenario(batch: BatchLimits | None) -> None:
        spool, sent, columns = TableSpool(LocalDisk(tmp_path), SpoolOptions()), list[str](), {"k"}
        spool.load()
        for number, names in enumerate([("k", "gone"), ("k",)]):
            head = FileHead(f"token {number}", names, 1)
            await spool.put([SpoolBlock(("shard1_all_replicas",), head, rows(b"x"))])

        async def deliver(out: Outgoing) -> None:
            if missing := set(out.head.columns) - columns:
                raise SqlError(Code.NO_SUCH_COLUMN_IN_TABLE, f"No such column {missing}")
            sent.append(out.token)

        sender = DirectorySender(
            spool, "shard1_all_replicas", deliver, SystemEnv(), SenderOptions(batch=batch)
        )
        for _ in range(3):
            with pytest.raises(SqlError, match="No such column"):
                await sender.send_all()
        facts = sender.facts()
        assert (facts.data_files, facts.broken_files, facts.error_count, sent) == (2, 0, 3, [])
        assert "No such column" in facts.last_exception

        columns.add("gone")
        await sender.send_all()
        assert len(sent) == 2
        facts = sender.facts()
        assert (facts.data_files, facts.broken_files, facts.error_count) == (0, 0, 3)
        assert facts.last_exception == "", "it is over"

    for batch in (None, BatchLimits()):
        asyncio.run(scenario(batch))


def test_a_broken_file_is_told_of_until_files_were_sent_without_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        spool = TableSpool(LocalDisk(tmp_path), SpoolOptions())
        spool.load()

        async def put(token: str) -> None:
            await spool.put([SpoolBlock(("shard1_all_replicas",), FileHead(token, ("k",), 1), rows(b"x"))])

        async def deliver(_: Outgoing) -> None:
            pass

        sender = DirectorySender(spool, "shard1_all_replicas", deliver, SystemEnv(), SenderOptions())
        await put("damaged")
        [file] = (tmp_path / "shard1_all_replicas").glob("*.bin")
        file.write_bytes(b"nothing of ours")
        await put("whole")
        for _ in range(2):  # the second time there is nothing to do
            await sender.send_all()
            assert sender.facts().broken_files == 1
            assert sender.facts().last_exception != ""
        await put("another")
        await sender.send_all()
        assert (sender.facts().broken_files, sender.facts().last_exception) == (1, "")

    asyncio.run(scenario())


# -- names ---------------------------------------------------------------------------------------------------


def test_directories_of_both_kinds_name_their_replicas() -> None:
    assert destination_of("shard1_all_replicas", SHARDS).peers == SHARDS[0].peers
    assert destination_of("shard1_replica2", SHARDS).peers == (SHARDS[0].peers[1],)
    old = "default:secret@host%2D2%2D1:9000#my%20db"
    assert destination_of(old, SHARDS).peers == SHARDS[1].peers
    both = "default@host%2D1%2D1:9000,default@host%2D1%2D2:9000"
    assert destination_of(both, SHARDS).peers == SHARDS[0].peers


@pytest.mark.parametrize(
    "name", ["shard3_all_replicas", "shard0_replica1", "shard1_replica9", "a@b:1", "tmp"]
)
def test_a_directory_of_nobody_is_refused(name: str) -> None:
    with pytest.raises(SqlError) as raised:
        destination_of(name, SHARDS)
    assert raised.value.code == 79


def test_only_numbers_are_files_and_only_destinations_are_directories() -> None:
    assert [number_of(name) for name in ("0.bin", "7.bin", f"{10**19}.bin")] == [0, 7, 10**19]
    for name in ("07.bin", "x.bin", "7.bin.tmp", "-1.bin", "٧.bin"):
        assert number_of(name) is None, "its number would name another file"
    assert not is_destination("tmp") and not is_destination("broken")


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    async def run() -> None:
        disk = LocalDisk(tmp_path)
        await write_file(disk, "a.bin", HEAD, rows(b"one", b"", b"two"))
        file = await check_file(disk, "a.bin")
        assert file.head == HEAD
        assert b"".join([chunk async for chunk in body_of(disk, file)]) == b"onetwo"

    asyncio.run(run())


def test_a_large_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    async def run() -> None:
        disk = LocalDisk(tmp_path)
        pieces = [bytes([n]) * 400_000 for n in range(20)]
        size = await write_file(disk, "a.bin", HEAD, rows(*pieces))
        assert disk.size_bytes("a.bin") == size
        file = await check_file(disk, "a.bin")
        assert b"".join([chunk async for chunk in body_of(disk, file)]) == b"".join(pieces)
        with (tmp_path / "a.bin").open("r+b") as changed:
            changed.seek(5_000_000)
            changed.write(b"!")
        with pytest.raises(Corrupt):
            await check_file(disk, "a.bin")

    asyncio.run(run())


def test_any_flipped_bit_and_any_cut_is_recognised(tmp_path: Path) -> None:
    async def run() -> None:
        disk = LocalDisk(tmp_path)
        await write_file(disk, "a.bin", HEAD, rows(b"some rows"))
        whole = (tmp_path / "a.bin").read_bytes()
        for at in range(len(whole)):
            bad = bytearray(whole)
            bad[at] ^= 1 << (at % 8)
            (tmp_path / "b.bin").write_bytes(bytes(bad))
            with pytest.raises(Corrupt):
                await check_file(disk, "b.bin")
            (tmp_path / "b.bin").write_bytes(whole[:at])
            with pytest.raises(Corrupt):
                await check_file(disk, "b.bin")

    asyncio.run(run())


def test_nothing_is_in_place_before_the_rest_of_the_insert_is_written(tmp_path: Path) -> None:
    async def run() -> None:
        spool = TableSpool(LocalDisk(tmp_path), SpoolOptions())
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun = asyncio.Event()

        async def rest() -> None:
            begun.set()
            await outcome

        putting = asyncio.create_task(
            spool.put([SpoolBlock(("shard1_replica1",), HEAD, rows(b"x"))], after=rest())
        )
        await begun.wait()
        assert spool.pending("shard1_replica1") == []
        outcome.set_exception(SqlError(Code.TABLE_IS_READ_ONLY, "no"))
        with pytest.raises(SqlError, match="no"):
            await putting
        assert not list(tmp_path.rglob("*.bin"))

    asyncio.run(run())


def test_a_spool_goes_on_with_its_numbers_and_forgets_what_was_temporary(tmp_path: Path) -> None:
    async def run() -> None:
        spool = TableSpool(LocalDisk(tmp_path), SpoolOptions(fsync_files=True, fsync_directories=True))
        spool.load()
        block = SpoolBlock(("shard1_replica1", "shard1_replica2"), HEAD, rows(b"x"))
        await spool.put([block])
        (tmp_path / "tmp" / "9.bin").write_bytes(b"half of a file")
        again = TableSpool(LocalDisk(tmp_path), SpoolOptions())
        assert "shard1_replica1" in again.load()
        await again.put([SpoolBlock(("shard1_replica1",), HEAD, rows(b"y"))])
        assert again.pending("shard1_replica1") == [1, 2]
        assert again.pending("shard1_replica2") == [1]
        assert not list((tmp_path / "tmp").iterdir())
        again.truncate()
        assert again.pending_bytes() == 0

    asyncio.run(run())


def test_rows_that_come_after_a_batch_are_not_taken_for_its_files(tmp_path: Path) -> None:
    """1. A batch of files 1 and 2 is confirmed. 2. Its files go. 3. The node dies before their proof goes.
    4. It starts, and its disk fails while the proof is worked off. 5. A new INSERT comes."""

    async def scenario() -> None:
        disk = LocalDisk(tmp_path)
        disk.make_directory("shard1_all_replicas")
        record = BatchRecord(disk, "shard1_all_replicas")
        await record.begin([1, 2])
        await record.confirm()
        spool, sent = TableSpool(disk, SpoolOptions()), list[str]()
        spool.load()
        await spool.put([SpoolBlock(("shard1_all_replicas",), FileHead("new", ("k",), 1), rows(b"x"))])

        async def deliver(out: Outgoing) -> None:
            sent.append(out.token)

        options = SenderOptions(batch=BatchLimits())
        await DirectorySender(spool, "shard1_all_replicas", deliver, SystemEnv(), options).send_all()
        assert sent == ["new"]

    asyncio.run(scenario())


@pytest.mark.parametrize("record", [CURRENT_BATCH, SENT_BATCH])
def test_when_a_record_cannot_be_read_nothing_that_may_be_of_its_batch_is_sent(
    tmp_path: Path, record: str
) -> None:
    async def scenario() -> None:
        spool, sent = TableSpool(LocalDisk(tmp_path), SpoolOptions()), list[str]()
        spool.load()

        async def put(token: str) -> None:
            await spool.put([SpoolBlock(("shard1_all_replicas",), FileHead(token, ("k",), 1), rows(b"x"))])

        async def deliver(out: Outgoing) -> None:
            sent.append(out.token)

        await put("one")
        await put("two")
        (tmp_path / "shard1_all_replicas" / record).write_text("2\n1\n")
        options = SenderOptions(batch=BatchLimits())
        sender = DirectorySender(spool, "shard1_all_replicas", deliver, SystemEnv(), options)
        with pytest.raises(Corrupt) as raised:
            await sender.send_all()
        facts = sender.facts()
        assert raised.value.code == 588 and "cannot be read" in facts.last_exception
        assert (sent, facts.data_files, facts.broken_files) == ([], 0, 2)
        await put("three")
        await sender.send_all()
        assert sent == ["three"] and sender.facts().broken_files == 2

    asyncio.run(scenario())


def test_a_batch_record_is_read_back_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        disk = LocalDisk(tmp_path)
        disk.make_directory("d")
        record = BatchRecord(disk, "d")
        assert record.current() == ()
        await record.begin([3, 12])
        assert record.current() == (3, 12)
        (tmp_path / "d" / "current_batch.txt").write_text("2\n3\n1\n4\n")
        with pytest.raises(Corrupt) as raised:
            record.current()
        assert raised.value.code == 588

    asyncio.run(run())


def test_the_token_of_a_batch_is_that_of_its_files_in_their_order() -> None:
    heads = [FileHead(str(n), ("k",)) for n in range(3)]
    assert token_of(heads[:1]) == "0"
    assert token_of(heads) == token_of(list(heads))
    assert len({token_of(heads), token_of(heads[:2]), token_of(heads[::-1])}) == 3


# -- delivery ------------------------------------------------------------------------------------------------


class FixedEnv(SystemEnv):
    """Time stands still, chance is seeded."""

    def __init__(self) -> None:
        self._rng = random.Random(1)  # type: ignore[assignment]

    def monotonic_s(self) -> float:
        return 100.0

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=1)


class KnowsTokens:
    """A sink: a server that knows tokens and not the setting of funnels; with which block it got a token."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bool]] = []

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        if "enable_funnel_functions" in block.settings:
            raise SqlError(115, "Unknown setting enable_funnel_functions")
        self.written.append((block.token, with_token))


class Busy:
    """A sink: a connection to each host is made when it was tried so often; remembers who was tried."""

    def __init__(self, **tries: int) -> None:
        self.tries = tries
        self.asked: list[str] = []

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        self.asked.append(peer.host)
        if self.asked.count(peer.host) < self.tries[peer.host.replace("-", "_")]:
            raise NodeUnavailable("no connection within a second")


class Answers:
    """A sink: what each host answers; remembers who was asked."""

    def __init__(self, **answers: Exception | None) -> None:
        self.answers = answers
        self.asked: list[tuple[str, bool]] = []

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        self.asked.append((peer.host, with_token))
        error = self.answers.get(peer.host.replace("-", "_"))
        if isinstance(error, SqlError) and error.code == 115 and not with_token:
            return
        if error is not None:
            raise error


BLOCK = Block("db", "t", ("k",), "token", lambda: rows(b"x"))
IN_ORDER = Policy(LoadBalancing.IN_ORDER)


def deliver(sink: Answers | Busy, times: int = 1) -> Deliveries:
    deliveries = Deliveries(sink, FixedEnv(), own_host="me")

    async def run() -> None:
        for _ in range(times):
            await deliveries.to_any(SHARDS[0].peers, BLOCK, IN_ORDER)

    asyncio.run(run())
    return deliveries


def test_the_next_replica_gets_what_the_first_certainly_did_not() -> None:
    sink = Answers(host_1_1=NodeUnavailable("down"))
    deliveries = deliver(sink, times=2)
    assert [host for host, _ in sink.asked] == ["host-1-1", "host-1-2", "host-1-2"]
    assert deliveries.failures.count(HostId("host-1-1", 9000)) == 1


def test_a_connection_is_tried_three_times_and_the_other_replica_in_between() -> None:
    sink = Busy(host_1_1=3, host_1_2=4)
    deliveries = deliver(sink)
    assert sink.asked == ["host-1-1", "host-1-2"] * 2 + ["host-1-1"]
    assert deliveries.failures.count(HostId("host-1-1", 9000)) == 2


def test_a_replica_that_cannot_take_rows_now_is_asked_once() -> None:
    sink = Answers(host_1_1=SqlError(Code.TABLE_IS_READ_ONLY, "no Keeper"), host_1_2=NodeUnavailable("down"))
    with pytest.raises(AllReplicasFailed):
        deliver(sink)
    assert [host for host, _ in sink.asked] == ["host-1-1", "host-1-2", "host-1-2", "host-1-2"]


def test_a_lost_answer_is_the_callers_to_repeat() -> None:
    sink = Answers(host_1_1=ReplyLost("lost"))
    with pytest.raises(ReplyLost):
        deliver(sink)
    assert [host for host, _ in sink.asked] == ["host-1-1"]


def test_when_nobody_can_be_reached_all_are_named() -> None:
    with pytest.raises(AllReplicasFailed) as raised:
        deliver(Answers(host_1_1=NodeUnavailable("down"), host_1_2=NodeUnavailable("gone")))
    assert raised.value.code == 279
    assert "host-1-1:9000: down" in raised.value.message and "gone" in raised.value.message


def test_an_old_server_gets_no_token_from_then_on() -> None:
    sink = Answers(host_1_1=SqlError(115, "Unknown setting insert_deduplication_token"))
    deliver(sink, times=2)
    assert sink.asked == [("host-1-1", True), ("host-1-1", False), ("host-1-1", False)]


def test_a_server_that_does_not_know_another_setting_gets_tokens_all_the_same() -> None:
    """1. An INSERT has a setting that a replica does not know, and fails. 2. The next one has none."""
    sink = KnowsTokens()
    deliveries = Deliveries(sink, FixedEnv(), own_host="me")

    async def run() -> None:
        with pytest.raises(SqlError, match="enable_funnel_functions"):
            block = replace(BLOCK, settings={"enable_funnel_functions": "1"})
            await deliveries.to_any(SHARDS[0].peers, block, IN_ORDER)
        await deliveries.to_any(SHARDS[0].peers, BLOCK, IN_ORDER)

    asyncio.run(run())
    assert sink.written == [("token", True)]
