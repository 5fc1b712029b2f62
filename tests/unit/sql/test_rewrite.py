"""engine.sql: rewriting edits what it means to edit, no more; the oracle tests say that it is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine.sql
from engine.errors import Code, SqlError
from engine.sql import (
    expand_macros,
    mentions_empty_database,
    one_line,
    output_settings,
    parse_and_strip,
    parse_statement,
    redact,
    tokenize,
    with_current_database,
    with_default_database,
    with_on_cluster,
    without_on_cluster,
    without_output_clauses,
)
from engine.sql.if_not_exists import with_if_not_exists

_LINES = [
    line.removeprefix("old: ")
    for line in (Path(__file__).parents[2] / "data" / "ddl_corpus.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
_GAPS = st.sampled_from(
    [
        " ",
        "\n",
        "\t",
        " /* ON CLUSTER x */ ",
        " -- ON CLUSTER 'y\n",
        "\u00a0",
        " # ON CLUSTER z\n",
        "/**/",
        "/* /*;*/ */",
    ]
)


def _significant(sql: str) -> list[str]:
    return [token.text for token in tokenize(sql) if token.is_significant]


@st.composite
def messy(draw: st.DrawFn) -> tuple[str, str]:
    """A line of the corpus with other white space and comments: without the clause, and with it."""
    line = draw(st.sampled_from(_LINES))
    before, _, behind = line.partition(" <OC>")

    def mess(text: str) -> str:
        pieces = [draw(_GAPS) if not t.is_significant else t.text for t in tokenize(text)]
        return "".join(pieces)

    head, tail = mess(before), mess(behind)
    name = draw(st.sampled_from(["c", "'c'", "`c`", '"c"']))
    clause = "".join(draw(_GAPS) + word for word in ("ON", "CLUSTER", name))
    end = draw(st.sampled_from(["", ";", " ;\n-- end"]))
    return f"{head}{tail}{end}", f"{head}{clause}{tail}{end}"


@given(messy())
def test_the_clause_is_inserted_and_all_else_is_byte_for_byte(pair: tuple[str, str]) -> None:
    plain, _ = pair
    clustered = with_on_cluster(plain, "the cluster")
    at = clustered.index(" ON CLUSTER `the cluster`")
    assert clustered[:at] + clustered[at + len(" ON CLUSTER `the cluster`") :] == plain
    assert without_on_cluster(clustered) == plain


@given(messy())
def test_the_clause_is_found_in_any_layout_and_taken_out(pair: tuple[str, str]) -> None:
    plain, clustered = pair
    assert parse_statement(clustered).on_cluster == "c"
    assert _significant(without_on_cluster(clustered)) == _significant(plain)
    assert with_on_cluster(clustered, "c") == clustered
    assert parse_statement(with_on_cluster(clustered, "{d}")).on_cluster == "{d}"


@given(messy())
def test_filling_in_a_database_only_adds_it(pair: tuple[str, str]) -> None:
    for sql in pair:
        filled = with_default_database(sql, "zz_9")
        assert filled.replace("zz_9.", "").replace("'zz_9'", "currentDatabase()") == sql
        assert mentions_empty_database(sql) == (filled != sql)
        assert not mentions_empty_database(filled)


def test_two_words_do_not_grow_together() -> None:
    assert without_on_cluster("DROP TABLE t ON CLUSTER 'c'SYNC") == "DROP TABLE t SYNC"
    assert without_on_cluster("DROP TABLE t\nON CLUSTER c\nSYNC") == "DROP TABLE t\n\nSYNC"


def test_a_name_that_does_not_fit_is_quoted() -> None:
    assert with_on_cluster("DROP TABLE t", "my-c") == "DROP TABLE t ON CLUSTER `my-c`"
    assert with_on_cluster("DROP TABLE t", "{cluster}") == "DROP TABLE t ON CLUSTER `{cluster}`"
    assert with_default_database("DROP TABLE t", "a`b") == "DROP TABLE `a\\`b`.t"
    assert with_default_database("DROP TABLE t", "select") == "DROP TABLE `select`.t"


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "INSERT INTO t VALUES (1)", "SYSTEM REFRESH VIEW v", "CHECK TABLE t"]
)
def test_what_cannot_have_the_clause_is_refused_with_48(sql: str) -> None:
    with pytest.raises(SqlError, match="not supported for such DDL") as caught:
        with_on_cluster(sql, "c")
    assert caught.value.code == Code.NOT_IMPLEMENTED
    assert without_on_cluster(sql) == sql


def test_a_misspelt_statement_is_asked_about() -> None:
    with pytest.raises(SqlError, match=r"misspelt\?"):
        with_on_cluster("DROP TABL t", "c")


@pytest.mark.parametrize(
    ("sql", "filled"),
    [
        ("RENAME TABLE a TO x.b, c TO d", "RENAME TABLE q.a TO x.b, q.c TO q.d"),
        ("ALTER TABLE a REPLACE PARTITION 1 FROM b", "ALTER TABLE q.a REPLACE PARTITION 1 FROM q.b"),
        ("ALTER TABLE a MOVE PARTITION 1 TO TABLE b", "ALTER TABLE q.a MOVE PARTITION 1 TO TABLE q.b"),
        ("ALTER TABLE a ATTACH PARTITION 1 FROM b", "ALTER TABLE q.a ATTACH PARTITION 1 FROM q.b"),
        (
            "ALTER TABLE a MODIFY REFRESH EVERY 1 DAY DEPENDS ON b, d.c",
            "ALTER TABLE q.a MODIFY REFRESH EVERY 1 DAY DEPENDS ON q.b, d.c",
        ),
        ("ALTER TABLE x.a FETCH PARTITION 1 FROM '/b'", "ALTER TABLE x.a FETCH PARTITION 1 FROM '/b'"),
        ("CREATE TABLE a AS b ENGINE = Null", "CREATE TABLE q.a AS q.b ENGINE = Null"),
        ("CREATE TABLE a AS numbers(1)", "CREATE TABLE q.a AS numbers(1)"),
        (
            "CREATE TABLE a AS b ENGINE = Distributed(c, '', b, rand())",
            "CREATE TABLE q.a AS q.b ENGINE = Distributed(c, '', b, rand())",
        ),
        (
            "CREATE TABLE x.a (b Int8) ENGINE = Distributed(c, currentDatabase(), b)",
            "CREATE TABLE x.a (b Int8) ENGINE = Distributed(c, 'q', b)",
        ),
        ("CREATE TEMPORARY TABLE a (b Int8)", "CREATE TEMPORARY TABLE a (b Int8)"),
        (
            "GRANT SELECT ON a, SHOW ON *, INSERT ON *.* TO b",
            "GRANT SELECT ON q.a, SHOW ON q.*, INSERT ON *.* TO b",
        ),
        ("CREATE ROW POLICY a ON b, c.d USING 1", "CREATE ROW POLICY a ON q.b, c.d USING 1"),
        ("CREATE DATABASE a", "CREATE DATABASE a"),
        ("DROP TABLE {t:Identifier}", "DROP TABLE {t:Identifier}"),
        ("ALTER TABLE a MODIFY QUERY SELECT 1 FROM b", "ALTER TABLE q.a MODIFY QUERY SELECT 1 FROM q.b"),
        ("BACKUP DATABASE d EXCEPT TABLES a TO Null", "BACKUP DATABASE d EXCEPT TABLES a TO Null"),
        (
            "CREATE VIEW v AS SELECT a IN (b), a IN ((b)), a IN (NULL), a IN (b, 1) FROM t",
            "CREATE VIEW q.v AS SELECT a IN (q.b), a IN ((q.b)), a IN (NULL), a IN (b, 1) FROM q.t",
        ),
        (
            "CREATE VIEW v AS SELECT [1] AS k, 1 IN k FROM t",
            "CREATE VIEW q.v AS SELECT [1] AS k, 1 IN k FROM q.t",
        ),
    ],
)
def test_the_current_database_is_filled_in_where_one_is_missing(sql: str, filled: str) -> None:
    assert with_default_database(sql, "q") == filled


def test_shard_default_databases_leave_tables_to_the_executing_host() -> None:
    sql = "CREATE TABLE a ENGINE = Memory AS SELECT currentDatabase() FROM b"
    assert with_current_database(sql, "q") == "CREATE TABLE a ENGINE = Memory AS SELECT 'q' FROM b"


@pytest.mark.parametrize(
    ("sql", "bare", "settings"),
    [
        ("DROP TABLE t SETTINGS a = 1, b = 'x' FORMAT JSON", "DROP TABLE t", {"a": "1", "b": "x"}),
        (
            "ALTER TABLE t DROP COLUMN a SETTINGS mutations_sync = 2",
            "ALTER TABLE t DROP COLUMN a",
            {"mutations_sync": "2"},
        ),
        (
            "ALTER TABLE t DELETE WHERE b SETTINGS allow_nondeterministic_mutations, mutations_sync = 2",
            "ALTER TABLE t DELETE WHERE b",
            {"allow_nondeterministic_mutations": "1", "mutations_sync": "2"},
        ),
        (
            "OPTIMIZE TABLE t SETTINGS a = 1, optimize_throw_if_noop",
            "OPTIMIZE TABLE t",
            {"a": "1", "optimize_throw_if_noop": "1"},
        ),
        ("ALTER TABLE t ADD COLUMN settings Int8", "ALTER TABLE t ADD COLUMN settings Int8", {}),
        (
            "ALTER TABLE t ADD COLUMN IF NOT EXISTS settings my_type",
            "ALTER TABLE t ADD COLUMN IF NOT EXISTS settings my_type",
            {},
        ),
        ("ALTER TABLE t MODIFY SETTING a = 1 FORMAT TSV", "ALTER TABLE t MODIFY SETTING a = 1", {}),
        (
            "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS x = 1 FORMAT JSON SETTINGS y = -2",
            "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS x = 1",
            {"y": "-2"},
        ),
        (
            "CREATE VIEW v AS SELECT 1 SETTINGS a = 1 FORMAT JSON",
            "CREATE VIEW v AS SELECT 1 SETTINGS a = 1",
            {},
        ),
        ("SELECT 1 INTO OUTFILE 'x' TRUNCATE FORMAT TSV", "SELECT 1", {}),
        ("DROP TABLE t -- FORMAT JSON", "DROP TABLE t -- FORMAT JSON", {}),
        ("DROP TABLE t FORMAT JSON -- c", "DROP TABLE t -- c", {}),
        ("DROP TABLE `FORMAT`", "DROP TABLE `FORMAT`", {}),
        (
            "ALTER TABLE t MODIFY COLUMN a Int8 SETTINGS (b = 1)",
            "ALTER TABLE t MODIFY COLUMN a Int8 SETTINGS (b = 1)",
            {},
        ),
    ],
)
def test_output_clauses_go_and_their_settings_are_kept_apart(
    sql: str, bare: str, settings: dict[str, str]
) -> None:
    assert without_output_clauses(sql) == bare
    assert output_settings(sql) == settings
    assert without_output_clauses(bare) == bare


def test_macros_are_expanded_once() -> None:
    macros = {"a": "{b}", "b": "x"}
    assert expand_macros("{a}-{b}", macros) == "{b}-x"
    with pytest.raises(SqlError, match=r"No macro 'c' in config while .* in 'x\{c\}' at '2' or") as caught:
        expand_macros("x{c}", macros)
    assert caught.value.code == Code.NO_ELEMENTS_IN_CONFIG


def test_the_package_shows_its_public_names_and_no_others() -> None:
    shown = {name for name in vars(engine.sql) if not name.startswith("_")}
    modules = {path.stem for path in Path(engine.sql.__file__).parent.glob("*.py")}
    assert shown - modules - set(engine.sql.__all__) == set()
    assert list(engine.sql.__all__) == sorted(engine.sql.__all__)
    assert all(getattr(engine.sql, name).__doc__ for name in engine.sql.__all__)


@pytest.mark.extended
@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "(SELECT 1 FROM t WHERE x IN " * 15_000,
        "ALTER TABLE t " + "(" * 50_000,
        "ALTER TABLE t DROP COLUMN a" + ", (DROP COLUMN b" * 15_000,
        "CREATE VIEW v AS " + "WITH a AS (" * 15_000,
        "CREATE TABLE t ENGINE = " + "S3(" * 50_000 + "'x'",
        "GRANT " + "SELECT ON t, " * 15_000,
        "RENAME TABLE " + "a TO b, " * 15_000,
        "CREATE POLICY p ON " + "t, " * 50_000,
        "/*" * 50_000 + "*/" * 50_000,
        "SELECT '" + "\\'" * 50_000 + "'",
    ],
    ids=lambda text: text[:24],
)
def test_no_text_takes_more_than_linear_work(text: str) -> None:
    """A hostile entry in the queue may be 1 MiB: quadratic work on one of these would outlast the timeout."""
    assert isinstance(redact(text), str)
    assert isinstance(with_default_database(text, "d"), str)
    assert isinstance(without_on_cluster(text), str)
    assert isinstance(without_output_clauses(text), str)
    assert isinstance(one_line(text), str)


@pytest.mark.parametrize(
    "sql",
    [
        "GRANT TABLE ENGINE ON S3 TO u",
        "GRANT SET DEFINER ON v TO u",
        "GRANT NAMED COLLECTION ON n TO u",
        "GRANT CREATE USER ON v TO u",
        "GRANT READ ON URL TO u",
        "SYSTEM RELOAD DICTIONARY d",
        "SYSTEM RELOAD DICTIONARY `d`",
        "SYSTEM RELOAD DICTIONARY 'd'",
    ],
)
def test_names_that_are_no_tables_get_no_database(sql: str) -> None:
    assert with_default_database(sql, "q") == sql
    assert not mentions_empty_database(sql)


def test_a_ttl_to_a_disk_is_no_target_of_a_view() -> None:
    sql = "CREATE MATERIALIZED VIEW a.v ENGINE = MergeTree ORDER BY b TTL c TO DISK 'd' AS SELECT b FROM a.t"
    assert parse_statement(sql).targets == ()
    assert with_default_database(sql, "q") == sql


def test_parsing_and_stripping_at_once_is_the_same_as_one_after_the_other() -> None:
    for sql in (
        "CREATE TABLE a.b ON CLUSTER c (x UInt8) ENGINE = Memory",
        "/* oncluster token=t */ DROP TABLE a.b ON CLUSTER c SYNC",
        "RENAME TABLE a TO b ON CLUSTER `odd name`",
        "SELECT 1",
    ):
        assert parse_and_strip(sql) == (parse_statement(sql), without_on_cluster(sql))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE t (a Int8) ENGINE = Log", "CREATE TABLE IF NOT EXISTS t (a Int8) ENGINE = Log"),
        ("create table `d`.t ON CLUSTER c AS x", "create table IF NOT EXISTS `d`.t ON CLUSTER c AS x"),
        ("CREATE TEMPORARY TABLE t (a Int8)", "CREATE TEMPORARY TABLE IF NOT EXISTS t (a Int8)"),
        ("CREATE MATERIALIZED VIEW v TO t AS SELECT 1", None),
        ("CREATE DICTIONARY d (a Int8) PRIMARY KEY a", None),
    ],
)
def test_if_not_exists_is_put_before_the_name(sql: str, expected: str | None) -> None:
    written = with_if_not_exists(sql)
    assert expected is None or written == expected
    assert parse_statement(written).if_not_exists and with_if_not_exists(written) == written


@pytest.mark.parametrize("sql", ["CREATE OR REPLACE TABLE t AS x", "REPLACE TABLE t AS x", "DROP TABLE t"])
def test_if_not_exists_is_for_what_creates(sql: str) -> None:
    assert with_if_not_exists(sql) == sql
