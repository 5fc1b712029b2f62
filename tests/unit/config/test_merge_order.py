"""engine.config.files beside ClickHouse's ConfigProcessor: which file wins, and what a merged text leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import files
from engine.config.load import load_node_config


def write(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<clickhouse>{body}</clickhouse>")
    return path


def test_config_d_comes_on_top_of_conf_d_because_files_are_merged_by_their_full_names(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", "<http_port>1</http_port>")
    write(tmp_path / "conf.d" / "99.xml", "<http_port>2</http_port><tcp_port>2</tcp_port>")
    write(tmp_path / "config.d" / "00.xml", "<http_port>3</http_port>")
    config = load_node_config(path)
    assert (config.http_port, config.tcp_port) == (3, 2)


def test_a_text_of_a_merged_file_wins_over_the_environment_below_it(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", '<http_port from_env="PORT"/>')
    write(tmp_path / "config.d" / "own.xml", "<http_port>3</http_port>")
    assert load_node_config(path, environ={"PORT": "2"}).http_port == 3
    assert load_node_config(path, environ={}).http_port == 3


def test_the_environment_of_a_merged_file_wins_over_the_text_below_it(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", "<http_port>1</http_port>")
    write(tmp_path / "config.d" / "own.xml", '<http_port from_env="PORT"/>')
    assert load_node_config(path, environ={"PORT": "2"}).http_port == 2


def test_an_empty_element_of_a_merged_file_empties_the_text_below_it(tmp_path: Path) -> None:
    cluster = "<remote_servers><c><node><host>h</host>{}</node></c></remote_servers>"
    path = write(tmp_path / "config.xml", cluster.format("<password>x</password>"))
    write(
        tmp_path / "config.d" / "own.xml", "<remote_servers><c><node><password/></node></c></remote_servers>"
    )
    replica = load_node_config(path).topology.clusters["c"].replicas[0]
    assert (replica.host, replica.password) == ("h", "")


def test_conf_d_holds_users_too_and_a_users_file_is_the_only_place_for_them(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config.xml",
        "<users_config>users.xml</users_config><users><stray><no_password/></stray></users>",
    )
    write(tmp_path / "users.xml", "<users><default><no_password/></default></users>")
    write(tmp_path / "conf.d" / "more.xml", "<users><more><no_password/></more></users>")
    assert set(load_node_config(path).users) == {"default", "more"}


def test_included_text_takes_its_own_environment_only_where_it_is_included(tmp_path: Path) -> None:
    write(tmp_path / "shared.xml", '<p from_env="PORT"/><unused from_env="NONE"/><m><a from_env="A"/></m>')
    path = write(
        tmp_path / "config.xml",
        '<include_from>shared.xml</include_from><http_port incl="p"/><macros incl="m"/>',
    )
    config = load_node_config(path, environ={"PORT": "5", "A": "b"})
    assert (config.http_port, config.topology.macros) == (5, {"a": "b"})


def test_an_inclusion_may_name_an_element_below_another(tmp_path: Path) -> None:
    write(tmp_path / "shared.xml", "<sites><east><a>1</a></east></sites>")
    path = write(
        tmp_path / "config.xml", '<include_from>shared.xml</include_from><macros incl="sites/east"/>'
    )
    assert load_node_config(path).topology.macros == {"a": "1"}


def test_without_include_from_the_usual_file_of_old_servers_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = write(tmp_path / "etc" / "metrika.xml", "<macros><shard>07</shard></macros>")
    monkeypatch.setattr(files, "USUAL_INCLUDE", usual)
    path = write(tmp_path / "config.xml", '<macros incl="macros" optional="true"/>')
    assert load_node_config(path).topology.macros == {"shard": "07"}


def test_what_is_optional_and_not_to_be_had_is_not_there(tmp_path: Path) -> None:
    """As ClickHouse does: the default counts, or what an earlier file says; a section switches nothing on."""
    write(tmp_path / "shared.xml", "<empty/>")
    path = write(
        tmp_path / "config.xml",
        """<include_from>shared.xml</include_from>
        <http_port from_env="PORT" optional="true"/><tcp_port>7</tcp_port><macros><a>1</a></macros>
        <distributed_ddl incl="queue" optional="true"/><zookeeper incl="empty" optional="true"/>""",
    )
    own = """<tcp_port from_env="OTHER" optional="true"/><macros incl="macros" optional="true"/>"""
    write(tmp_path / "config.d" / "own.xml", own)
    config = load_node_config(path, environ={})
    assert (config.http_port, config.tcp_port, config.topology.macros) == (8123, 7, {"a": "1"})
    root = files.read_for_node(path, {}, {}).root
    assert (root.first("distributed_ddl"), root.first("zookeeper") is None) == (None, False)
    write(tmp_path / "shared.xml", "<empty/><macros><b>2</b></macros>")
    config = load_node_config(path, environ={"PORT": "5", "OTHER": "6"})
    assert (config.http_port, config.tcp_port, config.topology.macros) == (5, 6, {"b": "2"})


def test_include_from_a_place_that_is_not_given_includes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", '<include_from from_env="FILE" optional="true"/>')
    assert load_node_config(path, environ={}).http_port == 8123


def test_a_variable_of_the_environment_is_what_stands_between_tags(tmp_path: Path) -> None:
    """As ClickHouse reads it: escapes and elements; and what it could not read, as it stands."""
    path = write(
        tmp_path / "config.xml",
        '<remote_servers from_env="SERVERS"/><macros><a from_env="A"/><b from_env="B"/></macros>',
    )
    servers = "<c><node><host>h</host><password>x&lt;y</password></node></c>"
    topology = load_node_config(path, environ={"SERVERS": servers, "A": "1&amp;2", "B": "1&2<3"}).topology
    assert [each.password for each in topology.clusters["c"].replicas] == ["x<y"]
    assert topology.macros == {"a": "1&2", "b": "1&2<3"}


def test_the_first_of_two_macros_of_one_name_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", "<macros><a>1</a><a>2</a></macros>")
    assert load_node_config(path).topology.macros == {"a": "1"}
