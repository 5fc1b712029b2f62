"""Cutting SQL where chDB needs it cut; chDB's messages as errors."""

import pytest

from engine.errors import SqlError
from engine.storage.errors import sql_error
from engine.storage.statement_text import insert_with_rows, select_into, sendable


@pytest.mark.parametrize(
    ("sql", "written", "format"),
    [
        ("SELECT 1", "SELECT 1<>FORMAT TSV", "TSV"),
        ("SELECT 1;", "SELECT 1<>FORMAT TSV", "TSV"),
        ("SELECT 1 ; -- over", "SELECT 1<>FORMAT TSV", "TSV"),
        ("SELECT 1 -- a comment", "SELECT 1<>FORMAT TSV", "TSV"),
        ("SELECT 1 FORMAT JSON", "SELECT 1 <>FORMAT JSON", "JSON"),
        ("SELECT 1 format `JSON`;", "SELECT 1 <>FORMAT JSON", "JSON"),
        ("SELECT 1 FORMAT CSV SETTINGS a = 1", "SELECT 1 <>FORMAT CSV SETTINGS a = 1", "CSV"),
        ("SELECT 1 SETTINGS a = 1", "SELECT 1 SETTINGS a = 1<>FORMAT TSV", "TSV"),
        ("SELECT 'FORMAT JSON'", "SELECT 'FORMAT JSON'<>FORMAT TSV", "TSV"),
        ("SELECT format FROM t", "SELECT format FROM t<>FORMAT TSV", "TSV"),
        ("SELECT 1 AS format", "SELECT 1 AS format<>FORMAT TSV", "TSV"),
        ("SELECT a FROM (SELECT 1 FORMAT x)", "SELECT a FROM (SELECT 1 FORMAT x)<>FORMAT TSV", "TSV"),
    ],
)
def test_a_select_is_told_to_write_to_a_file_in_its_format(sql: str, written: str, format: str) -> None:
    select = select_into(sql, "/f", default_format="TSV")
    clause = "\nINTO OUTFILE '/f' TRUNCATE "
    assert select.sql == written.replace("<>", clause)
    assert select.format == format


@pytest.mark.parametrize(
    ("sql", "code"), [("SELECT 1 INTO OUTFILE 'x'", 358), ("SELECT 1; SELECT 2", 62), ("SELECT 'x", 62)]
)
def test_a_select_that_cannot_be_written_is_refused(sql: str, code: int) -> None:
    with pytest.raises(SqlError) as caught:
        select_into(sql, "/f", default_format="TSV")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "head", "format", "rows"),
    [
        ("INSERT INTO t VALUES (1)", "INSERT INTO t ", "Values", " (1)"),
        ("insert into t(a) values(1)", "insert into t(a) ", "Values", "(1)"),
        ("INSERT INTO t FORMAT CSV\n1,2\n", "INSERT INTO t ", "CSV", "1,2\n"),
        ("INSERT INTO t FORMAT CSV  \t1,2\n", "INSERT INTO t ", "CSV", "1,2\n"),
        ("INSERT INTO t FORMAT CSV \r\n\n1", "INSERT INTO t ", "CSV", "\n1"),
        ("INSERT INTO t FORMAT CSV", "INSERT INTO t ", "CSV", ""),
        ("INSERT INTO d.t (a, format) SETTINGS x = 1 FORMAT TSV\n'",
         "INSERT INTO d.t (a, format) SETTINGS x = 1 ", "TSV", "'"),
        ("INSERT INTO format VALUES (1)", "INSERT INTO format ", "Values", " (1)"),
        ("INSERT INTO values.format FORMAT CSV\n1", "INSERT INTO values.format ", "CSV", "1"),
        ("INSERT INTO FUNCTION null('a UInt8') FORMAT CSV\n1",
         "INSERT INTO FUNCTION null('a UInt8') ", "CSV", "1"),
        ("/* FORMAT x */ INSERT INTO `t` FORMAT Native\n\0\1",
         "/* FORMAT x */ INSERT INTO `t` ", "Native", "\0\1"),
    ],
)  # fmt: skip
def test_the_rows_of_an_insert_are_found(text: str, head: str, format: str, rows: str) -> None:
    insert = insert_with_rows(text)
    assert insert is not None
    assert (insert.head, insert.format, text[insert.rows_at :]) == (head, format, rows)


@pytest.mark.parametrize(
    "text", ["INSERT INTO t SELECT 1", "INSERT INTO t (a) WITH 1 AS x SELECT x", "INSERT INTO t"]
)
def test_an_insert_without_rows_of_its_own_is_none(text: str) -> None:
    assert insert_with_rows(text) is None


def test_from_infile_and_a_semicolon_before_the_rows_are_refused() -> None:
    for text, code in (("INSERT INTO t FROM INFILE 'x' FORMAT CSV", 78), ("INSERT INTO t FORMAT CSV;", 62)):
        with pytest.raises(SqlError) as caught:
            insert_with_rows(text)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code", "message", "name"),
    [
        ("Code: 60. DB::Exception: Table a.b does not exist. (UNKNOWN_TABLE)",
         60, "Table a.b does not exist.", "UNKNOWN_TABLE"),
        ("Code: 73. DB::Exception: Code: 73. DB::Exception: Bad X. (NAME) (version 26.9). (UNKNOWN_FORMAT)",
         73, "Bad X.", "NAME"),
        ("Code: 36. DB::Exception: f(x) is bad (see (y)) (BAD_ARGUMENTS) (version 26.9.2.1 (official build))",
         36, "f(x) is bad (see (y))", "BAD_ARGUMENTS"),
        ("Code: 1001. DB::Exception: std::exception. Code: 1001, type: x, e.what() = y (STD_EXCEPTION)",
         1001, "type: x, e.what() = y", "STD_EXCEPTION"),
        ("something else", 1002, "something else", "UNKNOWN_EXCEPTION"),
    ],
)  # fmt: skip
def test_chdbs_messages_become_errors(text: str, code: int, message: str, name: str) -> None:
    error = sql_error(text)
    assert (error.code, error.message, error.name) == (code, message, name)


def test_an_insert_that_selects_from_its_rows_reads_them_from_a_table() -> None:
    text = "INSERT INTO t SELECT a, (b) FROM input('a UInt8, b String') AS i WHERE a = 1 FORMAT CSV\n1,x"
    insert = insert_with_rows(text)
    assert insert is not None
    assert insert.head == "INSERT INTO t SELECT a, (b) FROM _oncluster_input AS i WHERE a = 1 "
    assert (insert.format, insert.input_structure, text[insert.rows_at :]) == (
        "CSV",
        "a UInt8, b String",
        "1,x",
    )
    assert insert_with_rows("INSERT INTO t SELECT input FROM u FORMAT CSV") is None


@pytest.mark.parametrize(
    ("sql", "sent"),
    [
        ("DROP TABLE t -- { serverError 60 }", "DROP TABLE t " + " " * 21),
        ("DROP TABLE /* {\n error X } */ t", "DROP TABLE " + " " * 4 + "\n" + " " * 13 + " t"),
        ("SELECT '-- { serverError 60 }' -- { error }", "SELECT '-- { serverError 60 }' " + " " * 12),
        ("SELECT 1 -- an error, { echo }", None),
        ("SELECT '{\"error\": 1}' -- it's {'error': 1}", None),
        ("SELECT ' -- { error }", None),
    ],
)
def test_comments_that_tell_which_error_is_expected_are_blank(sql: str, sent: str | None) -> None:
    assert sendable(sql) == (sql if sent is None else sent)
