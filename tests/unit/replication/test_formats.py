"""The texts of znodes: against bytes of a real 18.16 cluster, round trips, and damage."""

from __future__ import annotations

import base64
import json
import pathlib
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MalformedEntry
from engine.replication import log_actions as kinds
from engine.replication.block_id import BlockId
from engine.replication.columns import Columns
from engine.replication.host import ReplicaHost
from engine.replication.log_entry import LogEntry
from engine.replication.mutation_entry import MutationEntry, mutation_number
from engine.replication.part_checksums import (
    FileChecksum,
    PartDiffers,
    PartDigest,
    check_same_part,
    digest_of,
    parse_checksums_file,
)
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.quorum import LastQuorumParts, QuorumStatus
from engine.replication.table_metadata import TableMetadata
from engine.replication.text import time_text
from engine.siphash import siphash128

DATA = pathlib.Path(__file__).parents[2] / "data"
CAPTURES = json.loads((DATA / "replication_captures.json").read_text())
PARTS = json.loads((DATA / "replication_parts.json").read_text())
P = PartName.parse


class Format(Protocol):
    def to_bytes(self) -> bytes: ...


READERS: dict[str, Callable[..., Format]] = {
    "log_entry": LogEntry.from_bytes,
    "mutation": MutationEntry.from_bytes,
    "quorum_status": QuorumStatus.from_bytes,
    "last_part": LastQuorumParts.from_bytes,
    "host": ReplicaHost.from_bytes,
    "metadata": TableMetadata.from_bytes,
    "columns": Columns.from_bytes,
    "checksums": PartDigest.from_bytes,
}
ROWS = [(kind, row) for kind in READERS for row in CAPTURES[kind]]


def payload(row: dict[str, str]) -> bytes:
    return base64.b64decode(row["base64"]) if "base64" in row else row["text"].encode()


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_znode_of_a_real_cluster_is_written_back_byte_for_byte(kind: str, row: dict[str, str]) -> None:
    assert READERS[kind](payload(row)).to_bytes() == payload(row)


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_damaged_znode_is_refused_and_the_error_says_where(kind: str, row: dict[str, str]) -> None:
    data = payload(row)
    for damaged in (b"x" + data, data + b"\ntail", data.replace(b"version: ", b"version: 99", 1)):
        if damaged == data:
            continue  # the text has no version
        with pytest.raises(MalformedEntry) as refused:
            READERS[kind](damaged, where="/t/node")
        assert refused.value.where == "/t/node"


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_cut_znode_is_refused_or_reads_as_what_it_says(kind: str, row: dict[str, str]) -> None:
    data = payload(row)
    for end in range(len(data)):
        try:
            read = READERS[kind](data[:end])
        except MalformedEntry:
            continue
        assert read.to_bytes() == data[:end]


def test_the_captures_hold_what_these_tests_are_about() -> None:
    found = {type(LogEntry.from_bytes(payload(row)).action) for row in CAPTURES["log_entry"]}
    assert found >= {
        kinds.GetPart,
        kinds.MergeParts,
        kinds.MutatePart,
        kinds.DropRange,
        kinds.ClearInRange,
        kinds.ReplaceRange,
    }
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", CAPTURES["block_id"], ids=lambda row: row["text"])
def test_block_ids_of_a_real_cluster_parse(row: dict[str, str]) -> None:
    assert str(BlockId.parse(row["text"])) == row["text"]


@pytest.mark.parametrize(
    "text", ["", "all", "all_1", "a/b_1_2", "all_1_2_3", "all_01_2", "all_1_99999999999999999999"]
)
def test_what_is_no_block_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedEntry):
        BlockId.parse(text, where="/t/blocks")


# --- log entries ------------------------------------------------------------------------------------------

