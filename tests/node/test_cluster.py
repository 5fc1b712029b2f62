"""ON CLUSTER through any node, with a real ZooKeeper and three node processes."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from engine.keeper import Create, CreateMode
from engine.testing.cluster_files import clusters_xml
from engine.testing.local_cluster import Call, LocalCluster, blocking_cluster
from tests.node.http_client import HttpAt, Reply
from tests.python_versions import keeps_texts_of_any_bytes
from tests.warm import warm

pytestmark = pytest.mark.slow

HOSTS = ("n1", "n2", "n3")


SECOND_QUEUE = """
<distributed_ddl>
    <name>second</name><path>/clickhouse/second/ddl</path><clusters>second</clusters><profile>ddl</profile>
</distributed_ddl>
<profiles><ddl><data_type_default_nullable>1</data_type_default_nullable></ddl></profiles>
"""
MACROS = "<macros_n1><replica>n1</replica><everybody>all</everybody></macros_n1>"


class Cluster:
    """Three nodes behind the plainest of HTTP clients."""

    def __init__(self, cluster: LocalCluster, call: Call[object]) -> None:
        self.local = cluster
        self.call = call
        self.nodes = {name: HttpAt(cluster.node(name).url) for name in HOSTS}

    def __getitem__(self, name: str) -> HttpAt:
        return self.nodes[name]

    def everywhere(self, sql: str) -> set[str]:
        """The different answers of all nodes."""
        return {node.query(sql) for node in self.nodes.values()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    file = directory / "given.xml"
    clusters = {"all": [["n1", "n2"], ["n3"]], "two": [["n1"], ["n2"]], "gone": [["n1", "absent"]]}
    text = clusters_xml({**clusters, "second": [["n2"], ["n3"]]})
    file.write_text(text.replace("</clickhouse>", f"{SECOND_QUEUE}{MACROS}</clickhouse>"))
    with blocking_cluster(directory / "run", cluster_file=file, hosts=HOSTS, launch=warm) as (local, call):
        yield Cluster(local, call)


def test_a_statement_runs_on_all_hosts_from_any_node_and_answers_with_a_row_per_host(
    cluster: Cluster,
) -> None:
    for name, node in cluster.nodes.items():
        answer = node.query(f"CREATE DATABASE from_{name} ON CLUSTER all")
        rows = [line.split("\t") for line in answer.splitlines()]
        assert sorted(row[:4] for row in rows) == [[host, "9000", "0", ""] for host in HOSTS]
        assert sorted(row[4] for row in rows) == ["0", "1", "2"]
        assert cluster.everywhere(f"SELECT count() FROM system.databases WHERE name = 'from_{name}'") == {
            "1\n"
        }


def test_a_table_has_one_uuid_everywhere(cluster: Cluster) -> None:
    cluster["n2"].query("CREATE TABLE same ON CLUSTER all (a UInt64) ENGINE = MergeTree ORDER BY a")
    assert len(cluster.everywhere("SELECT uuid FROM system.tables WHERE name = 'same'")) == 1


@pytest.mark.parametrize(
    "format", ["JSON", "CSVWithNames", "Native", "Pretty", "Parquet", "RowBinaryWithNamesAndTypes"]
)
def test_the_answer_comes_in_every_format(cluster: Cluster, format: str) -> None:
    reply = cluster["n1"].post(f"CREATE DATABASE IF NOT EXISTS formatted ON CLUSTER all FORMAT {format}")
    assert reply.status == 200, reply.text
    assert reply.headers["X-ClickHouse-Format"] == format
    assert b"num_hosts_remaining" in reply.body
    if format == "JSON":
        meta = [(column["name"], column["type"]) for column in json.loads(reply.body)["meta"]]
        assert meta == [
            ("host", "String"), ("port", "UInt16"), ("status", "Int64"), ("error", "String"),
            ("num_hosts_remaining", "UInt64"), ("num_hosts_active", "UInt64"),
        ]  # fmt: skip


@keeps_texts_of_any_bytes
def test_names_may_be_any_bytes_and_hold_up_nobody(cluster: Cluster) -> None:
    for sql in (
        b"CREATE DATABASE `d\xff` ON CLUSTER all",
        b"CREATE TABLE `d\xff`.`t\xfe` ON CLUSTER all (a UInt8) ENGINE = MergeTree ORDER BY a",
        b"ALTER TABLE `d\xff`.`t\xfe` ON CLUSTER all ADD COLUMN b UInt8",
        b"DROP DATABASE `d\xff` ON CLUSTER all",
    ):
        reply = cluster["n1"].post(sql, distributed_ddl_task_timeout="60")
        assert reply.status == 200, reply.text


def test_the_official_client_runs_on_cluster_and_sees_errors(cluster: Cluster) -> None:
    client = clickhouse_connect.get_client(host="127.0.0.1", port=cluster.local.node("n3").http_port)
    answer = client.raw_query("CREATE TABLE by_client ON CLUSTER all (a UInt8) ENGINE = Memory")
    assert sorted(line.split("\t")[0] for line in answer.decode().splitlines()) == list(HOSTS)
    assert isinstance(client.command("CREATE DATABASE by_client ON CLUSTER all"), list)
    with pytest.raises(DatabaseError) as caught:
        client.command("CREATE TABLE by_client ON CLUSTER all (a UInt8) ENGINE = Memory")
    assert caught.value.code == 57
    assert "There was an error on [n" in str(caught.value)
    client.close()


def test_the_sessions_database_is_filled_in(cluster: Cluster) -> None:
    cluster["n1"].query("CREATE DATABASE filled ON CLUSTER all")
    cluster["n1"].query("CREATE TABLE one ON CLUSTER all (a UInt8) ENGINE = Memory", database="filled")
    cluster["n1"].query("USE filled", session_id="s")
    cluster["n1"].query("CREATE TABLE two ON CLUSTER all (a UInt8) ENGINE = Memory", session_id="s")
    assert cluster.everywhere("SHOW TABLES FROM filled") == {"one\ntwo\n"}


def test_dictionaries_of_the_session_are_those_of_its_database_on_all_hosts(cluster: Cluster) -> None:
    n1 = cluster["n1"]
    n1.query("CREATE DATABASE asking ON CLUSTER all")
    dictionary = "(k UInt64, v UInt64) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)"
    n1.query(f"CREATE DICTIONARY named ON CLUSTER all {dictionary}", database="asking")
    columns = "k UInt64, v UInt64 DEFAULT dictGet('named', 'v', k)"
    n1.query(f"CREATE TABLE t ON CLUSTER all ({columns}) ENGINE = Memory", database="asking")
    n1.query("CREATE VIEW v ON CLUSTER all AS SELECT dictHas('named', k) AS h FROM t", database="asking")
    for node in cluster.nodes.values():
        assert "dictGet('asking.named', 'v', k)" in node.query("SHOW CREATE TABLE asking.t FORMAT TSVRaw")
        assert "dictHas('asking.named', k)" in node.query("SHOW CREATE TABLE asking.v FORMAT TSVRaw")
    # What is none of this node's stays: it may be one of a server's configuration.
    reply = n1.post("CREATE VIEW w ON CLUSTER all AS SELECT dictHas('elsewhere', 1)", database="asking")
    assert reply.status != 200 and "(`elsewhere`) not found" in reply.text


def test_macros_in_the_clusters_name_are_the_initiators(cluster: Cluster) -> None:
    sql = "CREATE DATABASE by_macro ON CLUSTER '{everybody}'"
    for name in ("n2", "n3"):
        assert cluster[name].post(sql).code == 139, "only n1 has this macro"
    rows = cluster["n1"].query(sql).splitlines()
    assert sorted(row.split("\t")[0] for row in rows) == list(HOSTS)
    assert cluster.everywhere("SELECT count() FROM system.databases WHERE name = 'by_macro'") == {"1\n"}
    text = cluster["n2"].query("SELECT query FROM system.distributed_ddl_queue WHERE query LIKE '%by_macro%'")
    assert "ON CLUSTER all" in text and "{" not in text


def test_each_queue_executes_what_is_for_its_clusters_and_with_its_profile(cluster: Cluster) -> None:
    """Two sections of `distributed_ddl`: one for `second`, one for all others."""
    create = "CREATE TABLE in_queue_{0} ON CLUSTER {0} (a UInt8) ENGINE = Memory"
    for name, hosts in (("all", HOSTS), ("second", ("n2", "n3"))):
        rows = cluster["n1"].query(create.format(name)).splitlines()
        assert sorted(row.split("\t")[0] for row in rows) == sorted(hosts)
        there = {host: cluster[host].query(f"EXISTS TABLE in_queue_{name}") for host in HOSTS}
        assert there == {host: "1\n" if host in hosts else "0\n" for host in HOSTS}
    own = "SELECT path FROM system.zookeeper WHERE path IN ({}) AND value LIKE '%in_queue_{}%'"
    paths = "'/clickhouse/task_queue/ddl', '/clickhouse/second/ddl'"
    assert cluster["n3"].query(own.format(paths, "all")) == "/clickhouse/task_queue/ddl\n"
    assert cluster["n3"].query(own.format(paths, "second")) == "/clickhouse/second/ddl\n"
    of_both = "SELECT cluster FROM system.distributed_ddl_queue WHERE query LIKE '%in_queue_%' GROUP BY 1"
    assert sorted(cluster["n1"].query(of_both).split()) == ["all", "second"]

    # The profile of the second queue makes columns Nullable; the sender's own settings go before it.
    kind = "SELECT type FROM system.columns WHERE table = '{}'"
    assert cluster["n2"].query(kind.format("in_queue_second")) == "Nullable(UInt8)\n"
    assert cluster["n2"].query(kind.format("in_queue_all")) == "UInt8\n"
    plain = "CREATE TABLE plain ON CLUSTER second (a UInt8) ENGINE = Memory"
    cluster["n1"].query(plain, data_type_default_nullable="0")
    assert cluster["n3"].query(kind.format("plain")) == "UInt8\n"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DROP TABLE IF EXISTS t ON CLUSTER nosuch", 701),
        ("DROP TABEL t ON CLUSTER all", 62),
        ("CREATE TABLE t ON CLUSTER all (a UInt8", 62),
        ("ALTER TABLE t ON CLUSTER all ATTACH PARTITION 1", 48),
        ("SYSTEM SHUTDOWN ON CLUSTER all", 1),
        ("CREATE TABLE t ON CLUSTER all (a String) ENGINE = File(CSV, '/etc/passwd')", 497),
        ("DROP TABLE nosuch_table ON CLUSTER all", 60),
    ],
)
def test_bad_statements_are_refused_with_their_codes(cluster: Cluster, sql: str, code: int) -> None:
    assert cluster["n1"].post(sql).code == code


def test_settings_of_on_cluster_are_taken_from_everywhere(cluster: Cluster) -> None:
    sql = "CREATE DATABASE IF NOT EXISTS from_n1 ON CLUSTER all"
    assert cluster["n1"].query(sql, distributed_ddl_task_timeout="0") == ""
    assert cluster["n1"].query(sql, distributed_ddl_output_mode="none") == ""
    cluster["n1"].query("SET distributed_ddl_output_mode = 'none'", session_id="mode")
    assert cluster["n1"].query(sql, session_id="mode") == ""
    assert cluster["n1"].post(sql, distributed_ddl_output_mode="nosuch").code == 36
    assert cluster["n1"].post(sql, allow_distributed_ddl="0").code == 392
    assert cluster["n1"].post(sql, distributed_ddl_entry_format_version="99").code == 287
    assert cluster["n1"].post(sql, nosuch_setting="1").code == 115
    never = "CREATE TABLE by_client ON CLUSTER all (a UInt8) ENGINE = Memory"
    rows = cluster["n1"].query(never, distributed_ddl_output_mode="never_throw").splitlines()
    assert [row.split("\t")[2] for row in rows] == ["57"] * 3


def test_a_token_submits_once_however_often_it_is_sent(cluster: Cluster) -> None:
    sql = "CREATE TABLE once ON CLUSTER all (a UInt8) ENGINE = Memory"
    first = cluster["n1"].post(sql, {"X-Oncluster-Token": "my-token"})
    again = cluster["n2"].post(sql, oncluster_token="my-token")
    assert (first.status, again.status) == (200, 200)
    assert {line.split("\t")[0] for line in again.text.splitlines()} == set(HOSTS)
    count = "SELECT uniqExact(entry) FROM system.distributed_ddl_queue WHERE query LIKE '%once%'"
    assert cluster["n1"].query(count) == "1\n"
    other = cluster["n1"].post("DROP TABLE once ON CLUSTER all", {"X-Oncluster-Token": "my-token"})
    assert other.status == 400


def test_system_tables_can_be_used_like_any_other(cluster: Cluster) -> None:
    n1 = cluster["n1"]
    joined = n1.query(
        "SELECT c.cluster, count() FROM system.clusters AS c "
        "LEFT JOIN system.macros AS m ON m.macro = c.cluster "
        "WHERE c.cluster IN (SELECT DISTINCT cluster FROM system.clusters) "
        "GROUP BY c.cluster ORDER BY c.cluster"
    )
    assert joined == "all\t3\ngone\t2\nsecond\t2\ntwo\t2\n"
    assert (
        n1.query("SELECT system.clusters.host_name FROM system.clusters WHERE is_local AND cluster = 'all'")
        == "n1\n"
    )
    assert n1.query("SHOW CLUSTERS") == "all\ngone\nsecond\ntwo\n"
    assert n1.query("SHOW CLUSTERS LIKE 'a%'") == "all\n"
    assert n1.query("SHOW CLUSTER 'two' FORMAT CSV").count("\n") == 2
    assert n1.query("SELECT count() FROM clusters", database="system") == "9\n"
    assert "cluster\tString" in n1.query("DESCRIBE TABLE system.clusters")
    assert "ephemeralOwner" in n1.query("DESCRIBE system.zookeeper")
    for table in ("zookeeper", "clusters", "tables", "replicas", "distributed_ddl_queue", "macros", "one"):
        assert (
            n1.query(f"EXISTS system.{table}; ")
            == n1.query(f"EXISTS TABLE {table}", database="system")
            == "1\n"
        )
    assert n1.query("EXISTS VIEW system.clusters") == n1.query("EXISTS clusters") == "0\n"
    shown = n1.query("SHOW CREATE TABLE system.zookeeper FORMAT TSVRaw")
    assert shown.startswith("CREATE TABLE system.zookeeper\n(\n    `name` String,\n")
    assert shown.endswith("\n)\nENGINE = SystemZooKeeper\n")
    shown = n1.query("SHOW CREATE TABLE system.asynchronous_metrics FORMAT TSVRaw")
    assert shown.endswith("\n)\nENGINE = SystemAsynchronousMetrics\n")
    assert n1.query("EXPLAIN SELECT * FROM system.clusters") != ""
    places = "SELECT shard_num, shard_weight, internal_replication, replica_num, host_name, port, is_local"
    assert n1.query(f"{places} FROM system.clusters WHERE cluster = 'all' FORMAT CSV") == (
        '1,1,1,1,"n1",9000,1\n1,1,1,2,"n2",9000,0\n2,1,1,1,"n3",9000,0\n'
    )
    n1.query("CREATE TABLE copied ENGINE = Memory AS SELECT * FROM system.clusters")
    n1.query("INSERT INTO copied SELECT * FROM system.clusters")
    assert n1.query("SELECT count() FROM copied") == "18\n"


def test_the_zookeeper_table_wants_a_path_and_takes_it_in_every_form(cluster: Cluster) -> None:
    n1 = cluster["n1"]
    for sql in ("SELECT * FROM system.zookeeper", "SELECT * FROM system.zookeeper WHERE name = 'x'"):
        assert n1.post(sql).code == 36
    queue = "/clickhouse/task_queue/ddl"
    count = n1.query(f"SELECT count() FROM system.zookeeper WHERE path = '{queue}'")
    assert int(count) > 5
    for where in (
        f"'{queue}' = path",
        f"path IN ('{queue}')",
        f"path IN ('{queue}', '/nosuch')",
        "path = concat('/clickhouse', '/task_queue/ddl') AND name LIKE 'query-%'",
        f"path IN (SELECT '{queue}')",
        f"path = '{queue}/'",
        "path = {p:String}",
    ):
        assert n1.query(f"SELECT count() FROM system.zookeeper WHERE {where}", param_p=queue) == count, where
    named = f"WITH '{queue}' AS p SELECT count() FROM system.zookeeper WHERE path = p"
    assert n1.query(named) == count
    parent = "path = '/clickhouse/task_queue' AND name = 'ddl'"
    below = f"SELECT concat(path, '/', name) FROM system.zookeeper WHERE {parent}"
    assert n1.query(f"SELECT count() FROM system.zookeeper WHERE path IN ({below})") == count
    value = n1.query(
        f"SELECT value FROM system.zookeeper WHERE path = '{queue}' AND name = 'query-0000000000' "
        "FORMAT RawBLOB"
    )
    assert value.startswith("version: 5\nquery: ")
    assert n1.query("SELECT count() FROM system.zookeeper WHERE path = '/nosuch'") == "0\n"
    finished = n1.query(
        "SELECT name, value, numChildren, ephemeralOwner FROM system.zookeeper "
        f"WHERE path = '{queue}/query-0000000000/finished' ORDER BY name"
    )
    assert finished == "".join(f"{host}:9000\t0\\n\t0\t0\n" for host in HOSTS)


def test_who_may_only_read_sees_entries_without_their_secrets(cluster: Cluster) -> None:
    n1 = cluster["n1"]
    n1.post("CREATE USER ada ON CLUSTER all IDENTIFIED BY 'SECRET'")
    queue = "/clickhouse/task_queue/ddl"
    sql = f"SELECT value FROM system.zookeeper WHERE path = '{queue}' AND value LIKE '%USER ada%'"
    n1.query("SET readonly = 1", session_id="reader")
    assert "SECRET" in n1.query(sql)
    shown = n1.query(sql, session_id="reader")
    assert "CREATE USER ada" in shown and "[HIDDEN]" in shown and "SECRET" not in shown
    by_path = f"SELECT value FROM system.zookeeper WHERE path IN ({sql.replace('value FROM', 'path FROM')})"
    assert "SECRET" not in n1.query(by_path, session_id="reader")


def test_kill_query_on_a_cluster_knows_the_ids_that_clients_gave(cluster: Cluster) -> None:
    n2, replies = cluster["n2"], []
    endless = "SELECT count() FROM system.numbers WHERE NOT ignore(number)"
    thread = threading.Thread(target=lambda: replies.append(n2.post(endless, query_id="far away")))
    thread.start()
    while "far away" not in n2.query("SELECT Settings['log_comment'] FROM system.processes"):
        pass
    cluster["n1"].query("KILL QUERY ON CLUSTER all WHERE query_id = 'far away' SYNC")
    thread.join()
    assert replies[0].code == 394


def test_kill_query_ends_a_wait_for_a_host_that_is_away_and_the_entry_stays(cluster: Cluster) -> None:
    n1, replies = cluster["n1"], []
    create = "CREATE DATABASE waited_for ON CLUSTER gone"
    thread = threading.Thread(target=lambda: replies.append(n1.post(create, query_id="waits")))
    thread.start()
    while n1.query("SELECT query_id FROM system.processes WHERE query_kind = 'Create'") != "waits\n":
        assert thread.is_alive(), replies
    n1.query("KILL QUERY ON CLUSTER two WHERE query_id = 'waits' SYNC")
    thread.join()
    assert replies[0].code == 394
    queue = "SELECT status FROM system.distributed_ddl_queue WHERE query LIKE '%waited_for%' AND host = "
    assert n1.query(f"{queue}'absent'") == "Inactive\n"
    while n1.query(f"{queue}'n1'") != "Finished\n":
        pass
    assert n1.query("EXISTS DATABASE waited_for") == "1\n"


def test_replicated_ddl_can_be_stopped_on_every_node_at_once(cluster: Cluster) -> None:
    n3, create = cluster["n3"], "CREATE DATABASE IF NOT EXISTS stopped ON CLUSTER all"
    n3.query("SYSTEM STOP REPLICATED DDL QUERIES ON CLUSTER all")
    try:
        assert {node.post(create).code for node in cluster.nodes.values()} == {392}
    finally:
        n3.query("SYSTEM START REPLICATED DDL QUERIES ON CLUSTER all")
    assert {node.post(create).status for node in cluster.nodes.values()} == {200}


def test_parameters_are_put_in_before_a_statement_is_submitted(cluster: Cluster) -> None:
    n1, name = cluster["n1"], {"param_t": "by_parameter"}
    create = "CREATE TABLE {t:Identifier} ON CLUSTER all (a UInt8 DEFAULT {v:UInt8}) ENGINE = Memory"
    assert n1.post(create, **name).code == 456
    n1.query(create, **name, param_v="7")
    default = "SELECT default_expression FROM system.columns WHERE table = 'by_parameter' FORMAT TSVRaw"
    assert cluster.everywhere(default) == {"CAST('7', 'UInt8')\n"}
    n1.query("SET param_t = 'by_parameter'", session_id="with a parameter")
    n1.query("DROP TABLE {t:Identifier} ON CLUSTER all", session_id="with a parameter")
    assert cluster.everywhere("EXISTS TABLE by_parameter") == {"0\n"}


@pytest.mark.parametrize("where", ["", " ON CLUSTER all"])
def test_a_view_that_could_never_be_read_is_not_created(cluster: Cluster, where: str) -> None:
    n1 = cluster["n1"]
    for table in ("distributed_ddl_queue", "zookeeper", "clusters"):
        refused = n1.post(f"CREATE VIEW unreadable{where} AS SELECT * FROM system.{table}")
        assert refused.code == 48
        assert f"A view cannot read system.{table}" in refused.text
    assert n1.query("EXISTS VIEW unreadable") == "0\n"
    n1.query(f"CREATE VIEW readable{where} AS SELECT * FROM system.settings")
    assert n1.post(f"ALTER TABLE readable{where} MODIFY QUERY SELECT * FROM system.macros").code == 48
    n1.query(f"DROP VIEW readable{where}")


def test_the_queue_table_has_clickhouses_columns_and_shows_every_state(cluster: Cluster) -> None:
    """Of entries for hosts that are not here, as a server elsewhere would have left them."""
    described = cluster["n1"].query("DESCRIBE TABLE system.distributed_ddl_queue FORMAT TSVRaw")
    assert [tuple(line.split("\t")[:2]) for line in described.splitlines()] == [
        ("entry", "String"), ("entry_version", "Nullable(UInt8)"),
        ("initiator_host", "Nullable(String)"), ("initiator_port", "Nullable(UInt16)"),
        ("cluster", "String"), ("query", "String"), ("settings", "Map(String, String)"),
        ("query_create_time", "DateTime"), ("host", "Nullable(String)"), ("port", "Nullable(UInt16)"),
        (
            "status",
            "Nullable(Enum8('Inactive' = 0, 'Active' = 1, 'Finished' = 2, 'Removing' = 3, 'Unknown' = 4))",
        ),
        ("exception_code", "Nullable(UInt16)"), ("exception_text", "Nullable(String)"),
        ("query_finish_time", "Nullable(DateTime)"), ("query_duration_ms", "Nullable(UInt64)"),
    ]  # fmt: skip

    async def put() -> None:
        async with cluster.local.keeper() as keeper:
            for number, hosts in enumerate(["'x:1','y:1','z:1'", "'x:1'", ""]):
                text = f"version: 1\nquery: DROP DATABASE state_{number}\nhosts: [{hosts}]\ninitiator: \n"
                prefix = "/clickhouse/second/ddl/query-"
                path = await keeper.create(prefix, text.encode(), mode=CreateMode.PERSISTENT_SEQUENTIAL)
                await keeper.create(f"{path}/finished")
                if number == 0:
                    await keeper.multi(
                        [
                            Create(f"{path}/active"),
                            Create(f"{path}/active/x:1"),
                            Create(f"{path}/finished/y:1", b"60\nnone"),
                        ]
                    )

    cluster.call(put())
    rows = cluster["n1"].query(
        "SELECT query, host, port, status, CAST(status, 'Nullable(Int8)'), exception_code, exception_text, "
        "initiator_host FROM system.distributed_ddl_queue WHERE query LIKE '%state_%' ORDER BY query, host "
        "FORMAT CSV"
    )
    assert rows.replace('"', "").replace("DROP DATABASE state_", "").splitlines() == [
        "0,x,1,Active,1,\\N,\\N,\\N",
        "0,y,1,Finished,2,60,none,\\N",
        "0,z,1,Inactive,0,\\N,\\N,\\N",
        "1,x,1,Removing,3,\\N,\\N,\\N",
        "2,\\N,\\N,Unknown,4,\\N,\\N,\\N",
    ]


def test_the_queue_table_shows_each_entry_and_host(cluster: Cluster) -> None:
    cluster["n1"].query("CREATE DATABASE shown ON CLUSTER all")
    rows = cluster["n2"].query(
        "SELECT host, port, status, exception_code, cluster, initiator_host "
        "FROM system.distributed_ddl_queue WHERE query LIKE '%DATABASE shown%' ORDER BY host"
    )
    assert rows == "".join(f"{host}\t9000\tFinished\t0\tall\tn1\n" for host in HOSTS)


def test_a_client_that_goes_away_leaves_the_statement_running(cluster: Cluster) -> None:
    import socket

    port = cluster.local.node("n1").http_port
    sql = "CREATE TABLE abandoned ON CLUSTER gone (a UInt8) ENGINE = Memory"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = "POST /?distributed_ddl_task_timeout=-1&query_id=abandoned HTTP/1.1\r\nHost: x\r\n"
        connection.sendall(f"{head}Content-Length: {len(sql)}\r\n\r\n{sql}".encode())
        while cluster["n1"].query("EXISTS TABLE abandoned") != "1\n":
            time.sleep(0.05)
    # Nobody is waited for any more: the id may be used again.
    while (reply := cluster["n1"].post("SELECT 1", query_id="abandoned")).code == 216:
        time.sleep(0.05)
    assert reply.text == "1\n"


def test_an_absent_host_is_a_timeout_or_a_null_or_not_waited_for(cluster: Cluster) -> None:
    sql = "CREATE DATABASE IF NOT EXISTS waited ON CLUSTER gone"
    timed_out = cluster["n1"].post(sql, distributed_ddl_task_timeout="1")
    assert (timed_out.code, timed_out.status) == (159, 408)
    rows: list[list[str]] = [["n1", "9000", "\\N"]]
    waits_s = iter((1, 2, 4, 8, 16, 32, 64))
    while rows[0][2] == "\\N":  # that was too short for n1, too
        null = cluster["n1"].query(
            sql,
            distributed_ddl_task_timeout=str(next(waits_s)),
            distributed_ddl_output_mode="null_status_on_timeout",
        )
        rows = [line.split("\t")[:4] for line in null.splitlines()]
    assert rows == [["n1", "9000", "0", ""], ["absent", "9000", "\\N", "\\N"]]
    active = cluster["n1"].query(sql, distributed_ddl_output_mode="throw_only_active")
    assert active.splitlines()[0].startswith("n1\t9000\t0")


def test_clusters_are_read_again_while_nodes_run(cluster: Cluster) -> None:
    shared = cluster.local.files.shared
    text = shared.read_text()
    added = (
        "<fresh><shard><replica><host>n2</host><port>9000</port></replica></shard></fresh></remote_servers>"
    )
    shared.resolve().write_text(text.replace("</remote_servers>", added))
    deadline = time.monotonic() + 60
    while cluster.everywhere("SELECT count() FROM system.clusters WHERE cluster = 'fresh'") != {"1\n"}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    answer = cluster["n3"].query("CREATE DATABASE on_fresh ON CLUSTER fresh")
    assert answer.startswith("n2\t9000\t0")
    assert cluster["n1"].query("SELECT count() FROM system.databases WHERE name = 'on_fresh'") == "0\n"


def test_clusters_are_read_again_at_once_when_somebody_says_so(cluster: Cluster) -> None:
    shared = cluster.local.files.shared.resolve()
    before = shared.read_text()
    added = "<told><shard><replica><host>n2</host><port>9000</port></replica></shard></told></remote_servers>"
    asks = "SELECT count() FROM system.clusters WHERE cluster = 'told'"
    try:
        shared.write_text(before.replace("</remote_servers>", added))
        cluster["n1"].query("SYSTEM RELOAD CONFIG")
        assert cluster["n1"].query(asks) == "1\n"
        cluster["n1"].query("SYSTEM RELOAD CONFIG ON CLUSTER all")
        assert cluster.everywhere(asks) == {"1\n"}
        shared.write_text("<clickhouse>")
        broken = cluster["n2"].post("SYSTEM RELOAD CONFIG")
        assert broken.status == 500 and "not well-formed XML" in broken.text
        assert cluster["n2"].query(asks) == "1\n"
    finally:
        shared.write_text(before)


def test_a_host_that_was_down_catches_up(cluster: Cluster) -> None:
    cluster.call(cluster.local.node("n3").stop())
    replies: list[Reply] = []
    waiting = threading.Thread(
        target=lambda: replies.append(
            cluster["n1"].post("CREATE TABLE late ON CLUSTER all (a UInt8) ENGINE = Memory")
        )
    )
    waiting.start()
    while cluster["n2"].query("EXISTS TABLE late") != "1\n":
        time.sleep(0.05)
    cluster.call(cluster.local.node("n3").start())
    waiting.join()
    assert replies[0].status == 200, replies[0].text
    assert cluster["n3"].query("EXISTS TABLE late") == "1\n"


def test_keeper_away_is_said_clearly_and_everything_goes_on_when_it_is_back(cluster: Cluster) -> None:
    cluster["n1"].query("CREATE TABLE before ON CLUSTER all (a UInt64) ENGINE = MergeTree ORDER BY a")
    cluster.call(cluster.local.zookeeper.stop())
    cluster["n1"].query("INSERT INTO before VALUES (1)")
    assert cluster["n1"].query("SELECT * FROM before") == "1\n"
    second = cluster.local.node("n2")
    cluster.call(second.stop())
    second.process.start()
    cluster.call(second.wait_answering())  # Keeper is down at its start
    assert cluster["n2"].query("SELECT count() FROM before") == "0\n"
    asked = ("CREATE DATABASE nowhere ON CLUSTER all", "SELECT * FROM system.distributed_ddl_queue")
    with ThreadPoolExecutor() as threads:  # each waits a while for Keeper
        replies = list(threads.map(cluster["n2"].post, asked))
    assert [(reply.code, reply.status) for reply in replies] == [(999, 500)] * 2
    cluster.call(cluster.local.zookeeper.start())
    answer = cluster["n2"].query("CREATE DATABASE back ON CLUSTER all")
    assert {line.split("\t")[0] for line in answer.splitlines()} == set(HOSTS)
    assert cluster.everywhere("SELECT count() FROM system.databases WHERE name = 'nowhere'") == {"0\n"}
