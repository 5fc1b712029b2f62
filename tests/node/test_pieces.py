"""Parts of the node that need no process."""

import contextlib
import gzip
import hashlib
import struct
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from engine.config.model import User
from engine.errors import KeeperUnavailable, SqlError
from engine.node.http.auth import Credentials, authenticate, credentials_of
from engine.node.http.blocks import compress_block, decompress_block, decompressed
from engine.node.http.encoding import choose_encoding, decoded, encoder
from engine.node.http.query import parse_query
from engine.node.http.status import exception_text, status_of
from engine.node.statements.session_commands import settings_of_set, trailing_settings
from engine.node.system.shown_as_select import show_as_select
from engine.node.system.zookeeper_table import path_expressions
from engine.replication.cityhash import city_hash_128
from engine.sql import tokenize
from engine.storage import ChdbPool


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def joined(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def test_the_hash_is_the_one_in_chdbs_own_files(tmp_path: Path) -> None:
    """Every compressed block in a data file begins with the CityHash128 of the rest."""
    pool = await ChdbPool.open(tmp_path)
    await pool.query(
        "CREATE TABLE t (a UInt64, b String, c UInt8 CODEC(ZSTD), d UInt8 CODEC(NONE)) "
        "ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = 0"
    )
    for rows in (1, 2, 3, 5, 9, 17, 40, 100, 1000, 100_000):
        await pool.query(
            f"INSERT INTO t SELECT number, randomString(number % 90), number, number FROM numbers({rows})"
        )
    await pool.close()
    sizes = set()
    for file in (tmp_path / "store").glob("**/*.bin"):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[17:21], "little")
            assert city_hash_128(data[16 : 16 + size]) == data[:16]
            sizes.add(size)
            data = data[16 + size :]
    assert min(sizes) < 16 + 9
    assert max(sizes) > 10_000
    assert len(sizes) > 15


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_blocks_survive_the_way_there_and_back_in_any_pieces(data: bytes, step: int) -> None:
    import asyncio

    block = compress_block(data)
    assert decompress_block(block) == data
    stream = block + compress_block(b"second")
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert asyncio.run(joined(decompressed(chunks(*pieces)))) == data + b"second"


@pytest.mark.parametrize(
    ("method", "packed"),
    [
        (0x90, zstandard.ZstdCompressor().compress(bytes(64 << 20))),
        (0x90, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))),
        (0x90, zstandard.ZstdCompressor().compress(b"short")),
        (0x82, lz4.block.compress(b"short", store_size=False)),
        (0x02, b"longer than it says"),
    ],
)
def test_a_block_that_is_longer_or_shorter_than_it_says_is_refused(method: int, packed: bytes) -> None:
    """Two kilobytes of ZSTD may be 64 MiB."""
    body = struct.pack("<BII", method, len(packed) + 9, 10) + packed
    tracemalloc.start()
    try:
        with pytest.raises(SqlError) as refused:
            decompress_block(city_hash_128(body) + body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.code == 271


@given(
    st.sampled_from(["gzip", "deflate", "zstd", "lz4", "xz"]),
    st.lists(st.binary(max_size=300), max_size=8),
    st.integers(1, 50),
)
def test_encodings_survive_the_way_there_and_back_in_any_pieces(
    name: str, parts: list[bytes], step: int
) -> None:
    import asyncio

    packer = encoder(name)
    packed = b"".join([*map(packer.encode, parts), packer.flush()])
    pieces = [packed[at : at + step] for at in range(0, len(packed), step)]
    assert asyncio.run(joined(decoded(name, chunks(*pieces)))) == b"".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gzip", "deflate", "zstd", "lz4", "xz"])
async def test_a_few_bytes_that_unpack_to_very_much_are_never_held_as_such(name: str) -> None:
    packer, mebibyte = encoder(name), bytes(1 << 20)
    packed = b"".join([*(packer.encode(mebibyte) for _ in range(128)), packer.flush()])
    sizes = [len(piece) async for piece in decoded(name, chunks(packed))]
    assert sum(sizes) == 128 << 20
    assert max(sizes) <= 33 << 20


@pytest.mark.parametrize("name", ["gzip", "deflate", "zstd", "lz4", "xz"])
async def test_a_body_that_is_not_what_its_header_says_is_refused(name: str) -> None:
    for body in (b"no such thing, whatever the header says", encoder(name).flush()[:-1] or b"\0"):
        with pytest.raises(SqlError) as refused:
            await joined(decoded(name, chunks(body)))
        assert refused.value.code == 354


async def test_a_body_of_several_gzip_members_is_one_body() -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    assert await joined(decoded("gzip", chunks(body[:10], body[10:]))) == b"one two"


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", None),
        ("identity", None),
        ("gzip, deflate", "gzip"),
        ("br, lz4;q=0.5", "lz4"),
        ("zstd;q=0, gzip", "gzip"),
        ("xz", "xz"),
    ],
)
def test_the_best_known_encoding_is_chosen(header: str, chosen: str | None) -> None:
    assert choose_encoding(header) == chosen


