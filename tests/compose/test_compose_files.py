"""docker-compose.yaml and what it hands to containers, read and not run: promises that any edit keeps."""

from __future__ import annotations

import http.server
import importlib.util
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from engine.cli.main import cli
from engine.config.load import load_node_config, load_topology
from engine.keeper.server_files import Peer, write_files
from engine.migrations.files import load_folder
from tests.compose.compose_stack import HOSTS, PROFILES, ROOT, env_file

pytestmark = pytest.mark.slow

CONFIG = ROOT / "compose" / "config"
FILE = ROOT / "docker-compose.yaml"
RUN_BY_HAND = {"demo", "oncluster"}
STATEFUL = {"postgres", "zookeeper1", "zookeeper2", "zookeeper3", "etcd", *HOSTS}


def substituted(text: str) -> str:
    return re.sub(r"\$\{(\w+):?-([^}]*)\}", lambda found: found.group(2), text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(substituted(FILE.read_text()))
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def test_every_variable_has_a_default_and_it_is_the_one_in_the_env_file() -> None:
    text = FILE.read_text()
    used = dict(re.findall(r"\$\{(\w+):?-([^}]*)\}", text))

    assert text.count("${") == len(re.findall(r"\$\{\w+:?-[^}]*\}", text))
    settings = env_file()
    assert set(settings) - set(used) == {"COMPOSE_PROFILES"}
    assert {name: settings[name] for name in settings if name in used} == {
        name: default for name, default in used.items() if name in settings
    }


def test_everything_is_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]

    assert published and [port for port in published if not port.startswith("127.0.0.1:")] == []
    for profile in ("engine", "clickhouse"):
        ports = [
            port.split(":")[1]
            for service in services.values()
            if service.get("profiles", [profile]) == [profile]
            for port in service.get("ports", ())
        ]
        assert len(ports) == len(set(ports))


def test_every_service_that_stays_up_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    without = {name for name, service in services.items() if "test" not in service.get("healthcheck", {})}

    assert without == RUN_BY_HAND | {"airflow-init"}


def test_data_are_on_volumes_of_their_own(compose: dict[str, Any]) -> None:
    mounted: dict[str, list[str]] = {}
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith("."):
                mounted.setdefault(source, []).append(name)
            else:
                assert volume.endswith(":ro"), "what is the checkout's is not written to"

    assert set(mounted) == set(compose["volumes"])
    assert {name for users in mounted.values() if len(users) == 1 for name in users} >= STATEFUL
    assert all(service["networks"] for service in compose["services"].values())


def test_each_image_is_a_target_of_the_one_dockerfile_and_none_runs_as_root(
    services: dict[str, dict[str, Any]],
) -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \$\{BASE_IMAGE\} AS (\w+)$(.*?)(?=^FROM|\Z)", text, re.M | re.S))
    targets = {service["build"]["target"] for service in services.values()}

    assert targets == set(stages) - {"packages"}
    for target in targets:
        users = re.findall(r"^USER (\w+)$", stages[target], re.M)
        assert users and users[-1] != "root"
    assert re.findall(r"^ARG BASE_IMAGE=(.*)$", text, re.M) == [env_file()["BASE_IMAGE"]]
    images = {(service["image"], service["build"]["target"]) for service in services.values()}
    assert len(images) == len(targets)


def test_what_is_copied_into_images_holds_no_secrets_and_no_environment() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert "*" in lines
    copied = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    assert not {name for name in copied if name.startswith(".")}


@pytest.mark.parametrize("host", HOSTS)
def test_each_node_reads_its_configuration(host: str) -> None:
    node = load_node_config(CONFIG / f"{host}.xml")

    assert (node.host_name, node.interserver_http_host) == (host, host)
    assert (node.listen_host, node.http_port, node.tcp_port) == ("0.0.0.0", 8123, 9000)
    assert node.path == "/var/lib/oncluster"
    assert node.zookeeper is not None
    assert node.zookeeper.connect_string == "zookeeper1:2181,zookeeper2:2181,zookeeper3:2181"
    assert [queue.path for queue in node.queues] == ["/clickhouse/task_queue/ddl"]
    assert list(node.users) == ["default"]
    # The macros say where the clusters have this host.
    expected = {"layer": "01", "replica": host}
    for name, macro in (("order_cluster", "order_shard"), ("log_cluster", "log_shard")):
        for shard in node.topology.clusters[name].shards:
            if any(replica.host == host for replica in shard.replicas):
                expected[macro] = f"{shard.number:02d}"
    assert dict(node.topology.macros) == expected


