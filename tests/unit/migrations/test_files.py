"""Names, options, checksums and problems of migration files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ddl.output import OutputMode
from engine.errors import SqlError
from engine.migrations.errors import MigrationFilesError
from engine.migrations.files import (
    MAX_VERSION,
    Direction,
    Script,
    file_checksum,
    gaps,
    load_folder,
    parse_file_name,
    parse_script,
    read_folder,
)
from engine.migrations.options import Options, parse_comment

CREATE = "CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = Memory"


def folder(tmp_path: Path, files: dict[str, str | bytes], name: str = "shop") -> Path:
    path = tmp_path / name
    path.mkdir()
    for file, text in files.items():
        (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_how_to_s_loop_makes_two_files_of_one_of_goose_or_dbmate(tmp_path: Path) -> None:
    """However the marker is written, and with several sections; without a way down there is no file of it."""
    page = (Path(__file__).parents[3] / "docs/how-to/migrations.md").read_text()
    (loop,) = re.findall(r"```sh\n(for file in .*?)```", page, re.DOTALL)
    path = folder(
        tmp_path,
        {
            "00001_a.sql": f"-- +goose Up\n{CREATE};\n\n-- +goose Down\nDROP TABLE t;\n",
            "00002_c.sql": f"-- +goose up\n{CREATE};\n--+goose  DOWN \nDROP TABLE v;\n",
            "00003_d.sql": "-- migrate:up\nA;\n-- migrate:down\nB;\n-- migrate:up\nC;\n-- migrate:down\nD;\n",
            "00004_e.sql": f"-- +goose Up\n{CREATE};\n",
            "5_f.sql": f"{CREATE};\n",
            "6_g.sql": "-- migrate:down\nB;\n",
            "20240101000000_b.sql": f"-- migrate:up\n{CREATE}\n\n--migrate:down x:y\nDROP TABLE u\n",
        },
    )
    subprocess.run(["bash", "-c", loop], cwd=path, check=True, timeout=60)
    found = {
        migration.version: [
            None if of is None else [statement.sql for statement in of.statements]
            for of in (migration.up, migration.down)
        ]
        for migration in load_folder(path).migrations
    }
    assert found == {
        1: [[CREATE], ["DROP TABLE t"]],
        2: [[CREATE], ["DROP TABLE v"]],
        3: [["A", "C"], ["D", "B"]],
        4: [[CREATE], None],
        5: [[CREATE], None],
        6: [[], ["B"]],
        20240101000000: [[CREATE], ["DROP TABLE u"]],
    }


@pytest.mark.parametrize(
    "marker", ["-- +goose Down", "-- +goose down ", "--+goose\tDOWN", "-- migrate:down", "-- migrate:down x"]
)
@pytest.mark.parametrize("end", [";", ""])
def test_a_file_that_was_renamed_and_holds_both_directions_is_refused(
    tmp_path: Path, marker: str, end: str
) -> None:
    text = f"{CREATE}{end}\n\n{marker}\nDROP TABLE t;\n"
    assert problems_of(tmp_path, {"1_a.up.sql": text}) == [("1_a.up.sql", 3, "both-directions")]


def test_a_down_file_that_begins_with_the_way_up_is_refused(tmp_path: Path) -> None:
    files = {"1_a.up.sql": CREATE, "1_a.down.sql": f"-- migrate:up\n{CREATE};\n-- migrate:down\nDROP TABLE t"}
    assert problems_of(tmp_path, files) == [("1_a.down.sql", 1, "both-directions")]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("${DATABASE}.t", "${DATABASE}"),
        ("${DATABASE:-shop}.t", "${DATABASE:-shop}"),
        ("{{ .Prefix }}t", "{{ .Prefix }}"),
        ("{% if a %} t", "{% if a %}"),
        ("{prefix}t", "{prefix}"),
        ('"${db}".t', "${db}"),
        ("`{{ db }}`.t", "{{ db }}"),
    ],
)
def test_what_another_tool_fills_in_is_told_with_its_line(tmp_path: Path, name: str, shown: str) -> None:
    """The parser's word for it was a position; lint ended with a traceback."""
    with pytest.raises(MigrationFilesError) as caught:
        load_folder(
            folder(tmp_path, {"1_a.up.sql": f"SELECT 1;\nCREATE TABLE\n{name} (x Int8) ENGINE = Log"})
        )
    (problem,) = caught.value.problems
    assert (problem.line, problem.rule) == (3, "placeholder")
    assert problem.message.startswith(f"`{shown}` is filled in by another tool")


