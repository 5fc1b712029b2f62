"""engine.sql.tokens and what stands on it alone: splitting, one line, comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.errors import Code, SqlError
from engine.sql import (
    Token,
    TokenKind,
    mentions_as,
    one_line,
    scan,
    split_statements,
    tokenize,
)
from engine.sql.cursor import Cursor

_CORPUS = [
    line.removeprefix("old: ").replace(" <OC>", "")
    for line in (Path(__file__).parents[2] / "data" / "ddl_corpus.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
_FRAGMENTS = st.sampled_from(
    [
        "'",
        '"',
        "`",
        "\\",
        "$",
        "$$",
        "$a$",
        "--",
        "/*",
        "*/",
        "//",
        "# ",
        "#",
        "\n",
        ";",
        ".",
        "1",
        "1e5",
        "x'41'",
        "‘",
        "’",
        "“",
        "”",
        "\xa0",
        "\x00",
        "ON CLUSTER c",
        "a",
        "0x1F",
        "::",
        "{x:Int8}",
        "(",
        ")",
        "é",
        "😀",
        " ",
    ]
)
ANY_TEXT = st.lists(_FRAGMENTS | st.text(max_size=3), max_size=30).map("".join)
CLOSED_LITERALS = st.sampled_from(
    [
        "'ON CLUSTER x'",
        "'it''s; --'",
        r"'\';/*'",
        "`ON CLUSTER`",
        '"a;b"',
        "$$ON CLUSTER x; '$$",
        "$t$;$$'$t$",
        "1.5",
    ]
)


def _tokens(sql: str) -> list[tuple[TokenKind, str]]:
    return [(token.kind, token.text) for token in tokenize(sql) if token.is_significant]


@given(ANY_TEXT)
@example("a.1.2.b")
@example("$a$ $a$")
@example("x'4g'")
def test_tokens_joined_are_the_text_or_the_text_is_refused_with_62(sql: str) -> None:
    try:
        tokens = tokenize(sql)
    except SqlError as error:
        assert error.code == Code.SYNTAX_ERROR
        assert "not closed" in error.message
        return
    assert "".join(token.text for token in tokens) == sql
    assert [token.start for token in tokens] == [
        sum(len(t.text) for t in tokens[:i]) for i in range(len(tokens))
    ]
    assert all(token.text for token in tokens)


@given(st.lists(CLOSED_LITERALS | st.sampled_from(["SELECT", ",", "a", "/* ; */", "-- ;\n"]), min_size=1))
def test_splitting_a_joined_script_gives_its_statements(words: list[str]) -> None:
    statement = "SELECT " + " ".join(words)
    other = "DROP TABLE t"
    assert split_statements(f"{statement};{other} ; {statement}\n;") == [
        statement.strip(),
        other,
        statement.strip(),
    ]


@given(
    st.lists(CLOSED_LITERALS | st.sampled_from(["a", ",", "(", "\n", "/* x */", "-- x\n", "\t"]), min_size=1)
)
def test_one_line_keeps_every_significant_token(words: list[str]) -> None:
    sql = "SELECT " + " ".join(words)
    line = one_line(sql)
    assert _tokens(line) == _tokens(sql)
    assert one_line(line) == line
    assert not any(t.kind is TokenKind.COMMENT for t in tokenize(line))


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT 'abc", "Single quoted string"),
        ("SELECT `abc", "Back quoted string"),
        ('SELECT "abc', "Double quoted string"),
        ("SELECT /* abc", "Multiline comment"),
        ("SELECT /* /* abc */", "Multiline comment"),
        ("SELECT $$abc", "Heredoc"),
        ("SELECT 'abc\\'", "Single quoted string"),
    ],
)
def test_what_is_not_closed_is_named_with_its_place(sql: str, what: str) -> None:
    with pytest.raises(SqlError, match=rf"{what} is not closed: failed at position 8 \(line 1\)") as caught:
        tokenize(sql)
    assert caught.value.code == Code.SYNTAX_ERROR


def test_the_line_of_a_fault_is_counted() -> None:
    with pytest.raises(SqlError, match="line 3"):
        tokenize("SELECT 1;\n\nSELECT 'x")


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        ("a.1.2", ["a", ".", "1", ".", "2"]),
        ("f(x).1", ["f", "(", "x", ")", ".", "1"]),
        (".5+1.5e-3", [".5", "+", "1.5e-3"]),
        ("1a 0x1F 0b01 1_000", ["1a", "0x1F", "0b01", "1_000"]),
        ("a$b$c$", ["a$b$c$"]),
        ("$1a$x$1a$", ["$1a$x$1a$"]),
        ("$a$ x", ["$a$", "x"]),
        ("a::b->c||d<=>e", ["a", "::", "b", "->", "c", "||", "d", "<=>", "e"]),
        ("'a''b'`c``d`", ["'a''b'", "`c``d`"]),
        ("a--b\nc", ["a", "c"]),
        ("a#b", ["a", "#", "b"]),
    ],
)
def test_text_falls_into_the_tokens_of_clickhouse(sql: str, texts: list[str]) -> None:
    assert [text for _, text in _tokens(sql)] == texts


@pytest.mark.slow
def test_many_heredoc_marks_cost_no_quadratic_time() -> None:
    """Each mark is looked up in an index, and not searched for through the rest of the text."""
    sql = " ".join(f"$t{i}$" for i in range(50_000))
    assert sum(1 for token in tokenize(sql) if token.is_significant) == 50_000


@given(st.text(alphabet="/*x", max_size=24))
def test_a_comment_ends_where_as_many_were_closed_as_opened(inside: str) -> None:
    """Against the marks read one after the other, each behind the last."""
    sql, depth, end = f"/*{inside}", 0, None
    for mark in re.finditer(r"/\*|\*/", sql):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            end = mark.end()
            break
    if end is None:
        with pytest.raises(SqlError, match="Multiline comment is not closed"):
            tokenize(sql)
    else:
        assert next(iter(scan(sql))) == Token(TokenKind.COMMENT, sql[:end], 0)


def test_many_comments_within_one_another_cost_no_quadratic_time() -> None:
    deep = 200_000
    (token,) = tokenize("/*" * deep + "*/" * deep)
    assert token.kind is TokenKind.COMMENT


@pytest.mark.parametrize(
    ("sql", "is_there"),
    [
        ("CREATE TABLE t (a UInt8)", False),
        ("CREATE TABLE t AS u", True),
        ("create table t as select 1", True),
        ("CREATE TABLE t ENGINE = Log As u", True),
        ("CREATE TABLE task (alias UInt8, a_as_b Int8)", False),
        ("CREATE TABLE t (a Float64 DEFAULT(b)AS(c))", True),
        ("AS", True),
    ],
)
def test_as_is_found_as_a_word_of_its_own(sql: str, is_there: bool) -> None:
    assert mentions_as(sql) is is_there


_ITEMS = st.sampled_from(
    ["1", "-2", "+3.5", "1e-3", "'a'", r"'it\'s'", "'),('", "( 1 , 'x')", "(1)", "( -1,'''', 2.0 )"]
)
_NO_ITEMS = st.sampled_from(["", "x", "0x1F", "1.", "1_000", "f(1)", "/* */ 1", "((1))", "[1]", "'open"])


@given(
    st.lists(_ITEMS, min_size=60, max_size=70),
    st.lists(_NO_ITEMS, max_size=1),
    st.sampled_from([",", ", ", " ,\n"]),
    st.sampled_from(["IN (%s)", "[%s]", "IN ((%s), x)", "(%s", "%s", "f(g(%s), 1)", "(%s]"]),
)
def test_a_folded_list_is_what_its_tokens_are(
    items: list[str], more: list[str], comma: str, around: str
) -> None:
    sql = around % comma.join([*items, *more])
    try:
        plain = list(scan(sql))
    except SqlError:
        return
    unfolded: list[Token] = []
    for token in scan(sql, folds_lists=True):
        if token.kind is TokenKind.LITERALS:
            unfolded += [one._replace(start=token.start + one.start) for one in scan(token.text)]
        else:
            unfolded.append(token)
    assert unfolded == plain


def test_a_long_list_is_one_token_of_a_long_statement() -> None:
    ids = ", ".join(map(str, range(20_000)))
    cursor = Cursor(f"ALTER TABLE t DELETE WHERE (a, b) IN ({ids}) AND c IN [{ids}]")
    assert [token.kind for token in cursor.tokens].count(TokenKind.LITERALS) == 2
    assert len(cursor.tokens) == 20
    assert cursor.skip_to("AND")


def test_a_statement_keeps_the_comments_before_it() -> None:
    script = "-- first\nSELECT 1;\n/* second; */ SELECT 2;\n-- end"
    assert split_statements(script) == ["-- first\nSELECT 1", "/* second; */ SELECT 2"]


@pytest.mark.parametrize("script", ["", " ;; \n;", "-- nothing", "/* ; */;"])
def test_a_script_without_statements_is_empty(script: str) -> None:
    assert split_statements(script) == []


def test_one_line_leaves_literals_alone() -> None:
    sql = "CREATE TABLE t -- c\n(\n  a String DEFAULT 'x\n  y' /* d */\n)  ENGINE=Memory ;\n"
    assert one_line(sql) == "CREATE TABLE t ( a String DEFAULT 'x\n  y' ) ENGINE=Memory"


def test_the_corpus_is_on_one_line_already() -> None:
    assert [one_line(sql) for sql in _CORPUS] == _CORPUS