def test_the_clusters_are_those_of_the_project() -> None:
    assert (
        load_topology(CONFIG / "conf.d" / "cluster.xml").clusters
        == load_topology(ROOT / "config" / "cluster.xml").clusters
    )
    shards = load_topology(CONFIG / "conf.d" / "cluster.xml").clusters["order_cluster"].shards
    assert [[replica.host for replica in shard.replicas] for shard in shards] == [
        list(HOSTS[:3]),
        list(HOSTS[3:]),
    ]


def test_each_host_has_a_service_of_either_kind_under_its_name(services: dict[str, dict[str, Any]]) -> None:
    for host in HOSTS:
        engine, real = services[host], services[f"clickhouse{host[-2:]}"]
        assert engine["profiles"] == ["engine"] and real["profiles"] == ["clickhouse"]
        assert engine["hostname"] == real["hostname"] == host
        assert real["networks"]["oncluster"]["aliases"] == [host]
        assert engine["ports"] == real["ports"]
        assert engine["command"][-1] == f"/etc/oncluster/{host}.xml"
        assert real["command"][-1] == f"--config-file=/etc/oncluster/{host}.xml"


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_docker_compose_takes_the_file(profile: str) -> None:
    command = ["docker-compose", "--profile", profile, "config"]
    environment = {**os.environ, "COMPOSE_PROFILES": profile}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "airflow-scheduler" in yaml.safe_load(done.stdout)["services"]


# --- what runs in the containers ----------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    """A file of compose/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"compose_{name}", ROOT / "compose" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_demo_finds_everything_by_the_names_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", "/opt/oncluster/migrations")
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", "sqlite://")
    monkeypatch.setenv("AIRFLOW_ADMIN_PASSWORD", "local")

    state = script("demo").stack_state(CONFIG / "conf.d" / "cluster.xml")

    assert state.nodes == {host: f"http://{host}:8123" for host in HOSTS}
    assert state.airflow_url == "http://airflow-api-server:8080"


def test_members_of_an_ensemble_know_one_another_by_name(tmp_path: Path) -> None:
    peers = [Peer(number, 2888, 3888, host=f"zookeeper{number}") for number in (1, 2, 3)]
    write_files(tmp_path, host="0.0.0.0", client_port=2181, tick_ms=1000, number=2, peers=peers)

    lines = (tmp_path / "zoo.cfg").read_text().splitlines()
    assert [line for line in lines if line.startswith("server.")] == [
        "server.1=zookeeper1:2888:3888",
        "server.2=zookeeper2:2888:3888",
        "server.3=zookeeper3:2888:3888",
    ]
    assert "clientPortAddress=0.0.0.0" in lines
    assert (tmp_path / "data" / "myid").read_text() == "2\n"


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ({"Status": "running", "Health": {"Status": "starting"}}, "starting"),
        ({"Status": "running", "Health": {"Status": "healthy"}}, "healthy"),
        ({"Status": "running", "Health": {"Status": "unhealthy"}}, "unhealthy"),
        ({"Status": "running"}, "healthy"),
        ({"Status": "created"}, "starting"),
        ({"Status": "exited", "ExitCode": 0}, "ended well"),
        ({"Status": "exited", "ExitCode": 137}, "ended with exit code 137"),
    ],
)
def test_waiting_knows_what_a_container_is(state: dict[str, Any], verdict: str) -> None:
    assert script("wait").verdict({"State": state}) == verdict


def test_waiting_does_not_wait_for_a_container_that_ends_again_and_again() -> None:
    state = {"Status": "restarting", "ExitCode": 4}

    assert script("wait").verdict({"State": state, "RestartCount": 1}) == "starting"
    assert script("wait").verdict({"State": state, "RestartCount": 5}) == "ended 5 times, with exit code 4"