CHECKSUM = "0123456789abcdef0123456789abcdef"
ACTIONS: list[tuple[kinds.Action, str]] = [
    (kinds.GetPart(P("all_0_0_0")), "get\nall_0_0_0\n"),
    (kinds.AttachPart(P("all_0_0_0"), CHECKSUM), f"attach\nall_0_0_0\npart_checksum: {CHECKSUM}\n"),
    (
        kinds.MergeParts((P("all_0_0_0"), P("all_1_1_0")), P("all_0_1_1"), deduplicate=True),
        "merge\nall_0_0_0\nall_1_1_0\ninto\nall_0_1_1\ndeduplicate: 1\n",
    ),
    (
        kinds.MergeParts(
            (P("all_0_0_0"),),
            P("all_0_0_1"),
            merge_type=kinds.MergeType.TTL_DELETE,
            result_uuid=UUID(int=1),
            deduplicate_by_columns=("a", "b'c\n"),
            cleanup=True,
            apply_patches=("patch-1-all_0_0_0",),
        ),
        (
            "merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 0\nmerge_type: 2\n"
            "into_uuid: 00000000-0000-0000-0000-000000000001\n"
            "deduplicate_by_columns: 'a','b\\'c\\n'\ncleanup: 1\n"
            "apply_patches: 1\npatch-1-all_0_0_0\n"
        ),
    ),
    (kinds.DropRange(P("all_0_4_999999999_999999999")), "drop\nall_0_4_999999999_999999999\n"),
    (kinds.DropRange(P("all_0_4_1"), kinds.RangeFate.DETACH), "detach\nall_0_4_1\n"),
    (
        kinds.ClearInRange(kinds.Cleared.INDEX, "i\tx", P("all_0_4_999999999_2")),
        "clear_index\ni\\tx\nfrom\nall_0_4_999999999_2\n",
    ),
    (
        kinds.ReplaceRange(
            P("all_0_1_999999999_999999999"), "d", "t\n", (P("all_0_0_0"),), (P("all_2_2_0"),), (CHECKSUM,), 3
        ),
        (
            "REPLACE_RANGE\ndrop_range_name: all_0_1_999999999_999999999\n"
            "from_database: d\nfrom_table: t\\n\n"
            f"source_parts: ['all_0_0_0']\nnew_parts: ['all_2_2_0']\npart_checksums: ['{CHECKSUM}']\n"
            "columns_version: 3\n"
        ),
    ),
    (kinds.MutatePart(P("all_0_0_0"), P("all_0_0_0_3")), "mutate\nall_0_0_0\nto\nall_0_0_0_3\n"),
    (
        kinds.MutatePart(P("all_0_0_0"), P("all_0_0_0_3"), UUID(int=2), 5),
        "mutate\nall_0_0_0\nto\nall_0_0_0_3\nto_uuid\n00000000-0000-0000-0000-000000000002\nalter_version\n5\n",
    ),
    (
        kinds.AlterMetadata(4, True, "columns é\n", "meta\n"),
        (
            "alter\nalter_version\n4\nhave_mutation\n1\ncolumns_str_size:\n11\ncolumns é\n\n"
            "metadata_str_size:\n5\nmeta\n\n"
        ),
    ),
    (kinds.SyncPinnedPartUuids(), "sync_pinned_part_uuids\n\n"),
    (
        kinds.ClonePartFromShard(P("all_0_0_0"), "/t/02"),
        "clone_part_from_shard\nall_0_0_0\nsource_shard: /t/02\n",
    ),
]
HEADER = "create_time: 2026-11-20 12:39:18\nsource replica: r1\nblock_id: all_1_2\n"


@pytest.mark.parametrize(("action", "block"), ACTIONS, ids=lambda value: type(value).__name__)
def test_every_type_is_written_as_clickhouse_does_and_read_again(action: kinds.Action, block: str) -> None:
    entry = LogEntry(action, "r1", "2026-11-20 12:39:18", "all_1_2")
    data = entry.to_bytes()
    assert data.decode() == f"format version: {entry.version_written}\n{HEADER}{block}"
    assert LogEntry.from_bytes(data) == replace(entry, version=entry.version_written)


def test_the_version_written_is_the_oldest_that_has_room_for_the_content() -> None:
    merge = kinds.MergeParts((P("all_0_0_0"),), P("all_0_0_1"))
    assert LogEntry(merge, "", "2026-01-01 00:00:00").version_written == 4
    with_uuid = replace(merge, result_uuid=UUID(int=1))
    assert LogEntry(with_uuid, "", "2026-01-01 00:00:00").version_written == 5
    by_columns = replace(merge, deduplicate_by_columns=("a",))
    assert LogEntry(by_columns, "", "2026-01-01 00:00:00").version_written == 6
    entry = LogEntry(merge, "", "2026-01-01 00:00:00", log_entry_id="x\ty")
    assert (
        b"format version: 7\n" in entry.to_bytes() and b"\nlog_entry_id: x\\ty\nmerge\n" in entry.to_bytes()
    )
    assert LogEntry.from_bytes(entry.to_bytes()).log_entry_id == "x\ty"


