"""ClickHouse's HTTP interface, byte by byte, against a real node process."""

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.node.conftest import RunningNode
from tests.node.http_client import Reply

pytestmark = pytest.mark.slow


def test_ping_and_root_say_ok_and_an_unknown_path_says_what_there_is(node: RunningNode) -> None:
    assert node.get("/ping").body == b"Ok.\n"
    assert node.get("/").body == b"Ok.\n"
    assert node.get("/replicas_status").body == b"Ok.\n"
    missing = node.get("/nosuch")
    assert missing.status == 404
    assert missing.text.startswith("There is no handle /nosuch")


def test_a_query_may_stand_in_the_parameter_the_body_or_both(node: RunningNode) -> None:
    assert node.get("/?query=SELECT%201").text == "1\n"
    assert node.post("SELECT 1").text == "1\n"
    assert node.post(" FORMAT JSONEachRow", query="SELECT 1 AS x").text == '{"x":1}\n'


def test_answers_carry_clickhouses_headers(node: RunningNode) -> None:
    reply = node.post("SELECT number FROM numbers(10) FORMAT JSON", query_id="my-query")
    assert reply.headers["X-ClickHouse-Query-Id"] == "my-query"
    assert reply.headers["X-ClickHouse-Format"] == "JSON"
    assert reply.headers["Content-Type"] == "application/json; charset=UTF-8"
    assert reply.headers["X-ClickHouse-Server-Display-Name"] == "node01"
    assert reply.headers["X-ClickHouse-Timezone"]
    assert reply.headers["X-ClickHouse-Exception-Tag"]  # without it clients take rows for exceptions
    summary = json.loads(reply.headers["X-ClickHouse-Summary"])
    assert (summary["read_rows"], summary["result_rows"]) == ("10", "10")


def test_only_a_statement_with_a_result_names_its_format(node: RunningNode) -> None:
    """clickhouse-connect tells commands from queries without rows by it."""
    without = (
        "CREATE TABLE told (a Int8) ENGINE = Memory",
        "INSERT INTO told VALUES (1)",
        "INSERT INTO told SELECT 2",
        "SET max_threads = 1",
        "DROP TABLE IF EXISTS nosuch",
    )
    for sql in without:
        headers = node.post(sql).headers
        assert (headers["X-ClickHouse-Format"], headers["Content-Type"]) == (
            None,
            "text/plain; charset=UTF-8",
        ), sql
        assert "read_rows" in headers["X-ClickHouse-Summary"]
    for sql in ("SELECT a FROM told WHERE a > 2", "EXISTS TABLE told"):
        assert node.post(sql).headers["X-ClickHouse-Format"] == "TabSeparated", sql


def test_nothing_is_put_into_system_or_taken_from_it(node: RunningNode) -> None:
    for insert in (
        "INSERT INTO system.clusters (cluster) VALUES ('x')",
        "INSERT INTO system.macros SELECT 'x', 'y'",
        "INSERT INTO system.distributed_ddl_queue (entry) FORMAT CSV\nx",
    ):
        assert node.post(insert).code == 48, insert
    for ddl in (
        "CREATE TABLE system.x (a Int8) ENGINE = Log",  # would be gone after a restart
        "DROP TABLE system.parts",
        "DROP DATABASE system",
        "CREATE DATABASE _local",
    ):
        assert node.post(ddl).code == 497, ddl


def test_tables_of_system_are_shown(node: RunningNode) -> None:
    shown = node.post("SHOW CREATE TABLE system.one FORMAT TSVRaw").text
    begin = (
        "CREATE TABLE system.one\n(\n    `dummy` UInt8\n)\nENGINE = SystemOne\nCOMMENT 'This table contains"
    )
    assert shown.startswith(begin)
    assert node.post("SHOW CREATE one", database="system").text == node.post("SHOW CREATE system.one").text
    assert "COMMENT" in node.post("SHOW CREATE TABLE system.clusters").text
    assert node.post("SHOW CREATE TABLE system.nosuch").code == 60
    metric = "FROM system.asynchronous_metrics WHERE name = 'Uptime'"
    assert node.query(f"SELECT name, metric {metric}") == "Uptime\tUptime\n"
    assert node.query(f"SELECT * {metric}").count("\t") == 2  # `name` is an alias


