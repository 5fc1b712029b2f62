"""Entry text and status text against bytes of real servers, and round trips."""

from __future__ import annotations

import base64
import json
import pathlib
import re
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ddl.entry import DDLLogEntry, Setting, Tracing
from engine.ddl.status import SUCCESS, ExecutionStatus
from engine.ddl.text import TextReader, escape, unescape
from engine.errors import MalformedEntry, SqlError
from engine.names import HostId, escape_for_file_name, unescape_for_file_name

CAPTURES = json.loads((pathlib.Path(__file__).parents[2] / "data" / "ddl_captures.json").read_text())

# What a real 18.16 server answered in `finished/` to these texts of a foreign initiator (capture keyA).
REFUSED = {
    "04_raw_newline_in_query": 27,
    "06_missing_trailing_newline": 27,
    "16_double_quotes_list": 26,
    "17_spaces_in_list": 26,
    "18_empty_data": 27,
    "19_garbage": 27,
    "20_crlf": 27,
}
# Accepted, but written back in canonical form.
NOT_CANONICAL = {"14b_ip_hosts_raw_dots"}


def payload(row: dict[str, str]) -> bytes:
    return base64.b64decode(row["base64"]) if "base64" in row else row["text"].encode()


def names(row: dict[str, str]) -> str:
    return f"{row['source']}:{row['case']}"


@pytest.mark.parametrize("row", [r for r in CAPTURES["entries"] if r["case"] not in REFUSED], ids=names)
def test_an_entry_of_a_real_queue_parses_and_is_written_back_byte_for_byte(row: dict[str, str]) -> None:
    data = payload(row)
    entry = DDLLogEntry.from_bytes(data)
    if row["case"] in NOT_CANONICAL:
        assert DDLLogEntry.from_bytes(entry.to_bytes()) == entry
        assert b"127%2E0%2E0%2E11:9000" in entry.to_bytes()
    else:
        assert entry.to_bytes() == data


@pytest.mark.parametrize("row", [r for r in CAPTURES["entries"] if r["case"] in REFUSED], ids=names)
def test_an_entry_that_a_real_server_refused_is_refused_with_the_same_code(row: dict[str, str]) -> None:
    with pytest.raises(MalformedEntry) as failure:
        DDLLogEntry.from_bytes(payload(row), where="query-0000000001")
    assert failure.value.code == REFUSED[row["case"]]
    assert failure.value.where == "query-0000000001"


@pytest.mark.parametrize("row", CAPTURES["statuses"], ids=names)
def test_a_status_of_a_real_queue_parses_and_is_written_back_byte_for_byte(row: dict[str, str]) -> None:
    data = payload(row)
    status = ExecutionStatus.from_bytes(data)
    assert status.to_bytes() == data
    assert status.code == int(data.split(b"\n")[0])


def test_the_captures_hold_what_these_tests_are_about() -> None:
    assert len(CAPTURES["entries"]) > 80
    assert {row["case"] for row in CAPTURES["entries"]} >= set(REFUSED) | NOT_CANONICAL
    assert any(payload(row) == b"0\n" for row in CAPTURES["statuses"])


def test_success_is_two_bytes() -> None:
    assert SUCCESS.to_bytes() == b"0\n"


@pytest.mark.parametrize("data", [b"", b"0", b"garbage", b"\n", b"x\n", b"0 \n"])
def test_a_status_that_does_not_parse_reads_as_unknown_and_not_as_success(data: bytes) -> None:
    assert ExecutionStatus.from_bytes(data) == ExecutionStatus(-1, "Cannot obtain error message")


def test_version_one_always_writes_hosts_and_newer_versions_only_when_there_are_any() -> None:
    assert b"hosts: []\n" in DDLLogEntry(1, "q", ()).to_bytes()
    assert b"hosts" not in DDLLogEntry(2, "q", ()).to_bytes()