def test_trailers_come_in_order_and_each_may_be_absent() -> None:
    entry = LogEntry(
        kinds.GetPart(P("all_0_0_0")),
        "r1",
        "2026-01-01 00:00:00",
        part_type="Compact",
        storage_type="Packed",
        quorum=2,
    )
    assert entry.to_bytes().endswith(b"get\nall_0_0_0\npart_type: Compact\nstorage_type: Packed\nquorum: 2\n")
    assert LogEntry.from_bytes(entry.to_bytes()) == entry


def test_old_versions_are_read_without_what_they_lack() -> None:
    one = LogEntry.from_bytes(b"format version: 1\nsource replica: r\nget\nall_0_0_0\n")
    assert (one.create_time, one.block_id, one.version) == ("", "", 4)
    two = LogEntry.from_bytes(
        b"format version: 2\ncreate_time: 2016-01-01 00:00:00\nsource replica: r\n"
        b"merge\nall_0_0_0\ninto\nall_0_0_1\n"
    )
    assert two.action == kinds.MergeParts((P("all_0_0_0"),), P("all_0_0_1"))
    three = LogEntry.from_bytes(
        b"format version: 3\ncreate_time: 2016-01-01 00:00:00\nsource replica: r\nblock_id: b\n"
        b"get\nall_0_0_0\n"
    )
    assert three.block_id == "b"


def test_the_optional_lines_of_a_merge_are_read_in_any_order() -> None:
    text = (
        f"format version: 6\n{HEADER}merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 1\ncleanup: 1\n"
        "deduplicate_by_columns: 'a'\nmerge_type: 3\nquorum: 2\n"
    )
    entry = LogEntry.from_bytes(text.encode())
    assert isinstance(entry.action, kinds.MergeParts)
    assert entry.action.cleanup and entry.action.merge_type is kinds.MergeType.TTL_RECOMPRESS
    assert entry.action.deduplicate_by_columns == ("a",) and entry.quorum == 2


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ("get\n../../etc\n", 233),
        ("get\nall_5_4_0\n", 233),
        ("get\n\n", 233),
        ("merge\ninto\nall_0_0_1\ndeduplicate: 0\n", 27),
        ("merge\nall_0_0_0\n", 233),
        ("merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 2\n", 27),
        ("merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 0\nmerge_type: 9\n", 27),
        ("merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 0\napply_patches: 99999999999\n", 27),
        ("merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 0\ninto_uuid: x\n", 27),
        ("merge\nall_0_0_0\ninto\nall_0_0_1\ndeduplicate: 0\ndeduplicate_by_columns: a\n", 26),
        ("attach\nall_0_0_0\npart_checksum: zz\n", 27),
        (
            "alter\nalter_version\n1\nhave_mutation\n0\ncolumns_str_size:\n99999\nx\nmetadata_str_size:\n1\nx\n",
            27,
        ),
        (
            "alter\nalter_version\n1\nhave_mutation\n0\ncolumns_str_size:\n1\né\nmetadata_str_size:\n1\nx\n",
            27,
        ),
        ("nonsense\n", 27),
        ("get\nall_0_0_0\nquorum: -1\n", 27),
        ("get\nall_0_0_0\nquorum: 1\nquorum: 1\n", 27),
    ],
)
def test_a_malformed_block_is_refused(block: str, code: int) -> None:
    with pytest.raises(MalformedEntry) as refused:
        LogEntry.from_bytes(f"format version: 4\n{HEADER}{block}".encode(), where="log-0000000007")
    assert (refused.value.code, refused.value.where) == (code, "log-0000000007")


@pytest.mark.parametrize("version", [0, 8, 99])
def test_an_unknown_version_of_an_entry_is_refused(version: int) -> None:
    with pytest.raises(MalformedEntry) as refused:
        LogEntry.from_bytes(f"format version: {version}\n{HEADER}get\nall_0_0_0\n".encode())
    assert refused.value.code == 287