def test_settings_parameters_and_the_rest_are_told_apart() -> None:
    query = parse_query(
        "POST",
        {"X-ClickHouse-Database": "d"},
        [
            ("query", "SELECT 1"),
            ("max_threads", "3"),
            ("param_x", "y"),
            ("wait_end_of_query", "1"),
            ("", "x"),
        ],
        new_query_id="fresh",
    )
    assert (query.query, query.database, query.query_id) == ("SELECT 1", "d", "fresh")
    assert (query.settings, query.params) == ({"max_threads": "3"}, {"x": "y"})
    assert (query.buffer_bytes, query.is_readonly) == (None, False)
    assert parse_query("GET", {}, [("buffer_size", "5")], new_query_id="x").buffer_bytes == 5
    with pytest.raises(SqlError):
        parse_query("GET", {}, [("buffer_size", "-5")], new_query_id="x")


@pytest.mark.parametrize(
    "name", ["wait_end_of_query", "compress", "decompress", "session_check", "close_session"]
)
def test_a_parameter_that_is_yes_or_no_is_nothing_else(name: str) -> None:
    for value in ("x", "", "yes", "2", "1 "):
        with pytest.raises(SqlError, match=name) as refused:
            parse_query("GET", {}, [(name, value), ("session_id", "s")], new_query_id="x")
        assert refused.value.code == 27
    for value, is_on in (("1", True), ("true", True), ("0", False), ("FALSE", False)):
        query = parse_query("GET", {}, [("wait_end_of_query", value)], new_query_id="x")
        assert (query.buffer_bytes is None) is is_on


def test_credentials_in_two_places_are_refused() -> None:
    assert credentials_of({}, {}) == Credentials()
    for headers, parameters in (
        ({"X-ClickHouse-User": "a", "Authorization": "Basic YTpi"}, {}),
        ({"Authorization": "Basic YTpi"}, {"user": "a"}),
        ({"Authorization": "Basic ***"}, {}),
    ):
        with pytest.raises(SqlError) as caught:
            credentials_of(headers, parameters)
        assert caught.value.code == 516


@pytest.mark.parametrize(
    ("networks", "address", "allowed"),
    [
        (("::/0",), "10.0.0.1", True),
        (("127.0.0.1",), "127.0.0.1", True),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("::1",), "::1", True),
        ((), "127.0.0.1", False),
    ],
)
def test_a_user_comes_from_its_networks_only(networks: tuple[str, ...], address: str, allowed: bool) -> None:
    users = {"u": User("u", networks=networks)}
    with contextlib.nullcontext() if allowed else pytest.raises(SqlError):
        assert authenticate(users, Credentials("u"), address).name == "u"


def test_an_empty_password_is_one_and_no_password_takes_any() -> None:
    users = {"empty": User("empty", hashlib.sha256(b"").hexdigest()), "open": User("open")}
    for credentials in (Credentials("empty"), Credentials("open"), Credentials("open", "x")):
        assert authenticate(users, credentials, "127.0.0.1").name == credentials.user
    for known in (users, {}):
        with pytest.raises(SqlError, match="Authentication failed"):
            authenticate(known, Credentials(next(iter(known), "default"), "x"), "127.0.0.1")


def test_without_users_there_is_a_default_one_without_a_password() -> None:
    assert authenticate({}, Credentials(), "127.0.0.1").name == "default"
    with pytest.raises(SqlError):
        authenticate({"alice": User("alice")}, Credentials(), "127.0.0.1")


def test_statuses_and_bodies_of_errors_that_are_not_chdbs() -> None:
    error = KeeperUnavailable("No session", hint="Wait.")
    assert status_of(error) == 500
    text = exception_text(error, "26.9")
    assert text == "Code: 999. DB::Exception: No session. Wait. (KEEPER_EXCEPTION) (version 26.9)\n"
    outer = SqlError(57, f"There was an error on [h:9000]: {SqlError(57, 'It exists.').display_text}")
    assert outer.display_text.endswith(
        "DB::Exception: It exists. (TABLE_ALREADY_EXISTS). (TABLE_ALREADY_EXISTS)"
    )


