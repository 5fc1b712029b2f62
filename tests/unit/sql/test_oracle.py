"""engine.sql against ClickHouse's own parser: chDB, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.sql import (
    StatementKind,
    one_line,
    parse_statement,
    redact,
    split_statements,
    tokenize,
    with_default_database,
    with_on_cluster,
    without_on_cluster,
    without_output_clauses,
)

_CORPUS = Path(__file__).parents[2] / "data" / "ddl_corpus.txt"
_PLACE = " <OC>"

# Answers one JSON line per request line: {"format": [sql, …]} or {"run": [sql, …]}.
_ORACLE = r"""
import json, sys
from chdb import session
chdb = session.Session()

def literal(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

def formatted(statements):
    rows = ", ".join(f"({i}, {literal(s)})" for i, s in enumerate(statements))
    answer = chdb.query(
        "SELECT formatQuerySingleLineOrNull(s) AS f FROM values('i UInt32, s String', " + rows + ") "
        "ORDER BY i SETTINGS implicit_select = 0", "JSONCompactEachRow")
    return [json.loads(line)[0] for line in str(answer).splitlines()]

def run(statements):
    answers = []
    for statement in statements:
        try:
            answers.append([True, str(chdb.query(statement, "TSVRaw")).rstrip("\n")])
        except Exception as error:
            answers.append([False, str(error)])
    return answers

for line in sys.stdin:
    request = json.loads(line)
    answer = formatted(request["format"]) if "format" in request else run(request["run"])
    print(json.dumps(answer), flush=True)
"""


class Oracle:
    """ClickHouse's parser and interpreter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _ask(self, **request: list[str]) -> list:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def formatted(self, statements: list[str]) -> list[str | None]:
        """Each statement as ClickHouse writes it; None where it does not parse."""
        return self._ask(format=statements)

    def tried(self, *statements: str) -> list[str | None]:
        """The answers; None where it is an error."""
        return [text if ok else None for ok, text in self._ask(run=list(statements))]

    def run(self, *statements: str) -> list[str]:
        """The answers, tab-separated. Fails on the first error."""
        answers = []
        for (ok, text), statement in zip(self._ask(run=list(statements)), statements, strict=True):
            assert ok, f"{statement}\n{text}"
            answers.append(text)
        return answers


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    process = subprocess.Popen(
        [sys.executable, "-c", _ORACLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield Oracle(process)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)


def _lines(*, old: bool) -> list[str]:
    lines = [line for line in _CORPUS.read_text().splitlines() if line and not line.startswith("#")]
    return [line.removeprefix("old: ") for line in lines if line.startswith("old: ") == old]


def _plain(line: str) -> str:
    return line.replace(_PLACE, "")


def _clustered(line: str, name: str = "c") -> str:
    return line.replace(_PLACE, f" ON CLUSTER {name}")


CURRENT = _lines(old=False)
EVERY = CURRENT + _lines(old=True)


def test_the_corpus_covers_every_kind_that_takes_on_cluster() -> None:
    covered = {parse_statement(_plain(line)).kind for line in EVERY}
    exempt = {
        StatementKind.SELECT,
        StatementKind.INSERT,
        StatementKind.SHOW,
        StatementKind.DESCRIBE,
        StatementKind.EXISTS,
        StatementKind.EXPLAIN,
        StatementKind.CHECK_TABLE,
        StatementKind.CHECK_GRANT,
        StatementKind.WATCH,
        StatementKind.SET,
        StatementKind.SET_ROLE,
        StatementKind.USE,
        StatementKind.TRANSACTION,
        StatementKind.EXECUTE_AS,
        StatementKind.PARALLEL_WITH,
        StatementKind.EMPTY,
        StatementKind.OTHER,
        StatementKind.CREATE_MASKING_POLICY,
        StatementKind.ALTER_MASKING_POLICY,
        StatementKind.DROP_MASKING_POLICY,
    }
    assert covered == set(StatementKind) - exempt


def test_clickhouse_parses_every_statement_of_the_corpus_with_and_without_the_clause(oracle: Oracle) -> None:
    plain = oracle.formatted([_plain(line) for line in CURRENT])
    clustered = oracle.formatted([_clustered(line) for line in CURRENT])
    refused = [line for line, a, b in zip(CURRENT, plain, clustered, strict=True) if a is None or b is None]
    assert refused == []
    assert all(text is not None and "ON CLUSTER c" in text for text in clustered)


def test_on_cluster_goes_where_the_grammar_wants_it() -> None:
    assert [with_on_cluster(_plain(line), "c") for line in EVERY] == [_clustered(line) for line in EVERY]


def test_on_cluster_is_taken_out_without_a_trace() -> None:
    plain = [_plain(line) for line in EVERY]
    assert [without_on_cluster(_clustered(line, "'{cluster}'")) for line in EVERY] == plain
    assert [without_on_cluster(line) for line in plain] == plain


def test_the_clause_is_read_and_changes_nothing_else() -> None:
    for line in EVERY:
        plain, clustered = parse_statement(_plain(line)), parse_statement(_clustered(line, "`my c`"))
        assert (plain.on_cluster, clustered.on_cluster) == (None, "my c"), line
        assert replace(clustered, on_cluster=None) == plain, line
        assert plain.takes_on_cluster, line


def test_clauses_written_at_other_places_are_found_too(oracle: Oracle) -> None:
    written = [
        "CREATE USER u IDENTIFIED BY 'x' ON CLUSTER c",
        "CREATE USER u IDENTIFIED BY 'ON CLUSTER d' HOST ANY ON CLUSTER c SETTINGS max_threads = 1",
        "ALTER USER u RENAME TO v ON CLUSTER c",
        "CREATE ROW POLICY p ON CLUSTER c ON db.t USING 1",
        "DROP ROW POLICY p ON CLUSTER c ON db.t",
        "ALTER ROW POLICY p ON CLUSTER c ON db.t RENAME TO q",
        "SYSTEM RELOAD DICTIONARY 'd' ON CLUSTER c",
        "SYSTEM FLUSH DISTRIBUTED db.t ON CLUSTER c",
        "SYSTEM LOAD PRIMARY KEY db.t ON CLUSTER c",
        "SYSTEM RESTART DISK d ON CLUSTER c",
    ]
    formatted = oracle.formatted(written)
    bare = oracle.formatted([without_on_cluster(sql) for sql in written])
    again = oracle.formatted([with_on_cluster(without_on_cluster(sql), "c") for sql in written])
    for sql, before, without, after in zip(written, formatted, bare, again, strict=True):
        assert parse_statement(sql).on_cluster == "c", sql
        assert before is not None and without is not None, sql
        assert "ON CLUSTER c" not in without, sql
        assert before == after, sql


def test_rewriting_leaves_what_clickhouse_makes_of_the_statement(oracle: Oracle) -> None:
    """format(with the clause) without the clause is format(without it)."""
    plain = oracle.formatted([_plain(line) for line in CURRENT])
    clustered = oracle.formatted([with_on_cluster(_plain(line), "c") for line in CURRENT])
    for line, before, after in zip(CURRENT, plain, clustered, strict=True):
        assert after is not None and before is not None
        assert after.replace(" ON CLUSTER c", "", 1) == before, line


def test_clickhouse_formats_one_line_the_same(oracle: Oracle) -> None:
    messy = ["-- c\n" + _clustered(line).replace(" ", "\n  ", 2) + " /* end */ ;" for line in CURRENT]
    assert oracle.formatted([one_line(sql) for sql in messy]) == oracle.formatted(messy)
    assert all("\n" not in one_line(sql) for sql in messy)


def test_redacted_statements_still_parse(oracle: Oracle) -> None:
    redacted = oracle.formatted([redact(_clustered(line)) for line in CURRENT])
    assert [line for line, text in zip(CURRENT, redacted, strict=True) if text is None] == []


def test_statements_with_a_database_filled_in_still_parse(oracle: Oracle) -> None:
    filled = oracle.formatted([with_default_database(_clustered(line), "select") for line in CURRENT])
    assert [line for line, text in zip(CURRENT, filled, strict=True) if text is None] == []


def test_formats_and_output_settings_are_dropped_and_nothing_else(oracle: Oracle) -> None:
    taken_by = [line for line in CURRENT if "SETTINGS" not in line]
    plain = oracle.formatted([_plain(line) for line in taken_by])
    tail = " INTO OUTFILE 'x' FORMAT JSON SETTINGS max_threads = 1"
    accepted = oracle.formatted([_plain(line) + tail for line in taken_by])
    tried = 0
    for line, before, with_tail in zip(taken_by, plain, accepted, strict=True):
        if with_tail is not None:
            tried += 1
            assert without_output_clauses(_plain(line) + tail) == _plain(line), line
            assert before is not None
    assert tried > 100


def test_a_script_of_the_corpus_splits_back_into_it() -> None:
    assert split_statements(";\n".join(EVERY)) == EVERY
    assert split_statements("; ;\n".join(f"/* a; */ {line}" for line in EVERY) + ";-- end;") == [
        f"/* a; */ {line}" for line in EVERY
    ]


# --- lexical grammar ----------------------------------------------------------------------------------------

_LITERALS = [
    "'a''b'",
    r"'a\'b'",
    r"'\\'",
    r"'\n\t\0\x41\q'",
    "‘it's’",
    "$$a'b$$",
    "$tag$a$$b'$tag$",
    "$1a$x$1a$",
    "x'4142'",
    "''",
    "'a\nb'",
    "'--'",
    "'/*'",
]


@pytest.mark.parametrize("literal", _LITERALS)
def test_a_string_has_the_value_clickhouse_gives_it(oracle: Oracle, literal: str) -> None:
    from engine.sql.tokens import literal_value

    tokens = [t for t in tokenize(f"SELECT {literal}") if t.is_significant]
    assert len(tokens) == 2
    (hexed,) = oracle.run(f"SELECT hex({literal})")
    assert literal_value(tokens[1]).encode("utf-8").hex().upper() == hexed


@pytest.mark.parametrize(
    "name", ["`a``b`", '"a""b"', r"`a\`b`", r'"a\"b"', "“col”", "a$b", "$a$", "`a b`", "1a", "`ON CLUSTER`"]
)
def test_an_identifier_has_the_name_clickhouse_gives_it(oracle: Oracle, name: str) -> None:
    from engine.sql.tokens import literal_value

    tokens = [t for t in tokenize(f"SELECT 1 AS {name}") if t.is_significant]
    (row,) = oracle.run(f"SELECT 1 AS {name} FORMAT TSVRawWithNames")
    assert literal_value(tokens[-1]) == row.split("\n")[0]


_SPACES = [*range(1, 33), 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2030), 0x205F, 0x2060, 0x3000, 0xFEFF]


def test_the_same_characters_are_white_space(oracle: Oracle) -> None:
    statements = [f"SELECT{chr(point)}1 AS a" for point in _SPACES]
    formatted = oracle.formatted(statements)
    for point, statement, text in zip(_SPACES, statements, formatted, strict=True):
        ours = [t.text for t in tokenize(statement) if t.is_significant] == ["SELECT", "1", "AS", "a"]
        assert ours == (text == "SELECT 1 AS a"), hex(point)


@pytest.mark.parametrize(
    "comment",
    [
        "-- x\n",
        "# x\n",
        "#! x\n",
        "// x\n",
        "/* x */",
        "/* /* x */ */",
        "/*/* x */*/",
        "/*/ x */",
        "/* ' -- /*/*/ */ */ */",
        "--\n",
        "/**/",
        "--x'\n",
    ],
)
def test_the_same_text_is_a_comment(oracle: Oracle, comment: str) -> None:
    statement = f"SELECT 1 {comment} AS a"
    assert oracle.formatted([statement]) == ["SELECT 1 AS a"]
    assert [t.text for t in tokenize(statement) if t.is_significant] == ["SELECT", "1", "AS", "a"]


# --- default database ---------------------------------------------------------------------------------------

_VIEWS = [
    "SELECT a FROM t",
    "SELECT x.a FROM t AS x",
    "SELECT t.a FROM t",
    "SELECT a FROM other.o",
    "SELECT a FROM r FINAL SETTINGS max_threads = 1",
    "SELECT t.a FROM t JOIN u ON t.a = u.a",
    "SELECT t.a FROM t LEFT JOIN u USING (a) INNER JOIN w USING (a)",
    "SELECT t.a FROM t, u, other.o WHERE t.a = u.a",
    "SELECT t.a FROM t ANY LEFT JOIN (SELECT a FROM u) AS s USING a",
    "SELECT a FROM (SELECT a FROM (SELECT a FROM t))",
    "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
    "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u WHERE a GLOBAL IN (SELECT a FROM w))",
    "SELECT a FROM t WHERE a IN ids",
    "SELECT a FROM t WHERE a IN (ids) AND a NOT IN ((ids)) AND a IN (SELECT a FROM u WHERE a IN (ids))",
    "SELECT a FROM t WHERE a IN other.ids AND a GLOBAL NOT IN ids",
    "SELECT a FROM t WHERE (a, a) IN ((1, 2), (3, 4)) AND a IN (1, 2)",
    "SELECT a FROM t UNION ALL SELECT a FROM u UNION DISTINCT SELECT a FROM other.o",
    "(SELECT a FROM t) UNION ALL (SELECT a FROM u)",
    "WITH c AS (SELECT a FROM t) SELECT a FROM c",
    "WITH c AS (SELECT a FROM t), e AS (SELECT a FROM c) SELECT e.a FROM e JOIN u ON u.a = e.a",
    "WITH 5 AS five, (SELECT max(a) FROM u) AS m SELECT five, m FROM t",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
    "SELECT a FROM t WHERE a = (SELECT max(a) FROM u)",
    "SELECT a, (SELECT count() FROM u) AS k FROM t",
    "SELECT number AS a FROM numbers(3) AS n JOIN t ON t.a = n.number",
    "SELECT a FROM t ARRAY JOIN [1, 2] AS k, [3, 4] AS m",
    "SELECT a FROM t ARRAY JOIN arr",
    "SELECT extract(DAY FROM d) AS a, trim(BOTH ' ' FROM s) AS b FROM t",
    "SELECT substring(s FROM 1 FOR 2) AS a FROM t",
    "SELECT a IS DISTINCT FROM 1 AS b FROM t",
    "SELECT a FROM t SAMPLE 1 / 10 OFFSET 1 / 2, u WHERE t.a = u.a",
    "FROM t SELECT a",
    "SELECT a FROM t GROUP BY a WITH TOTALS ORDER BY a WITH FILL LIMIT 1 WITH TIES",
    "SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY a) = 1",
    "SELECT sum(a) OVER w AS b FROM t WINDOW w AS (ORDER BY a)",
    "SELECT a FROM t EXCEPT SELECT a FROM u INTERSECT SELECT a FROM w",
    "SELECT * EXCEPT (d) FROM t",
    "SELECT count() AS a FROM t WHERE exists(SELECT 1 FROM u)",
    "SELECT a FROM view(SELECT a FROM t)",
    "SELECT x.a FROM 't' AS x JOIN 'u' ON x.a = u.a WHERE x.a IN (SELECT a FROM 'w') AND x.s IN 'w'",
    "SELECT x.a FROM 't' AS x, 'u' WHERE s IS DISTINCT FROM 'w' AND trim(LEADING 'a' FROM 'ab') = 'b'",
    "SELECT POSITION('x' IN s) AS b, position(s IN t.s) FROM t WHERE position('t' IN s) IN (FROM u SELECT a)",
    "SELECT `t`.a FROM `t`",
    "SELECT a FROM t WHERE s = 'FROM u' -- FROM w",
]


@pytest.fixture(scope="module")
def shop(oracle: Oracle) -> Oracle:
    columns = "(a UInt64, d Date, s String, arr Array(UInt8)) ENGINE = MergeTree ORDER BY a SAMPLE BY a"
    oracle.run(
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        "CREATE DATABASE elsewhere",
        *(f"CREATE TABLE shop.{name} {columns}" for name in ("t", "u", "w")),
        f"CREATE TABLE other.o {columns}",
        "CREATE TABLE shop.r (a UInt64) ENGINE = ReplacingMergeTree ORDER BY a",
        "CREATE TABLE shop.ids (a UInt64) ENGINE = Set",
        "CREATE TABLE other.ids (a UInt64) ENGINE = Memory",
    )
    return oracle


def _definition(oracle: Oracle, use: str, sql: str) -> str:
    oracle.run(f"USE {use}", sql)
    (text,) = oracle.run(
        "SELECT create_table_query FROM system.tables WHERE database = 'shop' AND name = 'v'"
    )
    what = "DICTIONARY" if sql.startswith("CREATE DICTIONARY") else "TABLE"
    oracle.run(f"DROP {what} shop.v", "USE default")
    return text


@pytest.mark.parametrize("select", _VIEWS)
def test_a_view_made_elsewhere_reads_the_tables_clickhouse_would_choose(shop: Oracle, select: str) -> None:
    """ClickHouse writes the current database into a view's SELECT when it makes the view; we do it before."""
    sql = f"CREATE VIEW v AS {select}"
    theirs = _definition(shop, "shop", sql)
    ours = _definition(shop, "elsewhere", with_default_database(sql, "shop"))
    assert ours == theirs


def test_a_cte_can_read_the_table_of_its_own_name() -> None:
    """ClickHouse differs: it leaves the inner name alone, and then looks for it in the wrong database."""
    sql = "CREATE VIEW v AS WITH t AS (SELECT a FROM t) SELECT a FROM t"
    expected = "CREATE VIEW shop.v AS WITH t AS (SELECT a FROM shop.t) SELECT a FROM t"
    assert with_default_database(sql, "shop") == expected


def test_a_cte_can_read_a_table_through_others_before_it() -> None:
    sql = (
        "CREATE VIEW v AS WITH r AS (SELECT a FROM {0}t), t AS (SELECT a FROM r), u AS (FROM t) FROM u, r, t"
    )
    with_database = sql.replace("VIEW v", "VIEW shop.v").format("shop.")
    assert with_default_database(sql.format(""), "shop") == with_database


def test_objects_made_elsewhere_are_where_and_what_they_would_be_at_home(shop: Oracle) -> None:
    source = "SOURCE(CLICKHOUSE(TABLE 't'))"
    cases = [
        ("CREATE TABLE v AS t", []),
        ("CREATE TABLE v ENGINE = MergeTree ORDER BY a AS SELECT a FROM t", []),
        ("CREATE TABLE v (a String DEFAULT currentDatabase()) ENGINE = Memory", ["currentDatabase()"]),
        ("CREATE MATERIALIZED VIEW v TO u AS SELECT a, d, s, arr FROM t", []),
        (
            "CREATE MATERIALIZED VIEW v REFRESH EVERY 9 YEAR DEPENDS ON w, other.o TO u AS SELECT a FROM t",
            [],
        ),
        (f"CREATE DICTIONARY v (a UInt64) PRIMARY KEY a {source} LAYOUT(FLAT()) LIFETIME(1)", []),
    ]
    for sql, replaced in cases:
        theirs = _definition(shop, "shop", sql)
        ours = _definition(shop, "elsewhere", with_default_database(sql, "shop"))
        for call in replaced:
            theirs = theirs.replace(call, "'shop'")
        assert ours == theirs, sql


def test_statements_without_a_database_act_on_the_current_one(shop: Oracle) -> None:
    shop.run("USE elsewhere")
    script = [
        "CREATE TABLE n1 AS t",
        "CREATE TABLE n2 AS t",
        "INSERT INTO shop.n1 (a) VALUES (1), (2)",
        "INSERT INTO shop.n2 (a) VALUES (2)",
        "ALTER TABLE n1 DELETE WHERE a IN (SELECT a FROM n2) SETTINGS mutations_sync = 1",
        "ALTER TABLE n1 REPLACE PARTITION tuple() FROM n2",
        "ALTER TABLE n1 MOVE PARTITION tuple() TO TABLE n2",
        "EXCHANGE TABLES n1 AND n2",
        "RENAME TABLE n1 TO n3, n2 TO n4",
        "OPTIMIZE TABLE n3 FINAL",
        "TRUNCATE TABLE n4",
        "DROP TABLE n4",
    ]
    shop.run(*(with_default_database(sql, "shop") for sql in script))
    (names,) = shop.run("SELECT name FROM system.tables WHERE database = 'shop' AND name LIKE 'n%'")
    (rows,) = shop.run("SELECT count() FROM shop.n3")
    (strays,) = shop.run("SELECT count() FROM system.tables WHERE database = 'elsewhere'")
    shop.run("DROP TABLE shop.n3", "USE default")
    assert (names, rows, strays) == ("n3", "2", "0")


_WITH_SECRETS = [
    "SELECT * FROM s3('https://b/x', 'csvloader', 'Zq1')",
    "SELECT * FROM s3('https://b/x', 'k', 'Zq1', 'CSV', 'a Int8')",
    "SELECT * FROM s3('https://b/x', 'k', 'Zq1', 'Zq2', 'CSV', 'a Int8')",
    "SELECT * FROM s3Cluster('c', 'https://b/x', 'oneKEY', 'Zq1')",
    "SELECT * FROM s3('https://b/x', extra_credentials(external_id = 'Zq1'))",
    "SELECT * FROM gcs('https://b/x', 'k', 'Zq1')",
    "SELECT * FROM deltaLake('https://b/x', 'k', 'Zq1')",
    "SELECT * FROM iceberg('https://b/x', 'k', 'Zq1')",
    "SELECT * FROM mysql('h', 'd', 't', 'u', 'Zq1')",
    "SELECT * FROM postgresql('h', 'd', 't', 'u', 'Zq1', 'schema')",
    "SELECT * FROM mongodb('h', 'd', 'c', 'u', 'Zq1', 'a Int8')",
    "SELECT * FROM mongodb('mongodb://u:Zq1@h/d', 'c', 'a Int8')",
    "SELECT * FROM remote('h', 'd', 't', 'u', 'Zq1')",
    "SELECT * FROM remote('h', d.t, 'u', 'Zq1')",
    "SELECT * FROM remoteSecure('h', numbers(1), 'u', 'Zq1')",
    "SELECT * FROM azureBlobStorage('https://x', 'c', 'b', 'n', 'Zq1', 'CSV')",
    "SELECT * FROM azureBlobStorage('AccountName=n;AccountKey=Zq1;Suffix=x', 'c', 'b')",
    "SELECT * FROM url('https://h/x', CSV, 'a Int8', headers('Authorization' = 'Zq1', 'X' = 'Zq2'))",
    "SELECT * FROM url('https://u:Zq1@h/x', CSV)",
    "SELECT * FROM mysql(c, password = 'Zq1')",
    "SELECT encrypt('aes-256-gcm', 'Zq1', 'Zq2')",
]


def test_what_clickhouse_hides_is_hidden(oracle: Oracle) -> None:
    """It hides in EXPLAIN SYNTAX; statements that it cannot look at without their servers are left out."""
    answers = oracle.tried(*(f"EXPLAIN SYNTAX {sql}" for sql in _WITH_SECRETS))
    hidden_there = [
        sql for sql, text in zip(_WITH_SECRETS, answers, strict=True) if "[HIDDEN]" in (text or "")
    ]
    assert len(hidden_there) >= 8
    assert [sql for sql in hidden_there if "[HIDDEN]" not in redact(sql)] == []
    assert [sql for sql in _WITH_SECRETS if "Zq" in redact(sql)] == []
