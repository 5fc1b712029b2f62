"""Sessions and users over HTTP."""

import base64
import socket
import threading
import time
import urllib.parse
from pathlib import Path

import pytest

from tests.node.conftest import RunningNode
from tests.node.http_client import Reply

pytestmark = pytest.mark.slow


def test_a_session_keeps_settings_database_and_temporary_tables(node: RunningNode) -> None:
    node.query("CREATE DATABASE IF NOT EXISTS kept")
    say = lambda sql, **parameters: node.query(sql, session_id="s1", **parameters)  # noqa: E731
    say("SET max_threads = 7, max_block_size = 1000")
    say("CREATE TEMPORARY TABLE mine (a UInt8)")
    say("INSERT INTO mine VALUES (1), (2)")
    say("USE kept")
    asked = (
        "SELECT getSetting('max_threads'), getSetting('max_block_size'), currentDatabase(), "
        "(SELECT sum(a) FROM mine)"
    )
    assert say(asked) == "7\t1000\tkept\t3\n"
    assert say(asked, max_threads="2", database="default") == "2\t1000\tdefault\t3\n"
    assert say(asked) == "7\t1000\tkept\t3\n"
    assert node.post("SELECT * FROM mine").code == 60
    assert node.post("SELECT * FROM mine", session_id="other").code == 60


def test_temporary_tables_and_those_that_the_node_makes_are_read_together(node: RunningNode) -> None:
    say = lambda sql: node.query(sql, session_id="beside")  # noqa: E731
    node.query("CREATE TABLE IF NOT EXISTS both (a String) ENGINE = Memory")
    say("CREATE TEMPORARY TABLE both AS SELECT macro AS a FROM system.macros")
    assert say("SELECT a FROM both ORDER BY a") == "replica\nshard\n"
    joined = "SELECT substitution FROM both JOIN system.macros ON macro = a ORDER BY a"
    for _ in range(2):  # nothing stays behind
        assert say(joined) == "node01\n01\n"
    say("INSERT INTO both SELECT toString(count()) FROM system.clusters")
    assert say("SELECT count() FROM both") == "3\n"
    assert node.query("SELECT count() FROM both") == "0\n"
    assert say("SHOW TEMPORARY TABLES") == "both\n"
    assert node.post("SELECT * FROM both, system.macros WHERE nosuch", session_id="beside").code == 47
    say("CREATE TEMPORARY TABLE macros (a Int8)")
    assert node.post("SELECT * FROM both, system.macros", session_id="beside").code == 57
    assert say("SELECT count() FROM macros") == "0\n"
    assert say("SHOW TEMPORARY TABLES") == "both\nmacros\n"


def test_what_a_session_is_set_to_stays_whatever_the_request_says_of_the_same(node: RunningNode) -> None:
    say = lambda sql, **parameters: node.query(sql, session_id="stays", **parameters)  # noqa: E731
    node.query("CREATE DATABASE IF NOT EXISTS chosen")
    say("SET max_block_size = 5", max_block_size="3")
    say("USE chosen", database="system")
    assert say("SELECT currentDatabase(), getSetting('max_block_size')") == "chosen\t5\n"


def test_a_session_whose_database_is_gone_reads_no_other_one(node: RunningNode) -> None:
    ask = lambda sql, **parameters: node.post(sql, session_id="gone", **parameters)  # noqa: E731
    node.query("CREATE DATABASE will_go")
    node.query("CREATE TABLE left_over (a Int8) ENGINE = Memory")
    assert ask("USE will_go").status == 200
    node.query("DROP DATABASE will_go")
    assert ask("SELECT * FROM left_over", database="default").status == 200
    for sql in ("SELECT * FROM left_over", "DROP TABLE left_over"):
        assert ask(sql).code == 81
    node.query("CREATE DATABASE will_go")
    assert ask("SELECT currentDatabase()").text == "will_go\n"
    node.query("DROP DATABASE will_go")
    assert ask("SELECT 1", database="default").text == "1\n"
    assert ask("USE default").status == 200
    assert ask("SELECT * FROM left_over").status == 200