def test_between_the_words_of_goose_variables_in_strings_are_filled_in_too(tmp_path: Path) -> None:
    text = "-- +goose ENVSUB {}\nCREATE TABLE t (x Int8) ENGINE = Log COMMENT '$WHO'"
    on, off = (folder(tmp_path, {"1_a.up.sql": text.format(word)}, word) for word in ("ON", "OFF"))
    assert load_folder(off).versions == (1,)
    with pytest.raises(MigrationFilesError, match=r"`\$WHO` is filled in"):
        load_folder(on)


@pytest.mark.parametrize(
    "expression",
    [
        "{p:Int8}",
        "{ p : Identifier }",
        "'${A} {{b}} {c}'",
        "{'a': 1}['a']",
        "$$ ${A} $$",
        "a$b",
        "/* ${A} */ 1",
    ],
)
def test_what_is_sql_is_no_placeholder(tmp_path: Path, expression: str) -> None:
    files = {"1_a.up.sql": f"CREATE VIEW v AS SELECT {expression} -- ${{A}}"}
    assert load_folder(folder(tmp_path, files)).versions == (1,)


@pytest.mark.parametrize(
    "text",
    [
        f"-- +goose NO TRANSACTION\n-- +goose Up\n{CREATE};\n-- +goose Down\n-- nothing",
        f"-- migrate:up\n{CREATE};\n\n-- migrate:down\n",
        f"-- see the +goose Down of before\n{CREATE};",
    ],
)
def test_a_marker_behind_which_nothing_of_the_other_direction_stands_does_no_harm(text: str) -> None:
    assert [statement.sql for statement in script(text).statements] == [CREATE]


def script(text: str) -> Script:
    parsed, problems = parse_script(text, Path("1_x.up.sql"), Direction.UP)
    assert not problems, problems
    assert parsed is not None
    return parsed


def problems_of(tmp_path: Path, files: dict[str, str | bytes]) -> list[tuple[str, int, str]]:
    _, problems = read_folder(folder(tmp_path, files))
    return [(Path(problem.path).name, problem.line, problem.rule) for problem in problems]


@pytest.mark.parametrize("nothing", ["SELECT 1", "select 'cannot be undone' as why", "SELECT NULL"])
def test_a_select_of_a_literal_is_no_statement_and_takes_its_options_with_it(nothing: str) -> None:
    """Other tools' migrations do nothing this way."""
    assert script(f"-- nothing\n{nothing};").statements == ()
    [statement] = script(f'-- oncluster-next: allow=destructive reason="x"\n{nothing};\n{CREATE}').statements
    assert (statement.sql, statement.line, statement.options.allows("destructive")) == (CREATE, 3, None)


@pytest.mark.parametrize("check", ["SELECT x", "SELECT 1 FROM d.t", "SELECT throwIf(1)", "SELECT 1 + 1"])
def test_any_other_select_may_be_a_check_and_stays(check: str) -> None:
    assert [statement.sql for statement in script(check).statements] == [check]


# --- names ------------------------------------------------------------------------------------------------


@given(
    version=st.integers(0, MAX_VERSION),
    padding=st.integers(0, 6),
    title=st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), max_size=30),
    direction=st.sampled_from(Direction),
)
def test_every_name_in_the_grammar_is_read_back(
    version: int, padding: int, title: str, direction: Direction
) -> None:
    name = f"{'0' * padding}{version}_{title}.{direction}.sql"
    assert parse_file_name(name) == (version, title, direction)