def test_waiting_ends_with_the_reason_of_the_first_sick_container(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("""#!/bin/sh
case $1 in
  ps) echo 1 ;;
  inspect) echo '[{"Id": "1", "Config": {"Labels": {"com.docker.compose.service": "node03"}}, "State":
    {"Status": "running", "Health": {"Status": "unhealthy", "Log": [{"Output": "nothing listens"}]}}}]' ;;
  logs) echo "the disk is full" ;;
esac
""")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert script("wait").main([str(docker)]) == 1

    said = capfd.readouterr().err
    assert "node03: unhealthy" in said and "nothing listens" in said and "the disk is full" in said


@pytest.fixture
def server() -> Iterator[int]:
    """Answers /ping with 200, Airflow's health report, and anything else with 503; knows `srvr`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            report = b'{"metadatabase":{"status":"healthy"},"triggerer":{"status":"unhealthy"}}'
            self.send_response(200 if self.path in ("/ping", "/api/v2/monitor/health") else 503)
            self.end_headers()
            self.wfile.write(report)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.05,))
        thread.start()
        yield one.server_address[1]
        one.shutdown()
        thread.join()


def check_health(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "compose" / "health.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_health_check_is_passed_by_200_only(server: int) -> None:
    assert check_health("http", server, "/ping", "/api/v2/monitor/health").returncode == 0

    refused = check_health("http", server, "/ping", "/other")
    assert refused.returncode == 1 and "503" in refused.stdout
    assert check_health("airflow", "127.0.0.1", server, "metadatabase").returncode == 0
    sick = check_health("airflow", "127.0.0.1", server, "triggerer")
    assert sick.returncode == 1 and "the triggerer is not healthy" in sick.stdout


def test_a_health_check_fails_where_nobody_listens() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as closed:
        port = closed.server_address[1]
    for check in (("http", port, "/ping"), ("zookeeper", port), ("airflow", "127.0.0.1", port, "scheduler")):
        done = check_health(*check)
        assert done.returncode == 1 and "nothing listens" in done.stdout


def test_a_zookeeper_without_a_quorum_is_not_healthy() -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4)
            self.request.sendall(self.server.answer)  # type: ignore[attr-defined]

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.05,))
        thread.start()
        try:
            one.answer = b"This ZooKeeper instance is not currently serving requests\n"  # type: ignore[attr-defined]
            alone = check_health("zookeeper", one.server_address[1])
            one.answer = b"Zookeeper version: 3.9\nMode: follower\n"  # type: ignore[attr-defined]
            serving = check_health("zookeeper", one.server_address[1])
        finally:
            one.shutdown()
            thread.join()

    assert alone.returncode == 1 and "no quorum" in alone.stdout
    assert serving.returncode == 0


# --- the triggerer ------------------------------------------------------------------------------------------


def run_triggerer(tmp_path: Path, airflow: str) -> subprocess.Popen[str]:
    """compose/triggerer.sh with this shell text in Airflow's place."""
    stub = tmp_path / "airflow"
    stub.write_text(f"#!/usr/bin/env bash\n{airflow}\n")
    stub.chmod(0o755)
    return subprocess.Popen(
        ["bash", str(ROOT / "compose" / "triggerer.sh")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("code", "seen"), [(0, 1), (3, 3)])
def test_a_triggerer_that_ends_unasked_has_failed_so_that_it_is_started_again(
    tmp_path: Path, services: dict[str, dict[str, Any]], code: int, seen: int
) -> None:
    """Airflow's ends with 0 when its worker process was killed, and Docker starts only failures again."""
    service = services["airflow-triggerer"]
    assert service["restart"] == "on-failure" and service["command"] == ["bash", "compose/triggerer.sh"]

    ended = run_triggerer(tmp_path, f"[[ $1 == triggerer ]] && exit {code}")

    ended.communicate(timeout=60)
    assert ended.returncode == seen


def test_a_triggerer_that_is_stopped_ends_when_it_is_ready_and_has_not_failed(tmp_path: Path) -> None:
    stopped = run_triggerer(
        tmp_path, "trap 'sleep 0.3; echo ready; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    )
    assert stopped.stdout is not None and stopped.stdout.readline() == "up\n"
    stopped.terminate()
    rest, _ = stopped.communicate(timeout=60)
    assert (stopped.returncode, rest) == (0, "ready\n")


# --- the migrations for ClickHouse 18.16 --------------------------------------------------------------------


def test_migrations_for_real_servers_pass_the_linter_and_name_their_entry_version() -> None:
    folder = ROOT / "compose" / "migrations"
    arguments = ["migrate", "lint", "--no-parser", "--strict", "--dir", str(folder)]
    done = CliRunner().invoke(cli, [*arguments, "--config", str(CONFIG / "conf.d" / "cluster.xml")])

    assert done.exit_code == 0, done.output
    for cluster in ("order_cluster", "log_cluster"):
        for migration in load_folder(folder / cluster, cluster=cluster).migrations:
            for one in (migration.up, migration.down):
                assert one is not None
                assert {statement.options.entry_version for statement in one.statements} == {1}
