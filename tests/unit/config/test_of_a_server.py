"""Commands and DAGs read the configuration file of a server, made for that server and not for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.load import load_client_config, load_node_config
from engine.config.model import ZooKeeper
from engine.errors import ConfigError

CLUSTER = "<remote_servers><c><node><host>h</host></node></c></remote_servers>"
KEEPER = "<zookeeper><node><host>zk</host></node></zookeeper>"
QUEUE = "<distributed_ddl><path>/q</path><profile>ddl</profile></distributed_ddl>"


def write(path: Path, body: str) -> Path:
    path.write_text(f"<clickhouse>{body}</clickhouse>")
    return path


def test_clusters_keeper_and_queue_are_read(tmp_path: Path) -> None:
    config = load_client_config(write(tmp_path / "config.xml", CLUSTER + KEEPER + QUEUE))
    assert config.topology.cluster("c").replicas[0].host == "h"
    assert config.zookeeper == ZooKeeper((("zk", 2181),))
    assert config.queue_of("c").path == "/q"


def test_users_do_not_matter_nor_whether_their_file_can_be_read(tmp_path: Path) -> None:
    users = "<users><a><password_double_sha1_hex>x</password_double_sha1_hex></a><b><ldap/></b></users>"
    within = write(tmp_path / "within.xml", CLUSTER + users)
    beside = write(tmp_path / "beside.xml", CLUSTER + "<users_config>no_such_file.xml</users_config>")
    assert load_client_config(within).topology.clusters.keys() == {"c"}
    assert load_client_config(beside).topology.clusters.keys() == {"c"}
    for path in (within, beside):
        with pytest.raises(ConfigError):
            load_node_config(path)


def test_the_server_s_tls_does_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "config.xml", CLUSTER + "<https_port>8443</https_port>")
    assert load_client_config(path).topology.clusters.keys() == {"c"}
    with pytest.raises(ConfigError, match="needs a certificate"):
        load_node_config(path)


@pytest.mark.parametrize("load", [load_client_config, load_node_config])
@pytest.mark.parametrize(
    "unrelated",
    [
        '<s3><b><secret_access_key from_env="NOT_SET"/></b></s3>',
        '<encryption_codecs><key_hex from_zk="/key"/></encryption_codecs>',
    ],
)
def test_what_nobody_here_reads_may_be_taken_from_where_it_is_not(
    tmp_path: Path, load: object, unrelated: str
) -> None:
    config = load(write(tmp_path / "config.xml", CLUSTER + unrelated), environ={})  # type: ignore[operator]
    assert config.topology.clusters.keys() == {"c"}


@pytest.mark.parametrize(
    ("used", "complaint"),
    [
        ('<macros><shard from_env="NOT_SET"/></macros>', "takes the variable NOT_SET, which is not set"),
        ('<remote_servers from_zk="/clusters"/>', "is not supported"),
    ],
)
def test_what_is_read_must_be_there(tmp_path: Path, used: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_client_config(write(tmp_path / "config.xml", used), environ={})