@pytest.mark.parametrize(
    "name",
    [
        "a.sql",
        "1.up.sql",
        "1_a.sql",
        "_a.up.sql",
        "-1_a.up.sql",
        "1_a.UP.sql",
        "x1_a.up.sql",
        "1-a.up.sql",
        "1_a.up.sql.bak",
    ],
)
def test_a_name_outside_the_grammar_is_refused_with_the_grammar(name: str) -> None:
    with pytest.raises(SqlError, match="version"):
        parse_file_name(name)


def test_a_name_that_is_no_utf_8_is_refused_in_words_that_can_be_shown(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/1_\xff.up.sql")).write_text("CREATE DATABASE d")
    with pytest.raises(MigrationFilesError, match="not UTF-8") as caught:
        load_folder(tmp_path)
    assert "1_\ufffd.up.sql" in str(caught.value).encode().decode()


def test_a_version_beyond_64_bits_is_refused() -> None:
    assert parse_file_name(f"{MAX_VERSION}_a.up.sql")[0] == MAX_VERSION
    with pytest.raises(SqlError, match="greater"):
        parse_file_name(f"{MAX_VERSION + 1}_a.up.sql")
    with pytest.raises(SqlError, match="greater"):
        parse_file_name("9" * 5000 + "_a.up.sql")


def test_migrations_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["10_b", "9_a", "010000_c", "2_x"]
    found = load_folder(folder(tmp_path, {f"{name}.up.sql": CREATE for name in names}))
    assert found.versions == (2, 9, 10, 10000)
    assert found.cluster == "shop"


def test_files_that_are_no_sql_are_ignored_and_listed(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "1_a.up.sql": CREATE,
        "README.md": "hi",
        ".gitkeep": "",
        "1_a.up.sql.bak": "x",
    }
    path = folder(tmp_path, files)
    (path / "old").mkdir()
    found = load_folder(path)
    assert found.versions == (1,)
    assert set(found.ignored) == {"README.md", ".gitkeep", "1_a.up.sql.bak", "old"}


@pytest.mark.parametrize("name", ["2_b.up.SQL", "2_b.down.txt", "2_b.up.json"])
def test_a_migration_with_another_suffix_is_told_and_not_left_out_in_silence(
    tmp_path: Path, name: str
) -> None:
    path = folder(tmp_path, {"1_a.up.sql": CREATE, name: CREATE})
    with pytest.raises(MigrationFilesError, match=r"only names that end in \.sql"):
        load_folder(path)


def test_what_is_no_regular_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    path = folder(tmp_path, {"1_a.up.sql": CREATE})
    os.mkfifo(path / "2_pipe.up.sql")
    (path / "3_loop.up.sql").symlink_to("3_loop.up.sql")
    with pytest.raises(MigrationFilesError) as caught:
        load_folder(path)
    assert [(Path(p.path).name, p.rule) for p in caught.value.problems] == [
        ("2_pipe.up.sql", "unreadable"),
        ("3_loop.up.sql", "unreadable"),
    ]


def test_a_file_that_is_too_large_is_told_and_not_read(tmp_path: Path) -> None:
    path = folder(tmp_path, {"1_a.up.sql": CREATE})
    with (path / "2_large.up.sql").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MigrationFilesError, match="is larger than"):
        load_folder(path)


@given(st.lists(st.integers(0, 200), unique=True).map(sorted))
def test_gaps_are_the_places_where_a_counter_jumps(versions: list[int]) -> None:
    missing = {before for before, _ in gaps(versions)}
    assert missing == {v for v in versions[:-1] if v + 1 not in versions}


def test_timestamps_have_no_gaps() -> None:
    assert gaps([20240131, 20240305, 20240305120000, 1706659200]) == []
    assert gaps([1, 2, 20240101]) == []
    assert gaps([1, 3]) == [(1, 3)]