def test_version_eight_has_every_line_in_clickhouses_order() -> None:
    entry = DDLLogEntry(
        version=8,
        query="CREATE TABLE t\n(a 'x')",
        hosts=(HostId("ch-1", 9000), HostId("::1", 9440)),
        initiator="ch%2D1:9000",
        settings=(Setting("max_threads", "1"), Setting.of("profile", "it's")),
        tracing=Tracing(UUID(int=7), 5, "a=b\tc", 1),
        initial_query_id="id\n1",
        is_backup_restore=True,
        parent=UUID(int=9),
        initiator_user="alice",
        initiator_roles=("r1", "r'2"),
    )
    assert entry.to_bytes() == (
        b"version: 8\n"
        b"query: CREATE TABLE t\\n(a \\'x\\')\n"
        b"hosts: ['ch%2D1:9000','%3A%3A1:9440']\n"
        b"initiator: ch%2D1:9000\n"
        b"settings: max_threads = 1, profile = 'it\\'s'\n"
        b"tracing: 00000000-0000-0000-0000-000000000007\n5\na=b\\tc\n1\n"
        b"initial_query_id: id\\n1\n"
        b"is_backup_restore: 1\n"
        b"parent: 00000000-0000-0000-0000-000000000009\n"
        b"initiator_user: alice\n"
        b"initiator_roles: ['r1','r\\'2']\n"
    )
    assert DDLLogEntry.from_bytes(entry.to_bytes()) == entry
    assert entry.setting_values == {"max_threads": "1", "profile": "it's"}


def test_lines_that_may_be_absent_may_be_absent() -> None:
    assert DDLLogEntry.from_bytes(b"version: 1\nquery: q\nhosts: []\n").initiator is None
    assert DDLLogEntry.from_bytes(b"version: 2\nquery: q\n").hosts == ()
    assert DDLLogEntry.from_bytes(b"version: 2\nquery: q\nsettings: a = 1\n").settings == (Setting("a", "1"),)
    assert DDLLogEntry.from_bytes(b"version: 4\nquery: q\ninitiator: \n").tracing == Tracing()


@pytest.mark.parametrize("version", [-1, 0, 3, 9, 99])
def test_an_unknown_version_is_refused_in_clickhouses_words(version: int) -> None:
    with pytest.raises(MalformedEntry) as failure:
        DDLLogEntry.from_bytes(f"version: {version}\nquery: q\nhosts: []\n".encode())
    assert failure.value.code == 287
    assert (
        str(failure.value) == f"Unknown DDLLogEntry format version: {version}.Maximum supported version is 8"
    )
    with pytest.raises(SqlError) as refused:
        DDLLogEntry(version, "q", ()).to_bytes()
    assert refused.value.code == 287


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"version: x\n", 27),
        (b"version: 1", 27),
        (b"version: 1\nquery: a\tb\nhosts: []\n", 27),
        (b"version: 1\nquery: ends\\\nhosts: []\n", 27),
        (b"version: 1\nquery: q\nhosts: ['a:1',]\n", 26),
        (b"version: 1\nquery: q\nhosts: ['a:1'\n", 27),
        (b"version: 1\nquery: q\nhosts: ['nocolon']\n", 62),
        (b"version: 1\nquery: q\nhosts: ['a:port']\n", 62),
        (b"version: 1\nquery: q\nhosts: ['a:1']\ninitiator: x\ntrailing\n", 27),
        (b"version: 2\nquery: q\nsettings: a\n", 62),
        (b"version: 2\nquery: q\nsettings: a = 1,\n", 62),
        (b"version: 2\nquery: q\nsettings: \n", 62),
        (b"version: 5\nquery: q\ninitiator: \n", 27),
        (b"version: 4\nquery: q\ntracing: zz\n0\n\n0\n", 27),
        (b"version: 6\nquery: q\ninitiator: \ninitial_query_id: \nis_backup_restore: 2\n", 27),
        (b"version: 7\nquery: q\ninitiator: \ninitial_query_id: \nis_backup_restore: 0\nparent: x\n", 27),
    ],
)
def test_malformed_text_is_refused_with_a_code(data: bytes, code: int) -> None:
    with pytest.raises(MalformedEntry) as failure:
        DDLLogEntry.from_bytes(data)
    assert failure.value.code == code


TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), max_size=20)
HOSTS = st.builds(
    HostId, st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), st.integers(0, 65535)
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True)