@pytest.mark.parametrize(
    ("sql", "settings"),
    [
        ("SET a = 300e3, b = -1_0, c = '1_0'", {"a": "300000", "b": "-10", "c": "1_0"}),
        ("SET a = 1", {"a": "1"}),
        ("SET a = 'x,y', `b` = 2, c", {"a": "x,y", "b": "2", "c": "1"}),
        (
            "SET a = default, b = 'DEFAULT', param_c = DEFAULT",
            {"a": None, "b": "DEFAULT", "param_c": "DEFAULT"},
        ),
        ("SET a = {'x': [1, 2]}, b = -5;", {"a": "{'x':[1,2]}", "b": "-5"}),
    ],
)
def test_set_is_read_back(sql: str, settings: dict[str, str | None]) -> None:
    assert settings_of_set(sql) == settings


def test_settings_about_on_cluster_are_found_in_a_statement() -> None:
    sql = "DROP TABLE t ON CLUSTER c SETTINGS distributed_ddl_task_timeout = -1, max_threads = 3"
    assert trailing_settings(sql) == {"distributed_ddl_task_timeout": "-1"}
    assert trailing_settings("DROP TABLE distributed_ddl_x ON CLUSTER c") == {}


@pytest.mark.parametrize(
    ("sql", "select"),
    [
        ("SHOW CLUSTERS", "SELECT DISTINCT cluster FROM system.clusters ORDER BY cluster"),
        ("SHOW CLUSTERS LIKE 'a%' LIMIT 1",
         "SELECT DISTINCT cluster FROM system.clusters WHERE cluster  LIKE 'a%' ORDER BY cluster LIMIT 1"),
        ("SHOW TABLES", "SHOW TABLES"),
        ("SHOW TABLES FROM db LIKE 'a'", "SHOW TABLES FROM db LIKE 'a'"),
        ("SHOW TABLES FROM system LIKE 'a'",
         "SELECT name FROM system.tables WHERE database = 'system' AND name LIKE 'a' ORDER BY name"),
    ],
)  # fmt: skip
def test_show_clusters_is_a_select(sql: str, select: str) -> None:
    assert show_as_select(sql) == select


@pytest.mark.parametrize(
    ("where", "expressions"),
    [
        ("path = '/a'", ["'/a'"]),
        ("'/a' = path AND name = 'x'", ["'/a'"]),
        ("path IN ('/a', '/b') ORDER BY name", ["'/a', '/b'"]),
        ("path = concat('/a', '/b') LIMIT 1", ["concat('/a', '/b')"]),
        ("z.path = '/a' OR (path = '/b')", ["'/a'", "'/b'"]),
        ("path IN (SELECT '/a')", ["SELECT '/a'"]),
        ("path = p", ["p"]),
        ("name = 'path'", []),
    ],
)
def test_paths_are_found_in_conditions(where: str, expressions: list[str]) -> None:
    sql = f"SELECT path FROM system.zookeeper AS z WHERE {where}"
    tokens = [token for token in tokenize(sql) if token.is_significant]
    assert [found.text for found in path_expressions(sql, tokens)] == expressions


@pytest.mark.parametrize(
    ("sql", "selects"),
    [
        (
            "WITH '/a' AS p SELECT name FROM system.zookeeper WHERE path = p",
            ["WITH '/a' AS p SELECT arrayJoin(arrayFlatten([p]))::String"],
        ),
        (
            "WITH '/a' AS p SELECT 1 FROM (WITH p||'/b' AS q SELECT 1 FROM system.zookeeper WHERE path = q)",
            ["WITH '/a' AS p, p||'/b' AS q SELECT arrayJoin(arrayFlatten([q]))::String"],
        ),
        (
            "WITH ['/a'] AS p, 1 AS x SELECT 1 FROM system.zookeeper WHERE path IN (SELECT arrayJoin(p))",
            ["WITH ['/a'] AS p, 1 AS x SELECT toString(*) FROM (SELECT arrayJoin(p))"],
        ),
        (
            "SELECT '/a' AS p, name FROM system.zookeeper WHERE path = p",
            ["SELECT arrayJoin(arrayFlatten(['/a']))::String"],
        ),
        (
            "WITH (SELECT count() FROM system.zookeeper WHERE path = '/a') AS n SELECT n",
            ["SELECT arrayJoin(arrayFlatten(['/a']))::String"],
        ),
        (
            "WITH 1 AS x SELECT x UNION ALL SELECT 2 FROM system.zookeeper WHERE path = '/a'",
            ["WITH 1 AS x SELECT arrayJoin(arrayFlatten(['/a']))::String"],
        ),
    ],
)
def test_a_path_may_be_what_with_has_named(sql: str, selects: list[str]) -> None:
    tokens = [token for token in tokenize(sql) if token.is_significant]
    assert [found.select for found in path_expressions(sql, tokens)] == selects