def test_a_setting_given_once_does_not_stay_in_the_session(node: RunningNode) -> None:
    before = node.query("SELECT getSetting('max_threads')", session_id="s2")
    assert node.query("SELECT getSetting('max_threads')", session_id="s2", max_threads="5") == "5\n"
    assert node.query("SELECT getSetting('max_threads')", session_id="s2") == before


def test_a_setting_that_goes_back_to_its_default_is_none_of_the_session(node: RunningNode) -> None:
    say = lambda sql, **parameters: node.query(sql, session_id="back", **parameters)  # noqa: E731
    asked = "SELECT getSetting('max_block_size')"
    before = say(asked)
    say("SET max_block_size = 1000")
    say("SET max_block_size = DEFAULT")
    assert say("SELECT count() FROM system.clusters") == "0\n"  # in a session made like this one
    assert say(asked, max_block_size="5") == "5\n"
    assert say(asked) == before


def test_query_parameters_of_a_session_outlive_those_of_one_request(node: RunningNode) -> None:
    say = lambda sql, **parameters: node.query(sql, session_id="params", **parameters)  # noqa: E731
    say("SET param_a = 5, param_b = 'it\\'s'")
    say("CREATE TEMPORARY TABLE given (a UInt8, b String)")
    asked = "SELECT {a:UInt8}, {b:String}"
    assert say(asked, param_a="7") == "7\tit\\'s\n"
    assert say(asked) == "5\tit\\'s\n"
    say("({a:UInt8}, {b:String}), ({a:UInt8} + {c:UInt8}, '')", query="INSERT INTO given VALUES", param_c="1")
    say("INSERT INTO given SELECT {a:UInt8}, {c:String}", param_c="c")
    assert say("SELECT * FROM given ORDER BY a, b") == "5\tc\n5\tit\\'s\n6\t\n"


def test_readonly_for_one_request_does_not_stay_in_the_session(node: RunningNode) -> None:
    create = "CREATE TABLE IF NOT EXISTS after_readonly (a UInt8) ENGINE = Memory"
    for session in ({}, {"session_id": "ro"}):
        assert node.query("SELECT 1", readonly="1", **session) == "1\n"
        assert node.post(create, readonly="1", **session).code == 164
        node.query(create, **session)


def test_a_request_may_fix_its_settings(node: RunningNode) -> None:
    asked = "SELECT getSetting('readonly'), getSetting('max_block_size')"
    assert node.query(asked, readonly="1", max_block_size="7") == "1\t7\n"
    assert node.query(asked + " SETTINGS max_block_size = 8", readonly="2") == "2\t8\n"
    assert node.post(asked + " SETTINGS max_block_size = 8", readonly="1").code == 164
    assert node.post("SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a Int8')", readonly="1").code == 164
    assert node.post(asked, readonly="1", user="reader", password="read", max_block_size="7").code == 164
    assert node.query("SELECT count() FROM system.clusters", readonly="1") == "0\n"
    assert node.post(asked, readonly="yes").code == 27


def test_a_session_serves_one_request_at_a_time(node: RunningNode) -> None:
    sql = "SELECT sleepEachRow(0.2) FROM numbers(15) SETTINGS max_block_size = 1"
    slow = threading.Thread(target=node.post, args=(sql,), kwargs={"session_id": "busy", "query_id": "busy"})
    slow.start()
    while node.query("SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'busy'") == "0\n":
        pass
    locked = node.post("SELECT 1", session_id="busy")
    assert (locked.code, "SESSION_IS_LOCKED" in locked.text) == (373, True)
    slow.join()
    assert node.query("SELECT 1", session_id="busy") == "1\n"


