"""A node's life: start, refusal to start, orderly end, hard end, TLS."""

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.client import NodeClient
from engine.errors import NodeUnavailable, SqlError
from tests.node.conftest import RunningNode, StartNode
from tests.node.http_client import Reply
from tests.permissions import open_to_others

pytestmark = pytest.mark.slow


def test_a_node_says_where_it_is_and_takes_it_back_at_its_end(start_node: StartNode) -> None:
    node = start_node()
    facts = node.announced()
    assert facts["http_port"] == node.http_port
    assert facts["host_name"] == "node01"
    node.query("CREATE TABLE kept (a UInt64) ENGINE = MergeTree ORDER BY a")
    node.query("INSERT INTO kept VALUES (1), (2)")
    assert node.stop() == 0
    assert not (node.directory / "data" / "node.json").exists()
    node.start()
    assert node.query("SELECT sum(a) FROM kept") == "3\n"
    assert node.stop() == 0


def test_what_a_node_makes_is_for_its_user_alone_unless_its_umask_says_more(start_node: StartNode) -> None:
    nodes = start_node(), start_node(extra="<umask>027</umask>")
    for node in nodes:
        node.query("CREATE TABLE secret (a UInt64) ENGINE = MergeTree ORDER BY a")
        node.query("INSERT INTO secret VALUES (1)")
    private, shared = (node.directory / "data" for node in nodes)
    assert open_to_others(private) == set()
    [rows] = private.glob("store/*/*/all_1_1_0/data.bin")
    assert rows.stat().st_mode & 0o777 == 0o600
    [rows] = shared.glob("store/*/*/all_1_1_0/data.bin")
    assert (rows.stat().st_mode & 0o777, rows.parent.stat().st_mode & 0o777) == (0o640, 0o750)


def test_a_second_node_on_the_same_directory_is_refused_in_one_line(start_node: StartNode) -> None:
    node = start_node()
    second = start_node(run=False)
    second.config.write_text(second.config.read_text().replace(str(second.directory), str(node.directory)))
    second.process.start()
    assert second.wait() == 4
    said = second.process.log_tail(50)
    assert f"is in use by process {node.announced()['pid']}" in said
    assert "Traceback" not in said
    assert node.query("SELECT 1") == "1\n"


def test_a_port_in_use_is_said_in_one_line(start_node: StartNode) -> None:
    node = start_node()
    second = start_node(run=False)
    second.config.write_text(
        second.config.read_text().replace(f">{second.http_port}<", f">{node.http_port}<")
    )
    second.process.start()
    assert second.wait() == 4
    said = second.process.log_tail(50)
    assert f"HTTP port {node.http_port}: " in said
    assert "already in use" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "text", ["<clickhouse><path>x</path>", "<clickhouse><http_port>many</http_port></clickhouse>"]
)
def test_a_configuration_that_cannot_be_read_is_refused_with_its_place(
    start_node: StartNode, text: str
) -> None:
    node = start_node(run=False)
    node.config.write_text(text)
    node.process.start()
    assert node.wait() == 5
    assert "config.xml" in node.process.log_tail(50)
    assert "Traceback" not in node.process.log_tail(50)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            "<nosuch_setting>1</nosuch_setting>",
            "(code 115): Unknown setting 'nosuch_setting', in profile 'default'",
        ),
        ("<readonly>1</readonly><max_threads>many</max_threads>", "(code 27): Cannot parse input"),
    ],
)
def test_a_profile_that_chdb_does_not_take_is_refused_at_the_start(
    start_node: StartNode, settings: str, complaint: str
) -> None:
    """Later it would be an error of every statement."""
    node = start_node(run=False, extra=f"<profiles><default>{settings}</default></profiles>")
    node.process.start()
    assert node.wait() == 5
    log = node.process.log_tail(50)
    assert complaint in log and "in profile 'default'" in log and "Traceback" not in log


def _wait_until_it_runs(node: RunningNode, query_id: str, running: threading.Thread) -> None:
    seen = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = '{query_id}'"
    while node.query(seen) == "0\n":
        assert running.is_alive(), "the statement ended before it was seen running"