words = st.text(st.characters(codec="utf-8"), max_size=20)
line_words = st.text(string.ascii_letters + "é -_'", min_size=1, max_size=20)
names = st.builds(lambda n, s, lv, m: PartName("all", n, n + s, lv, m), *[st.integers(0, 99)] * 4)
actions = st.one_of(
    st.builds(kinds.GetPart, names),
    st.builds(
        kinds.MergeParts,
        st.lists(names, min_size=1, max_size=4).map(tuple),
        names,
        st.booleans(),
        st.sampled_from(kinds.MergeType),
        st.none() | st.uuids(),
        st.lists(words, max_size=3).map(tuple),
        st.booleans(),
        st.lists(st.from_regex(r"patch-[0-9a-f]{4}-all_0_0_0", fullmatch=True), max_size=2).map(tuple),
    ),
    st.builds(kinds.DropRange, names, st.sampled_from(kinds.RangeFate)),
    st.builds(kinds.ClearInRange, st.sampled_from(kinds.Cleared), words, names),
    st.builds(kinds.MutatePart, names, names, st.none() | st.uuids(), st.none() | st.integers(0, 9)),
    st.builds(kinds.AlterMetadata, st.integers(-1, 9), st.booleans(), words, words),
    st.builds(
        lambda span, db, table, n: kinds.ReplaceRange(span, db, table, (n, n), (n, n), (CHECKSUM,) * 2, 1),
        names,
        words,
        words,
        names,
    ),
)


@given(
    st.builds(
        LogEntry,
        action=actions,
        source_replica=line_words,
        create_time=st.just("2026-01-01 00:00:00"),
        block_id=words,
        log_entry_id=words,
        part_type=st.sampled_from(["", "Compact"]),
        quorum=st.integers(0, 5),
    )
)
def test_every_entry_survives_its_text(entry: LogEntry) -> None:
    assert LogEntry.from_bytes(entry.to_bytes()) == replace(entry, version=entry.version_written)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_malformed(data: bytes) -> None:
    for reader in READERS.values():
        try:
            reader(data)
        except MalformedEntry:
            pass


# --- mutations, quorum, hosts -----------------------------------------------------------------------------


def test_a_mutation_applies_to_older_parts_of_the_partitions_it_lists() -> None:
    entry = MutationEntry("2026-01-01 00:00:00", "r1", (("a", 5),), "DELETE WHERE x = '\n'", -1)
    assert entry.to_bytes().endswith(b"commands: DELETE WHERE x = \\'\\n\\'\nalter version: -1")
    assert MutationEntry.from_bytes(entry.to_bytes()) == entry
    assert (
        entry.applies_to(P("a_0_9_1")) and entry.applies_to(P("a_4_4_0")) and entry.applies_to(P("a_0_4_1_3"))
    )
    assert not entry.applies_to(P("a_5_5_0")) and not entry.applies_to(P("a_0_4_1_5"))
    assert not entry.applies_to(P("b_0_0_0"))
    assert mutation_number("0000000012") == 12 and mutation_number("12") is None


def test_a_mutation_that_lists_a_partition_twice_is_refused() -> None:
    text = (
        b"format version: 1\ncreate time: 2026-01-01 00:00:00\nsource replica: r\nblock numbers count: 2\n"
        b"a\t1\na\t2\ncommands: x"
    )
    with pytest.raises(MalformedEntry):
        MutationEntry.from_bytes(text)


def test_a_quorum_is_reached_when_enough_replicas_are_listed() -> None:
    status = QuorumStatus(P("all_0_0_0"), 2, frozenset({"r2"}))
    assert not status.is_reached
    status = status.with_replica("r1").with_replica("r1")
    assert status.is_reached
    assert status.to_bytes().endswith(b"actual_number_of_replicas: 2\nreplicas:\nr1\nr2\n")
    assert QuorumStatus.from_bytes(status.to_bytes()) == status


def test_the_last_quorum_part_of_a_partition_is_replaced_in_its_place() -> None:
    last = LastQuorumParts().with_part(P("a_0_0_0")).with_part(P("b_0_0_0")).with_part(P("a_4_4_0"))
    assert last.to_bytes() == b"version: 2\nparts count: 2\na\ta_4_4_0\nb\tb_0_0_0\n"
    assert LastQuorumParts.from_bytes(b"201812_2_2_0").parts == (P("201812_2_2_0"),)
    assert LastQuorumParts.from_bytes(b"") == LastQuorumParts()
    with pytest.raises(MalformedEntry):
        LastQuorumParts.from_bytes(b"version: 2\nparts count: 1\na\tb_0_0_0\n")