def test_a_session_outlives_a_client_that_leaves(node: RunningNode) -> None:
    session = {"session_id": "left"}
    node.query("CREATE TEMPORARY TABLE kept AS SELECT 5 AS a", **session)
    node.query("SET max_block_size = 7", **session)
    endless = "SELECT count() FROM system.numbers WHERE NOT ignore(number, 'left')"
    address = urllib.parse.urlsplit(node.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        head = f"POST /?session_id=left HTTP/1.1\r\nHost: node\r\nContent-Length: {len(endless)}\r\n\r\n"
        client.sendall((head + endless).encode())
        while "ignore(number, " not in node.query("SELECT query FROM system.processes"):
            pass
    # Until the statement has ended the session is locked.
    while (reply := node.post("SELECT a, getSetting('max_block_size') FROM kept", **session)).code == 373:
        pass
    assert reply.text == "5\t7\n"


def test_session_check_asks_for_a_session_that_is_there(node: RunningNode) -> None:
    assert node.post("SELECT 1", session_id="new", session_check="1").code == 372
    node.query("SELECT 1", session_id="new")
    assert node.query("SELECT 1", session_id="new", session_check="1") == "1\n"
    node.query("SELECT 1", session_id="new", close_session="1")
    assert node.post("SELECT 1", session_id="new", session_check="1").code == 372


def test_a_session_ends_after_its_timeout(node: RunningNode) -> None:
    node.query("SELECT 1", session_id="short", session_timeout="1")
    while node.post("SELECT 1", session_id="short", session_check="1", session_timeout="1").code != 372:
        time.sleep(1.5)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"session_id": ""}, 744),
        ({"session_id": "x", "session_timeout": "99999"}, 374),
        ({"session_id": "x", "session_timeout": "-1"}, 374),
        ({"session_id": "x", "session_timeout": "9" * 5000}, 374),
        ({"buffer_size": "9" * 5000}, 27),
    ],
)
def test_bad_session_parameters_have_their_codes(
    node: RunningNode, parameters: dict[str, str], code: int
) -> None:
    assert node.post("SELECT 1", **parameters).code == code


def test_sessions_of_two_users_are_two(node: RunningNode) -> None:
    node.query("CREATE TEMPORARY TABLE secret (a UInt8)", session_id="shared")
    alice = node.post("SELECT * FROM secret", session_id="shared", user="alice", password="secret")
    assert alice.code == 60


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_user_may_come_in_headers_in_authorization_and_in_the_url(node: RunningNode) -> None:
    for reply in (
        node.post("SELECT 1", {"X-ClickHouse-User": "alice", "X-ClickHouse-Key": "secret"}),
        node.post("SELECT 1", basic("alice", "secret")),
        node.post("SELECT 1", user="alice", password="secret"),
    ):
        assert (reply.status, reply.text) == (200, "1\n")
    twice = node.post("SELECT 1", basic("alice", "secret"), user="alice", password="secret")
    assert twice.code == 516


def test_a_wrong_password_and_an_unknown_user_are_told_the_same(node: RunningNode) -> None:
    def refused(reply: Reply) -> str:
        assert (reply.status, reply.code) == (403, 516)
        return reply.text

    wrong = refused(node.post("SELECT 1", user="alice", password="Secret"))
    unknown = refused(node.post("SELECT 1", user="mallory", password="x"))
    missing = refused(node.post("SELECT 1", user="alice"))
    elsewhere = refused(node.post("SELECT 1", user="nobody_here", password="x"))
    texts = {wrong, missing, unknown.replace("mallory", "alice"), elsewhere.replace("nobody_here", "alice")}
    assert len(texts) == 1
    assert texts.pop().startswith(
        "Code: 516. DB::Exception: alice: Authentication failed: password is incorrect, or there is no user"
    )
    assert node.post("SELECT 1", {"Authorization": "Bearer x"}).code == 516
    assert node.get("/?query=SELECT%201&user=alice&password=%ff").code == 516
    assert node.post("SELECT 1", {"X-ClickHouse-User": "alice", "X-ClickHouse-Key": "\xff"}).code == 516