# --- bad folders ------------------------------------------------------------------------------------------


def test_an_empty_folder_says_what_the_first_file_could_be_called(tmp_path: Path) -> None:
    with pytest.raises(MigrationFilesError, match=r"0001_create_tables\.up\.sql"):
        load_folder(folder(tmp_path, {"README.md": ""}))


def test_a_folder_that_is_not_there_and_one_that_is_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MigrationFilesError, match="no such folder"):
        load_folder(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(MigrationFilesError, match="not a folder"):
        load_folder(tmp_path / "file")


def test_a_statement_begins_at_its_first_word_whatever_comments_stand_in_it() -> None:
    create = "CREATE TABLE a\n(\n  x Int8, -- b\n  y Int8 -- c\n)"
    statements = script(f"-- a\n{create};\n\n/* d */ DROP TABLE b;\n-- e\nDROP TABLE c").statements
    assert [statement.line for statement in statements] == [2, 8, 10]


def test_all_problems_of_a_folder_are_told_at_once_with_file_and_line(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        {
            "1_a.up.sql": CREATE,
            "001_b.up.sql": CREATE,
            "two.up.sql": CREATE,
            "3_c.up.sql": "SELECT 1;\n\nSELECT 'not closed\n;\n",
            "4_d.up.sql": b"SELECT 1;\nSELECT '\xff';",
            "5_e.up.sql": "SELECT 1;\n\n/* not closed\n",
            "6_f.up.sql": "-- oncluster: timout=3\nSELECT 1",
            "8_h.up.sql": b"SELECT 1;\n\0",
        },
    )
    assert sorted(found) == [
        ("1_a.up.sql", 0, "duplicate-version"),
        ("3_c.up.sql", 3, "syntax"),
        ("4_d.up.sql", 2, "encoding"),
        ("5_e.up.sql", 3, "syntax"),
        ("6_f.up.sql", 1, "options"),
        ("8_h.up.sql", 2, "encoding"),
        ("two.up.sql", 0, "file-name"),
    ]


def test_the_error_carries_clickhouse_s_code_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(MigrationFilesError) as caught:
        load_folder(folder(tmp_path, {"1_a.up.sql": "SELECT 'open"}))
    assert caught.value.code == 62
    assert "1_a.up.sql:1: " in str(caught.value)


# --- a version without an up file -------------------------------------------------------------------------


def test_an_up_file_that_is_missing_has_no_statements_and_one_that_is_written_later_differs(
    tmp_path: Path,
) -> None:
    found = load_folder(folder(tmp_path, {"1_a.up.sql": CREATE, "2_b.down.sql": "DROP TABLE t"}))
    assert found.versions == (1, 2)
    missing = found.migrations[1].up
    assert missing is not None and not missing.is_there
    assert (missing.path.name, missing.statements) == ("2_b.up.sql", ())
    missing.path.write_text(CREATE)
    written = load_folder(missing.path.parent).migrations[1].up
    assert written is not None and written.is_there and written.checksum != missing.checksum


# --- checksums --------------------------------------------------------------------------------------------


def test_comments_and_layout_do_not_change_a_statement_s_checksum_and_words_do() -> None:
    first = script("CREATE TABLE t (a UInt8)\n  ENGINE = Memory;").statements[0].checksum
    assert script("-- new\nCREATE  TABLE t(a UInt8) /* x */ ENGINE=Memory").statements[0].checksum == first
    assert script("CREATE TABLE t (a UInt16) ENGINE = Memory").statements[0].checksum != first
    assert script("CREATE TABLE t (a UInt8) ENGINE = Memory COMMENT 'a b'").statements[0].checksum != (
        script("CREATE TABLE t (a UInt8) ENGINE = Memory COMMENT 'a  b'").statements[0].checksum
    )


def test_options_that_change_the_meaning_are_part_of_the_checksum_and_patience_is_not() -> None:
    plain = script(CREATE).statements[0].checksum
    assert script(f"-- oncluster: timeout=5m output_mode=none\n{CREATE}").statements[0].checksum == plain
    for option in ("cluster=c", "database=d", "setting.max_threads=1"):
        assert script(f"-- oncluster: {option}\n{CREATE}").statements[0].checksum != plain


@given(
    st.text("abé\t\n ';-#", max_size=40).filter(lambda t: not t.strip().endswith(("'", "-"))),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["", "\n", "\r\n\r\n"]),
)
def test_a_file_s_checksum_does_not_depend_on_the_editor(
    comment: str, end: str, mark: str, tail: str
) -> None:
    text = f"SELECT 1\n-- {comment.replace(chr(10), ' ')}x\nFROM t"
    assert file_checksum(mark + text.replace("\n", end) + tail) == file_checksum(text)


