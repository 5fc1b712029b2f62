"""The local stack's plans: ports, state, and the errors that come before anything is started."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import click
import pytest

from engine.cli.local import demo, up
from engine.errors import Busy, ConfigError, Corrupt, Unavailable
from engine.local import preflight
from engine.local.ledger_place import is_own_ledger, ledger_url_of
from engine.local.preflight import check
from engine.local.progress import EventReader, FileSink, Steps, StepState
from engine.local.stack import Stack
from engine.local.stack_options import StackOptions
from engine.local.stack_ports import DEFAULT_BASE, StackPorts
from engine.local.state import Phase, ProcessEntry, StackState, read_state, stack_nodes, write_state
from engine.ports import is_free
from engine.processes import ProcessId


def state(**changes: object) -> StackState:
    me = ProcessId.of(os.getpid())
    assert me is not None
    facts: dict[str, object] = {
        "mark": "m",
        "owner": ProcessEntry("owner", me.pid, me.started),
        "phase": Phase.READY,
        "zookeeper": "127.0.0.1:1",
        "config_file": "/c.xml",
        "migrations": "/m",
        "ledger_url": "sqlite:////l.db",
        "airflow_password": "secret",
        "processes": (ProcessEntry("node01", 4711, "boot/150", "http://127.0.0.1:2"),),
    }
    return StackState(**(facts | changes))  # type: ignore[arg-type]


def test_a_state_of_a_version_that_noted_the_time_of_the_day_is_read_and_its_processes_are_nobody() -> None:
    raw = json.loads(state().to_json())
    for entry in (raw["owner"], *raw["processes"]):
        entry["started_s"] = 1795832273.66
        del entry["started"]
    read = StackState.from_json(json.dumps(raw))
    assert not read.owner.id.is_alive and read.owner.pid == os.getpid()


def test_ports_have_fixed_places_above_the_base() -> None:
    ports = StackPorts.choose(nodes=6, port_base=None, environ={})
    assert ports.nodes == tuple(range(DEFAULT_BASE + 23, DEFAULT_BASE + 29))
    assert (ports.airflow, ports.zookeeper) == (DEFAULT_BASE + 80, DEFAULT_BASE + 81)
    assert ports.airflow_tasks == DEFAULT_BASE + 82
    assert StackPorts.choose(nodes=1, port_base=5000, environ={}).nodes == (5023,)


def test_the_option_wins_over_the_environment_and_single_ports_over_both() -> None:
    environ = {"ONCLUSTER_PORT_BASE": "6000", "ONCLUSTER_AIRFLOW_PORT": "7", "ONCLUSTER_NODE_PORT": "300"}
    assert StackPorts.choose(nodes=2, port_base=5000, environ=environ) == StackPorts(
        airflow=7, airflow_tasks=5082, zookeeper=5081, nodes=(300, 301)
    )
    assert StackPorts.choose(nodes=2, port_base=None, environ=environ).zookeeper == 6081


def test_an_address_that_is_not_of_this_machine_is_not_called_taken() -> None:
    with pytest.raises(Unavailable, match=r"Nothing can listen on 192\.0\.2\.1:2181"):
        is_free(2181, host="192.0.2.1")


def test_base_zero_takes_free_ports() -> None:
    ports = StackPorts.choose(nodes=6, port_base=0, environ={})
    assert len({ports.airflow, ports.airflow_tasks, ports.zookeeper, *ports.nodes}) == 9
    ports.require_free()


@pytest.mark.parametrize(
    ("nodes", "base", "environ", "says"),
    [
        (6, 65_454, {}, "no port"),
        (60, 5000, {}, "do not fit"),
        (6, None, {"ONCLUSTER_AIRFLOW_PORT": "eighty"}, "ONCLUSTER_AIRFLOW_PORT"),
    ],
)
def test_ports_that_cannot_be_are_refused(
    nodes: int, base: int | None, environ: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        StackPorts.choose(nodes=nodes, port_base=base, environ=environ)


def test_a_port_in_use_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Busy, match=rf"{port} \(for Airflow\) by .*process {os.getpid()}"):
            check(StackOptions(home=tmp_path, port_base=0), environ={"ONCLUSTER_AIRFLOW_PORT": str(port)})


def test_a_host_that_the_cluster_file_does_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="node77"):
        check(StackOptions(home=tmp_path, port_base=0, hosts=("node77",)), environ={})


def test_a_nearly_full_disk_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_NEEDED_BYTES", 2**62)
    with pytest.raises(Unavailable, match="MiB left"):
        check(StackOptions(home=tmp_path / "not" / "there", port_base=0), environ={})


def test_a_ledger_that_cannot_be_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be kept in mysql"):
        check(StackOptions(home=tmp_path, port_base=0), environ={"ONCLUSTER_LEDGER_URL": "mysql://u:p@h/db"})


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        (None, "sqlite:///{home}/ledger.db"),
        ("", "sqlite:///{home}/ledger.db"),
        ("postgresql://u:p@h/db", "postgresql://u:p@h/db"),
        ("/var/ledger.db", "sqlite:////var/ledger.db"),
        ("sqlite:////var/ledger.db", "sqlite:////var/ledger.db"),
        ("kept/ledger.db", "sqlite:///{here}/kept/ledger.db"),
        ("sqlite:///kept/ledger.db", "sqlite:///{here}/kept/ledger.db"),
    ],
)
def test_the_stack_s_airflow_has_the_ledger_that_the_command_line_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "run"
    environ = {} if variable is None else {"ONCLUSTER_LEDGER_URL": variable}
    expected = url.format(home=home, here=tmp_path)
    stack = Stack(StackOptions(home=home, port_base=0), environ=environ)
    assert stack.airflow is not None
    assert stack.airflow.settings.environment["ONCLUSTER_LEDGER_URL"] == expected
    assert stack.state().ledger_url == expected == ledger_url_of(home, environ)
    assert is_own_ledger(expected, home) is not bool(variable)


def test_a_second_stack_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, state())
    with pytest.raises(Busy, match="already running"):
        check(StackOptions(home=tmp_path, port_base=0), environ={})

    gone = ProcessEntry("owner", os.getpid(), 1.0)  # the number is ours, the start time is not
    write_state(tmp_path, state(owner=gone))
    assert check(StackOptions(home=tmp_path, port_base=0), environ={})[0][0] == "node01"


def test_the_state_survives_its_file_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, state())
    assert read_state(tmp_path) == state()
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600
    assert "secret" not in repr(state())


def test_another_configuration_s_hosts_are_not_the_stack_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "cluster.xml", tmp_path / "other" / "cluster.xml"
    assert stack_nodes(tmp_path, own) == {}
    nodes = {"node01": "http://127.0.0.1:8123"}
    write_state(tmp_path, replace(state(), config_file=str(own), nodes=nodes))
    monkeypatch.chdir(tmp_path)
    assert stack_nodes(tmp_path, own) == stack_nodes(tmp_path, Path("cluster.xml")) == nodes
    assert stack_nodes(tmp_path, other) == {}


@pytest.mark.parametrize("text", ["", "{", '{"mark": "m"}', "[]"])
def test_a_damaged_state_is_reported_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(Corrupt, match=r"state\.json"):
        read_state(tmp_path)


def test_options_survive_the_way_to_the_background_process(tmp_path: Path) -> None:
    options = StackOptions(
        home=tmp_path,
        port_base=0,
        cluster_file=tmp_path / "c.yaml",
        hosts=("a", "b"),
        with_airflow=False,
        dags_read_every_s=7,
    )
    assert StackOptions.from_json(options.to_json()) == options


def test_events_are_read_once_and_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.new() == []
    steps = Steps(FileSink(path))
    steps.running("Größe", "starting…")
    steps.done("Größe", "ready")
    assert [(event.step, event.state, event.text) for event in reader.new()] == [
        ("Größe", StepState.RUNNING, "starting…"),
        ("Größe", StepState.DONE, "ready"),
    ]
    assert reader.new() == []
    whole = path.read_text().splitlines()[0] + "\n"
    with path.open("a") as file:
        file.write(whole[:10])
    assert reader.new() == []
    with path.open("a") as file:
        file.write(whole[10:])
    assert len(reader.new()) == 1


@pytest.mark.parametrize("command", [up, demo])
def test_the_stack_takes_its_migrations_from_the_same_variable_as_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command
) -> None:
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", str(tmp_path))
    assert command.make_context("stack", []).params["migrations"] == tmp_path
    monkeypatch.delenv("ONCLUSTER_MIGRATIONS")
    assert command.make_context("stack", []).params["migrations"] is None