def test_a_readonly_user_reads_and_does_nothing_else(node: RunningNode) -> None:
    ask = lambda sql, **more: node.post(sql, user="reader", password="read", **more)  # noqa: E731
    assert ask("SELECT 1").text == "1\n"
    assert ask("SELECT macro FROM system.macros ORDER BY macro").text == "replica\nshard\n"
    assert ask("CREATE TABLE x (a UInt8) ENGINE = Memory").code == 164
    assert ask("SELECT 1", max_threads="1").code == 164
    assert ask("SELECT 1 SETTINGS max_threads = 1").code == 164
    assert ask("SET readonly = 0").code == 164
    assert ask("SYSTEM RELOAD CONFIG").code == 164
    assert ask("CREATE TABL x").code == 62
    assert ask("CREATE TABLE x ON CLUSTER c (a UInt8) ENGINE = Memory").code == 164
    assert ask("CREATE TEMPORARY TABLE x (a UInt8)").code == 164
    insert = "INSERT INTO FUNCTION null('a UInt8')"
    for session in ({}, {"session_id": "reader"}):
        assert ask(f"{insert} VALUES (1)", **session).code == 164
        assert ask(f"WITH 1 AS a {insert} SELECT a", **session).code == 164
        as_reader = node.post(f"WITH 1 AS a {insert} SELECT a", readonly="1", **session)
        assert as_reader.code == 164
    assert (
        ask("SELECT macro FROM system.macros ORDER BY macro", session_id="reader").text == "replica\nshard\n"
    )


def test_a_session_that_was_set_to_readonly_reads_on(node: RunningNode) -> None:
    session = {"session_id": "reads on"}
    node.query("SET max_block_size = 5", **session)
    node.query("SET readonly = 1", **session)
    for sql, answer in {
        "SELECT getSetting('max_block_size'), getSetting('readonly')": "5\t1\n",
        "SELECT macro FROM system.macros ORDER BY macro": "replica\nshard\n",
        "DESCRIBE (SELECT 1 AS a) FORMAT TSV": "a\tUInt8\t\t\t\t\t\n",
        "SHOW TABLES FROM system LIKE 'one'": "one\n",
        "SELECT count() FROM system.processes WHERE query LIKE '%processes%'": "1\n",
    }.items():
        assert node.query(sql, **session) == answer
        assert node.get(f"/?session_id=reads%20on&query={urllib.parse.quote(sql)}").text == answer
    for sql in (
        "CREATE TEMPORARY TABLE x (a UInt8)",
        "SELECT 1 SETTINGS max_threads = 1",
        "SET readonly = 0",
    ):
        assert node.post(sql, **session).code == 164
    assert node.post("SELECT 1", max_threads="1", **session).code == 164


def test_a_readonly_session_writes_to_its_temporary_tables_only(node: RunningNode) -> None:
    node.query("CREATE TABLE not_temporary (a UInt8) ENGINE = Memory")
    node.query("SET readonly = 2", session_id="reader of its own")
    node.query("CREATE TEMPORARY TABLE own (a UInt8)", session_id="reader of its own")
    inserts = ("INSERT INTO {} VALUES (1)", "INSERT INTO {} SELECT 2", "INSERT INTO {} FORMAT CSV 3")
    for insert in inserts:
        node.query(insert.format("own"), session_id="reader of its own")
        refused = node.post(insert.format("not_temporary"), session_id="reader of its own")
        assert refused.code == 164
    assert node.query("SELECT sum(a) FROM own", session_id="reader of its own") == "6\n"
    assert node.query("SELECT count() FROM not_temporary") == "0\n"