@pytest.mark.parametrize(
    ("sql", "status", "code", "name"),
    [
        ("SELCT 1", 400, 62, "SYNTAX_ERROR"),
        ("SELECT nosuch", 404, 47, "UNKNOWN_IDENTIFIER"),
        ("SELECT * FROM nosuch", 404, 60, "UNKNOWN_TABLE"),
        ("SELECT * FROM nosuch.t", 404, 81, "UNKNOWN_DATABASE"),
        ("SELECT 1 FORMAT Nosuch", 404, 73, "UNKNOWN_FORMAT"),
        ("SELECT 1 SETTINGS nosuch = 1", 404, 115, "UNKNOWN_SETTING"),
        ("CREATE TABLE t (a UInt8) ENGINE = Nosuch", 404, 56, "UNKNOWN_STORAGE"),
        ("SELECT throwIf(1)", 500, 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        ("SELECT * FROM file('/etc/passwd', LineAsString)", 403, 497, "ACCESS_DENIED"),
        ("CREATE TABLE t (a String) ENGINE = File(CSV, '/etc/passwd')", 403, 497, "ACCESS_DENIED"),
        ("SELECT file('/etc/passwd')", 403, 497, "ACCESS_DENIED"),
        ("INSERT INTO FUNCTION null('a String') VALUES (file('/etc/passwd'))", 403, 497, "ACCESS_DENIED"),
        (
            "CREATE DICTIONARY d (a UInt8) SOURCE(EXECUTABLE(COMMAND 'id'))",
            500,
            482,
            "DICTIONARY_ACCESS_DENIED",
        ),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", 500, 358, "INTO_OUTFILE_NOT_ALLOWED"),
        ("SHOW TABLES INTO OUTFILE '/tmp/x'", 500, 358, "INTO_OUTFILE_NOT_ALLOWED"),
        ("INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV", 404, 78, "UNKNOWN_TYPE_OF_QUERY"),
        ("SYSTEM SHUTDOWN", 500, 1, "UNSUPPORTED_METHOD"),
        ("SELECT 1; SELECT 2", 400, 62, "SYNTAX_ERROR"),
        ("DROP TABLE IF EXISTS a; DROP TABLE IF EXISTS b", 400, 62, "SYNTAX_ERROR"),
        ("", 400, 62, "SYNTAX_ERROR"),
        ("SELECT * FROM system.zookeeper", 400, 36, "BAD_ARGUMENTS"),
        ("DROP TABLE t ON CLUSTER nosuch", 500, 139, "NO_ELEMENTS_IN_CONFIG"),
    ],
)
def test_errors_have_clickhouses_code_status_and_form(
    node: RunningNode, sql: str, status: int, code: int, name: str
) -> None:
    reply = node.post(sql)
    assert (reply.status, reply.code) == (status, code), reply.text
    assert reply.text.startswith(f"Code: {code}. DB::Exception: ")
    assert f"({name}) (version " in reply.text
    assert reply.text.endswith(")\n")


def test_get_is_readonly_and_says_so(node: RunningNode) -> None:
    reply = node.get("/?query=CREATE%20TABLE%20t%20(a%20UInt8)%20ENGINE%3DMemory")
    assert reply.code == 164
    assert "method GET implies readonly" in reply.text
    for wrong in ("SELEC%201", "DROP%20TABEL%20t", "CREATE%20TABLE%20t%20(a"):
        reply = node.get(f"/?query={wrong}")
        assert (reply.code, "Syntax error" in reply.text) == (62, True)
    assert node.get("/?query=INSERT%20INTO%20t%20VALUES%20(1)").code == 164
    assert node.get("/?query=SELECT%201%20SETTINGS%20readonly=0").code == 164
    assert node.get("/?query=SELECT%20getSetting('max_threads')&max_threads=1").text == "1\n"


def test_settings_database_format_and_query_parameters(node: RunningNode) -> None:
    node.query("CREATE DATABASE IF NOT EXISTS other")
    assert node.query("SELECT currentDatabase()", database="other") == "other\n"
    assert node.post("SELECT currentDatabase()", {"X-ClickHouse-Database": "other"}).text == "other\n"
    assert node.post("SELECT 1", database="nosuch").code == 81
    assert node.query("SELECT getSetting('max_threads')", max_threads="3") == "3\n"
    assert node.post("SELECT 1", nosuch="1").code == 115
    assert node.query("SELECT 1 AS a", default_format="JSONEachRow") == '{"a":1}\n'
    assert node.post("SELECT 1 AS a", {"X-ClickHouse-Format": "CSV"}).text == "1\n"
    sent = node.query(
        "SELECT {n:UInt8} + 1, {s:String}, {t:Identifier}.a FROM (SELECT 7 AS a) AS x",
        param_n="5",
        param_s="it's",
        param_t="x",
    )
    assert sent == "6\tit\\'s\t7\n"


ENDLESS = "SELECT count() FROM system.numbers WHERE NOT ignore(number)"


@contextlib.contextmanager
def running(node: RunningNode, query_id: str, **parameters: str) -> Iterator[list[Reply]]:
    """A statement that does not end by itself; at the end its answer is in the list."""
    replies: list[Reply] = []
    endless = threading.Thread(
        target=lambda: replies.append(node.post(ENDLESS, query_id=query_id, **parameters))
    )
    endless.start()
    while query_id not in node.query("SELECT Settings['log_comment'] FROM system.processes"):
        pass
    yield replies
    endless.join()


@pytest.mark.parametrize("parameters", [{}, {"log_comment": "the client's own"}])
def test_kill_query_knows_the_ids_that_clients_gave(node: RunningNode, parameters: dict[str, str]) -> None:
    with running(node, "to be killed", **parameters) as replies:
        node.query("KILL QUERY WHERE query_id = 'nobody' SYNC")
        node.query("KILL QUERY WHERE query_id = 'to be killed' ASYNC")
    assert replies[0].code == 394


def test_a_statement_is_replaced_by_the_next_under_its_id_if_that_is_asked_for(node: RunningNode) -> None:
    with running(node, "twice") as replies:
        assert node.post("SELECT 1", query_id="twice").code == 216
        alice = {"user": "alice", "password": "secret", "replace_running_query": "1"}
        assert node.post("SELECT 1", query_id="twice", **alice).code == 216
        assert node.query("SELECT 2", query_id="twice", replace_running_query="1") == "2\n"
    assert replies[0].code == 394


def test_a_table_may_be_called_like_a_keyword(node: RunningNode) -> None:
    node.query("CREATE TABLE `format` (values UInt8) ENGINE = Memory")
    node.query("INSERT INTO format VALUES (1)")
    node.query("INSERT INTO `format` (values) FORMAT TSV\n2\n")
    assert node.query("SELECT sum(values) FROM format") == "3\n"


@pytest.mark.parametrize("where", ["/", "/?session_id=goes_on"])
def test_a_change_goes_on_when_its_client_goes_away(node: RunningNode, where: str) -> None:
    node.query("CREATE OR REPLACE TABLE goes_on (a UInt64) ENGINE = MergeTree ORDER BY a")
    sql = "INSERT INTO goes_on SELECT number + sleepEachRow(0.1) FROM numbers(10) SETTINGS max_block_size = 1"
    running = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO goes_on%'"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        head = f"POST {where} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n"
        connection.sendall((head + sql).encode())
        while node.query(running) != "1\n":
            pass
    while node.query(running) != "0\n":
        pass
    assert node.query("SELECT count() FROM goes_on") == "10\n"


def test_too_long_a_query_is_refused_and_the_limit_can_be_raised(node: RunningNode) -> None:
    sql = "SELECT 1 /* " + "x" * 300_000 + " */"
    refused = node.post(sql)
    assert refused.code == 62
    assert "max_query_size" in refused.text
    assert node.query(sql, max_query_size="1000000") == node.query(sql, max_query_size="0") == "1\n"
    node.query("SET max_query_size = 1000000", session_id="long")
    assert node.query(sql, session_id="long") == "1\n"
    assert node.post(sql, session_id="long", max_query_size="1000").code == 62
    node.query("SET max_query_size = 27", session_id="short")
    assert node.query("SELECT 1", session_id="short") == "1\n"
    assert node.post("SELECT 1, 2, 3, 4, 5, 6, 7, 8", session_id="short").code == 62
    node.query("SET max_query_size = 262144", session_id="short")
    assert len(node.query(f"SELECT '{'a' * 262_130}'", session_id="short")) == 262_131


def test_two_statements_with_one_query_id_do_not_run_at_once(node: RunningNode) -> None:
    slow = threading.Thread(
        target=node.post,
        args=("SELECT sleepEachRow(0.2) FROM numbers(20) SETTINGS max_block_size = 1",),
        kwargs={"query_id": "twice"},
    )
    slow.start()
    while node.query("SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'twice'") == "0\n":
        pass
    assert node.post("SELECT 1", query_id="twice").code == 216
    slow.join()
    assert node.post("SELECT 1", query_id="twice").text == "1\n"


def test_a_header_cannot_be_smuggled_in_through_the_query_id(node: RunningNode) -> None:
    reply = node.post("SELECT 1", query_id="a\r\nX-Evil: 1")
    assert "X-Evil" not in reply.headers
    assert reply.headers["X-ClickHouse-Query-Id"] == "aX-Evil: 1"


def test_names_settings_and_databases_may_be_any_bytes(node: RunningNode) -> None:
    assert node.post(b"CREATE DATABASE `d\xff`").status == 200
    assert node.post(b"CREATE TABLE `d\xff`.`t\xfe` (`c\xfd` String) ENGINE = Memory").status == 200
    assert node.post(b"INSERT INTO `d\xff`.`t\xfe` (`c\xfd`) FORMAT CSV\n\xfc\n").status == 200
    assert node.get("/?query=SELECT%20hex(*)%20FROM%20%60t%FE%60&database=d%FF").text == "FC\n"
    setting = "SELECT%20hex(getSetting('insert_deduplication_token'))&insert_deduplication_token=%FF"
    assert node.get(f"/?query={setting}").text == node.get(f"/?session_id=b&query={setting}").text == "FF\n"
    assert node.get("/?query=SELECT%20%7Bx:String%7D&param_x=%FF").code == 457


def test_parameters_name_tables_and_stand_for_values_in_ddl(node: RunningNode) -> None:
    name, value = {"param_t": "by parameter"}, {"param_v": "7"}
    node.query("CREATE TABLE {t:Identifier} (a UInt8 DEFAULT {v:UInt8}) ENGINE = Memory", **name, **value)
    node.query("INSERT INTO {t:Identifier} VALUES ({v:UInt8})", **name, **value)
    node.query("INSERT INTO {t:Identifier} FORMAT CSV\n1", **name)
    assert node.query("SELECT count(), sum(a) FROM {t:Identifier}", **name) == "2\t8\n"
    node.query("DROP TABLE {t:Identifier}", **name)
    assert node.post("DROP TABLE {t:Identifier}").code == 456
    assert node.query("EXISTS TABLE {t:Identifier}", **name) == "0\n"


def test_a_views_parameters_stay_its_own_whatever_the_request_has(node: RunningNode) -> None:
    node.query("CREATE VIEW with_parameter AS SELECT {v:UInt8} AS a", param_v="7")
    assert node.query("SELECT a FROM with_parameter(v = 9)") == "9\n"


@pytest.mark.parametrize("sql", ["-- nothing", ";", "/* nothing */ ;"])
def test_a_statement_without_words_is_an_empty_query(node: RunningNode, sql: str) -> None:
    assert node.post(sql).code == 62


@pytest.mark.parametrize("word", ["exit", "quit;", ":q", "\\d", "\\l", "??"])
def test_words_to_a_client_are_no_statements(node: RunningNode, word: str) -> None:
    assert node.post(word).code == 62


def test_a_role_that_nobody_has_is_refused(node: RunningNode) -> None:
    reply = node.post("SELECT 1", role="admin")
    assert (reply.status, reply.code) == (403, 512)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/?query=SELECT+1", "/nowhere"])
def test_methods_that_servers_do_not_know_are_not_implemented(
    node: RunningNode, method: str, path: str
) -> None:
    request = urllib.request.Request(node.url + path, data=b"", method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 501


def test_pages_of_other_hosts_may_read_an_answer_where_that_is_asked_for(node: RunningNode) -> None:
    allowed, origin = "Access-Control-Allow-Origin", {"Origin": "http://elsewhere"}
    assert node.post("SELECT 1", origin, add_http_cors_header="1").headers[allowed] == "*"
    assert node.post("SELEC 1", origin, add_http_cors_header="1").headers[allowed] == "*"
    assert allowed not in node.post("SELECT 1", origin).headers
    assert allowed not in node.post("SELECT 1", add_http_cors_header="1").headers
    preflight = urllib.request.Request(node.url, headers=origin, method="OPTIONS")
    with urllib.request.urlopen(preflight) as answer:
        assert answer.status == 204
        assert "x-clickhouse-user" in answer.headers["Access-Control-Allow-Headers"]


def test_a_client_that_goes_away_takes_its_query_with_it(node: RunningNode) -> None:
    sql = "SELECT sleepEachRow(0.1) FROM numbers(100000) SETTINGS max_block_size = 1"
    with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sql)}\r\n\r\n{sql}".encode())
        running = (
            "SELECT count() FROM system.processes "
            "WHERE query LIKE '%sleepEachRow(0.1)%' AND query NOT LIKE '%processes%'"
        )
        while node.query(running) != "1\n":
            pass
    while node.query(running) != "0\n":
        pass