@st.composite
def entries(draw: st.DrawFn) -> DDLLogEntry:
    version = draw(st.sampled_from([1, 2, 4, 5, 6, 7, 8]))
    return DDLLogEntry(
        version=version,
        query=draw(TEXT),
        hosts=tuple(draw(st.lists(HOSTS, max_size=4))),
        initiator=draw(LINE),
        settings=tuple(draw(st.lists(st.builds(Setting.of, NAMES, TEXT), max_size=3))) if version > 1 else (),
        tracing=draw(st.builds(Tracing, st.uuids(), st.integers(0, 2**63), TEXT, st.integers(0, 255)))
        if version >= 4
        else Tracing(),
        initial_query_id=draw(TEXT) if version >= 5 else "",
        is_backup_restore=draw(st.booleans()) if version >= 6 else False,
        parent=draw(st.none() | st.uuids()) if version >= 7 else None,
        initiator_user=draw(LINE) if version >= 8 else "",
        initiator_roles=tuple(draw(st.lists(TEXT, max_size=3))) if version >= 8 else (),
    )


@settings(max_examples=200, deadline=None)
@given(entries())
def test_any_entry_comes_back_as_it_was_written(entry: DDLLogEntry) -> None:
    assert DDLLogEntry.from_bytes(entry.to_bytes()) == entry


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**31), 2**31 - 1), TEXT)
def test_any_status_comes_back_as_it_was_written(code: int, message: str) -> None:
    status = ExecutionStatus(code, message)
    assert ExecutionStatus.from_bytes(status.to_bytes()) == status


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_bytes_either_parse_or_are_refused_as_malformed(data: bytes) -> None:
    for text in (data, b"version: 5\n" + data, b"version: 1\nquery: q\n" + data):
        try:
            DDLLogEntry.from_bytes(text)
        except MalformedEntry as error:
            assert error.code in (26, 27, 62, 287)
    ExecutionStatus.from_bytes(data)


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_escaping_leaves_one_line_and_is_undone(text: str) -> None:
    assert not set("\n\t") & set(escape(text))
    assert unescape(escape(text)) == text


@pytest.mark.parametrize(
    "literal",
    [
        "{'d.t':'match(s, \\'a{2}\\')'}",
        "{'d.t':'x = \\'}\\''}",
        "['a]','b, c = 1']",
        "[('a','b)'),('c','d')]",
        "('it''s (', 'a')",
        "{}",
    ],
)
def test_brackets_of_a_setting_end_where_no_string_is_open(literal: str) -> None:
    data = f"version: 2\nquery: q\nsettings: a = {literal}, b = 1\n".encode()
    assert DDLLogEntry.from_bytes(data).settings == (Setting("a", literal), Setting("b", "1"))


@pytest.mark.parametrize("literal", ["[" + "''" * 5000, "{" + "'a'" * 5000 + "'", "('" + "''" * 5000])
def test_a_setting_without_an_end_is_refused_at_once(literal: str) -> None:
    with pytest.raises(MalformedEntry) as refusal:
        DDLLogEntry.from_bytes(f"version: 2\nquery: q\nsettings: a = {literal}\n".encode())
    assert refusal.value.code == 62


def test_an_unknown_escape_keeps_its_backslash() -> None:
    assert unescape(r"\d\q\x41\N\a") == "\\d\\qA\a"


@given(st.text(alphabet="ab\t\n", max_size=12))
def test_a_field_ends_before_the_next_tab_or_line_feed(text: str) -> None:
    assert TextReader(text).raw() == re.split(r"[\t\n]", text, maxsplit=1)[0]


@given(st.text(max_size=20))
def test_names_of_hosts_in_paths_are_what_they_stand_for(name: str) -> None:
    escaped = escape_for_file_name(name)
    assert re.fullmatch(r"(?:[A-Za-z0-9_]|%[0-9A-F]{2})*", escaped)
    assert unescape_for_file_name(escaped) == name
    assert escape_for_file_name("node-1.é") == "node%2D1%2E%C3%A9"
    assert unescape_for_file_name("%2") == "%2" and unescape_for_file_name("a%zzb%2D") == "a%zzb-"