def test_a_host_without_scheme_is_http_and_stays_without() -> None:
    data = b"host: a\\tb\nport: 9009\ntcp_port: 9000\ndatabase: d\ntable: t\n"
    host = ReplicaHost.from_bytes(data)
    assert host.host == "a\tb" and host.to_bytes() == data
    for bad in (data.replace(b"9009", b"65536"), data + b"scheme: gopher\n"):
        with pytest.raises(MalformedEntry):
            ReplicaHost.from_bytes(bad, where="/t/replicas/r/host")


def test_times_are_wall_time_without_a_zone() -> None:
    assert time_text(1795178358) == "2026-11-20 12:39:18"


# --- checksums and headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("row", PARTS, ids=lambda row: row["name"])
def test_the_digest_of_a_part_of_chdb_is_what_its_system_parts_says(row: dict[str, str]) -> None:
    digest = PartDigest.from_bytes(base64.b64decode(row["checksums"]))
    hashes = (
        digest.hash_of_all_files,
        digest.hash_of_uncompressed_files,
        digest.content_hash_of_compressed_files,
    )
    assert [each[::-1].hex() for each in hashes] == [
        row["hash_of_all_files"],
        row["hash_of_uncompressed_files"],
        row["uncompressed_hash_of_compressed_files"],
    ]
    assert digest.hash_text == row["hash_of_all_files"]
    assert PartDigest.from_bytes(digest.to_bytes()) == digest
    header = PartHeader.of(row["columns"].encode(), digest)
    assert PartHeader.from_bytes(header.to_bytes()) == header
    assert len(header.to_bytes()) == 30 + 16 + 2 + 48
    assert Columns.from_bytes(row["columns"].encode()).to_bytes() == row["columns"].encode()


@pytest.mark.parametrize("row", PARTS, ids=lambda row: row["name"])
def test_a_damaged_checksums_file_is_refused(row: dict[str, str]) -> None:
    data = base64.b64decode(row["checksums"])
    files = parse_checksums_file(data)
    for end in range(len(data)):
        with pytest.raises(MalformedEntry):
            parse_checksums_file(data[:end], where=row["name"])
    huge = data[:28] + data[28:49] + b"\xff\xff\xff\x7f" + data[53:]
    with pytest.raises(MalformedEntry):
        parse_checksums_file(huge)
    for position in range(44, len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        try:
            assert parse_checksums_file(flipped) != files
        except MalformedEntry:
            pass


def test_two_parts_are_the_same_if_their_contents_are_however_compressed() -> None:
    plain = FileChecksum("count.txt", 2, b"c" * 16)
    ours = digest_of([plain, FileChecksum("d.bin", 9, b"1" * 16, 20, b"x" * 16)])
    recompressed = digest_of([FileChecksum("d.bin", 8, b"2" * 16, 20, b"x" * 16), plain])
    check_same_part("all_0_0_0", ours, recompressed)
    assert ours.is_same_content(recompressed) and ours != recompressed
    other_rows = digest_of([plain, FileChecksum("d.bin", 9, b"1" * 16, 20, b"y" * 16)])
    other_count = digest_of(
        [replace(plain, hash=b"d" * 16), FileChecksum("d.bin", 9, b"1" * 16, 20, b"x" * 16)]
    )
    for wrong in (
        other_rows,
        other_count,
        digest_of([plain]),
        digest_of([plain, replace(plain, name="d.bin")]),
    ):
        with pytest.raises(PartDiffers) as differs:
            check_same_part("all_0_0_0", ours, wrong)
        assert differs.value.code == 40 and differs.value.part == "all_0_0_0"


def test_siphash_is_that_of_the_sql_function() -> None:
    # SELECT hex(sipHash128('hello world')), hex(sipHash128(''))
    for data, text in (
        (b"hello world", "2f465bce90d80b8e25cdf096db71f3d8"),
        (b"", "32b5c1db56a683e9e5b5b6a8cbed11f7"),
    ):
        low, high = siphash128(data)
        assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == text


def test_the_checksum_in_a_replace_entry_is_the_digests_hash_text() -> None:
    entry = next(
        action
        for row in CAPTURES["log_entry"]
        if isinstance(action := LogEntry.from_bytes(payload(row)).action, kinds.ReplaceRange)
    )
    digests = {PartDigest.from_bytes(payload(row)).hash_text.upper() for row in CAPTURES["checksums"]}
    assert set(entry.checksums) <= digests