def test_a_readonly_user_has_the_node_connect_to_nobody(node: RunningNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        elsewhere = f"remote('127.0.0.1:{listener.getsockname()[1]}', system.one, 'user', 'password')"
        for sql in (f"SELECT * FROM {elsewhere}", f"DESCRIBE TABLE {elsewhere}"):
            assert node.post(sql, user="reader", password="read").code == 164
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_settings_name_no_files_of_the_machine(node: RunningNode, tmp_path: Path) -> None:
    """What is no template, or no schema, would be quoted in the error."""
    (tmp_path / "secret.proto").write_text("SECRET")
    file, written = str(tmp_path / "secret.proto"), tmp_path / "written"
    for settings in (
        {"default_format": "Template", "format_template_row": file},
        {"default_format": "Template", "format_template_resultset": file},
        {"default_format": "Protobuf", "format_schema": f"{file}:M"},
        {"default_format": "Protobuf", "format_schema": f"{file}:M", "format_schema_source": "file"},
        {"default_format": "Protobuf", "output_format_schema": str(written)},
        {"default_format": "CSV", "input_format_record_errors_file_path": str(written)},
    ):
        in_text = ", ".join(f"{name} = '{value}'" for name, value in list(settings.items())[1:])
        by_text = node.post(f"SELECT 1 AS x FORMAT {settings['default_format']} SETTINGS {in_text}")
        for reply in (node.post("SELECT 1 AS x", **settings), by_text):
            assert reply.status != 200
            assert "SECRET" not in reply.text
    assert not written.exists()
    template = {"format_template_row_format": "<${x:CSV}>", "format_template_resultset_format": "${data}"}
    assert node.post("SELECT 1 AS x", default_format="Template", **template).text.strip() == "<1>"


def test_nothing_is_run_that_was_not_looked_at_as_sql(node: RunningNode) -> None:
    hidden = "SELECT * FROM eval(concat('SELECT fi', 'le(''/etc/hostname'')'))"
    assert node.post(hidden).code == 344
    assert node.post(hidden, allow_experimental_eval_table_function="1").code == 452
    assert node.post("SELECT 1", dialect="kusto").code == 452
    assert node.post("SET dialect = 'kusto'", session_id="dialect").code == 452
    assert node.query("SELECT 1", session_id="dialect", dialect="clickhouse") == "1\n"
    for setting in ("select", "filter", "order", "output_format", "implicit_table_at_top_level"):
        assert node.post("SELECT 1 AS a", **{setting: "a"}).code == 452, setting
        assert node.post(f"SELECT 1 AS a SETTINGS `{setting}` = 'a'").code == 452, setting


def test_a_statement_takes_its_names_from_the_database_that_the_node_knows_of(node: RunningNode) -> None:
    """USE and the parameter `database` are chDB's setting `database`, too; others of it are refused."""
    node.query("CREATE DATABASE known")
    node.query("CREATE TABLE known.x (a Int8) ENGINE = Memory")
    for text in ("SELECT * FROM x SETTINGS database = 'known'", "SET database = 'known'"):
        assert node.post(text, session_id="known").code == 452
    node.query("USE known", session_id="known")
    assert node.query("SELECT count() FROM x", session_id="known") == "0\n"
    assert node.query("SELECT count() FROM x SETTINGS max_threads = 1", database="known") == "0\n"


def test_a_profile_gives_its_settings_and_the_default_one_to_all(node: RunningNode) -> None:
    for user in ({}, {"user": "reader", "password": "read"}):
        assert node.query("SELECT getSetting('max_threads')", **user) == "2\n"


BOUND = {"user": "bound", "password": "b"}


@pytest.mark.parametrize(
    ("sql", "settings"),
    [
        ("SELECT 1", {"max_block_size": "1001"}),
        ("SELECT 1", {"max_block_size": "9"}),
        ("SELECT 1", {"max_execution_time": "7"}),
        ("SELECT 1", {"insert_distributed_sync": "1"}),  # another name of what may not be changed
        ("SELECT 1 SETTINGS max_block_size = 1001", {}),
        ("SELECT * FROM (SELECT 1 SETTINGS `max_block_size` = '1001')", {}),
        ("INSERT INTO nothing SETTINGS max_block_size = 1e6 VALUES (1)", {}),
        ("SET max_block_size = 1001", {}),
        ("SELECT 1", {"max_query_size": "300001"}),
        ("SET max_query_size = 0x1000000", {}),
        ("SET max_threads = 1, max_block_size = DEFAULT", {}),
        ("CREATE VIEW unbound AS SELECT 1 SETTINGS max_block_size = 2000", {}),
        (
            "CREATE TABLE unbound (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS merge_max_block_size = 16",
            {},
        ),
        (
            "ALTER TABLE n DROP COLUMN b, MODIFY SETTING ttl_only_drop_parts = 1, merge_max_block_size = 1",
            {},
        ),
        ("INSERT INTO n SELECT 1 PARALLEL WITH ALTER TABLE n MODIFY SETTING merge_max_block_size = 1", {}),
    ],
)
def test_constraints_of_a_profile_hold(node: RunningNode, sql: str, settings: dict[str, str]) -> None:
    reply = node.post(sql, **settings, **BOUND)
    assert (reply.code, "should" in reply.text) == (452, True)


def test_who_may_set_nothing_raises_no_limit_of_texts_either(node: RunningNode) -> None:
    reader = {"user": "reader", "password": "read"}
    for size in ("1000000", "100"):
        assert node.post("SELECT 1", max_query_size=size, **reader).code == 164
        assert node.post(f"SET max_query_size = {size}", session_id="size", **reader).code == 164
    assert node.post("SELECT 1 /*" + "x" * 300_000 + "*/", session_id="size", **reader).code == 62


def test_what_constraints_allow_is_set_and_the_node_sets_what_it_needs(node: RunningNode) -> None:
    assert node.query("SELECT getSetting('max_block_size')", max_block_size="1000", **BOUND) == "1000\n"
    node.query("SET max_block_size = 10", session_id="bound", **BOUND)
    assert node.query("SELECT getSetting('max_block_size')", session_id="bound", **BOUND) == "10\n"
    assert node.query("SELECT 1 SETTINGS max_execution_time = 8", **BOUND) == "1\n"
    made = "CREATE TABLE made (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS merge_max_block_size = 512"
    node.query(made, **BOUND)
    node.query("ALTER TABLE made MODIFY SETTING merge_max_block_size = 8192", **BOUND)
    assert node.query("SELECT getSetting('max_block_size')", max_block_size="1001") == "1001\n"  # another's
    # A part of another node's statement is read with what the profile allows.
    mark = "/* distributed depth 1 */ "
    sql = "SELECT getSetting('max_block_size'), getSetting('max_threads')"
    read = node.post("", query=mark + sql, max_block_size="1001", max_threads="1", **BOUND)
    assert read.text == "500\t1\n"


def test_a_quota_is_kept(node: RunningNode) -> None:
    def ask(sql: str, key: str = "", **more: str) -> Reply:
        return node.post(sql, user="few", password="f", quota_key=key, **more)

    node.query("CREATE TABLE counted (a UInt8) ENGINE = MergeTree ORDER BY a")
    assert ask("SELECT number FROM numbers(8)").status == 200
    refused = ask("SELECT number FROM numbers(8)")
    assert (refused.code, refused.status) == (201, 500)
    assert "result_rows = 16/10." in refused.text
    assert ask("SELECT 1").code == 201
    assert ask("INSERT INTO counted VALUES (1), (2)").status == 200
    assert ask("INSERT INTO counted VALUES (3)").code == 201
    assert node.query("SELECT count() FROM counted") == "2\n"
    assert [ask("SELECT nosuch", "other").code for _ in range(5)] == [47, 47, 47, 47, 201]

    counted = "quota_key, is_current, query_inserts, result_rows, max_result_rows, max_queries"
    of_few = "system.quotas_usage WHERE quota_name = 'few' ORDER BY ALL"
    assert node.query(f"SELECT {counted} FROM {of_few}") == (
        "few\t0\t2\t16\t10\t\\N\nother\t0\t0\t0\t10\t\\N\n"
    )
    own = node.post(
        "SHOW QUOTA FORMAT TSVWithNames", user="few", password="f", quota_key="third"
    ).text.splitlines()
    assert dict(zip(*(line.split("\t") for line in own), strict=True))["quota_key"] == "third"