def test_the_first_signal_lets_statements_end_and_takes_no_new_ones(start_node: StartNode) -> None:
    node = start_node()
    replies: list[Reply] = []
    sql = "SELECT sum(sleepEachRow(0.1)) FROM numbers(50) SETTINGS max_block_size = 1"
    running = threading.Thread(target=lambda: replies.append(node.post(sql, query_id="last")))
    running.start()
    _wait_until_it_runs(node, "last", running)
    node.process.signal(15)
    while True:
        try:
            socket.create_connection(("127.0.0.1", node.http_port), timeout=5).close()
        except ConnectionResetError:
            continue  # closed while this connection stood in its queue
        except ConnectionRefusedError:
            break
    assert node.wait() == 0
    running.join()
    assert (replies[0].status, replies[0].text) == (200, "0\n")


def test_the_second_signal_ends_it_at_once(start_node: StartNode) -> None:
    node = start_node()
    sql = "SELECT count() FROM system.numbers WHERE NOT ignore(number)"

    def ask() -> None:
        with pytest.raises(OSError):
            node.post(sql, query_id="endless")

    running = threading.Thread(target=ask)
    running.start()
    _wait_until_it_runs(node, "endless", running)
    node.process.signal(15)
    while "node.stopping" not in node.process.log_tail(50):
        pass
    node.process.signal(15)
    assert node.wait() == 130
    running.join()
    node.start()
    assert node.query("SELECT 1") == "1\n"


def test_a_statement_that_takes_too_long_is_cancelled_at_the_end(start_node: StartNode) -> None:
    node = start_node()
    replies: list[Reply] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            replies.append(
                node.post("SELECT count() FROM system.numbers WHERE NOT ignore(number)", query_id="long")
            )

    running = threading.Thread(target=ask)
    running.start()
    _wait_until_it_runs(node, "long", running)
    assert node.stop() == 0
    running.join()
    assert not any(reply.status == 200 for reply in replies)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


async def test_https_with_a_certificate(start_node: StartNode, certificate: tuple[Path, Path]) -> None:
    from engine.ports import free_ports

    [port] = free_ports(1)
    file, key = certificate
    node = start_node(
        extra=f"<https_port>{port}</https_port><openSSL><server><certificateFile>{file}</certificateFile>"
        f"<privateKeyFile>{key}</privateKeyFile></server></openSSL>"
    )
    assert node.query("SELECT 1") == "1\n"
    async with NodeClient(f"https://127.0.0.1:{port}", tls=ssl.create_default_context(cafile=file)) as client:
        assert (await client.query_rows("SELECT 1")).scalar == 1
    async with NodeClient(f"https://127.0.0.1:{port}") as stranger:
        with pytest.raises(NodeUnavailable):
            await stranger.ping()


async def test_our_own_client_against_a_node(node: RunningNode) -> None:
    async with NodeClient(node.url, user="alice", password="secret") as client:
        await client.ping()
        assert (await client.version())[0] == 26
        await client.command(
            "CREATE TABLE by_client (a UInt64, b Nullable(String)) ENGINE = MergeTree ORDER BY a"
        )

        async def rows() -> AsyncIterator[bytes]:
            for number in range(1000):
                yield f"{number},x\n".encode()

        await client.insert("by_client", rows(), format="CSV", columns=["a", "b"])
        await client.insert("by_client", b"1000,\\N\n", format="CSV")
        result = await client.query_rows(
            "SELECT * FROM by_client WHERE a >= {n:UInt64} ORDER BY a", params={"n": "999"}
        )
        assert result.rows == ((999, "x"), (1000, None))
        assert result.columns == (("a", "UInt64"), ("b", "Nullable(String)"))
        with pytest.raises(SqlError) as caught:
            await client.query_rows("SELECT * FROM nosuch")
        assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")
    async with NodeClient(node.url, user="alice", password="wrong") as client:
        with pytest.raises(SqlError) as caught:
            await client.query_text("SELECT 1")
        assert caught.value.code == 516