# --- options ----------------------------------------------------------------------------------------------


def test_options_of_the_file_hold_for_every_statement_and_those_of_the_next_statement_go_before() -> None:
    parsed = script(
        "-- oncluster: timeout=5m output_mode=none_only_active database=d\n"
        "SELECT a;\n"
        "-- oncluster-next: timeout=0 setting.mutations_sync=2\n"
        '-- oncluster-next: allow=destructive,secret reason="it\'s a \\"test\\""\n'
        "SELECT b;\nSELECT c"
    )
    first, second, third = (statement.options for statement in parsed.statements)
    assert (first.timeout_s, first.output_mode, first.database) == (300, OutputMode.NONE_ONLY_ACTIVE, "d")
    assert (second.timeout_s, second.settings, second.database) == (0, (("mutations_sync", "2"),), "d")
    assert second.allows("destructive") == second.allows("secret") == 'it\'s a "test"'
    assert second.allows("syntax") is None
    assert third == first


@pytest.mark.parametrize(
    ("comment", "names"),
    [
        ("-- oncluster: timout=3", "timeout"),
        ("-- oncluster: timeout=soon", "seconds"),
        ("-- oncluster: output_mode=quiet", "none_only_active"),
        ("-- oncluster: entry_version=3", "1, 2, 4"),
        ("-- oncluster: allow=destructive", "reason"),
        ('-- oncluster: reason="x"', "allow"),
        ("-- oncluster: approval=no", "required"),
        ("-- oncluster:", "nothing"),
        ("-- oncluster timeout=3", "oncluster:"),
        ("-- oncluster-nxt: timeout=3", "oncluster-next"),
        ("-- oncluster: timeout=3 timeout=4", "twice"),
        ("-- oncluster: cluster=", "no value"),
        ('-- oncluster: database="open', "double quotes"),
        ("-- oncluster: setting.a-b=1", "setting"),
    ],
)
def test_a_comment_with_options_that_cannot_be_read_says_what_there_is(comment: str, names: str) -> None:
    with pytest.raises(SqlError, match=names):
        parse_comment(comment)


def test_an_ordinary_comment_is_no_directive() -> None:
    assert parse_comment("-- runs on the cluster") is None
    assert parse_comment("-- oncluster runs this everywhere") is None
    assert parse_comment("/* oncluster: timeout=3 */") is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("SELECT a;\n-- oncluster: timeout=3\nSELECT b", 2),
        ("SELECT\n-- oncluster-next: timeout=3\n1", 2),
        ("SELECT 1;\n-- oncluster-next: timeout=3\n", 3),
    ],
)
def test_options_in_the_wrong_place_are_told(text: str, line: int) -> None:
    _, problems = parse_script(text, Path("x"), Direction.UP)
    assert [(problem.line, problem.rule) for problem in problems] == [(line, "options")]


def test_options_within_a_heredoc_are_text() -> None:
    assert script("SELECT $a$\n-- oncluster: nonsense=1\n$a$").options == Options()
