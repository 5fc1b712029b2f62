"""Airflow's connections, as what the engine is told."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest
from airflow.sdk import Connection

from engine.config.model import Cluster, Etcd, Replica, Shard, ZooKeeper
from engine.errors import ConfigError
from engine.migrations.probe import HttpProbe
from engine.names import HostId


def keeper(**fields: Any) -> ZooKeeper:
    from oncluster_airflow.hooks.keeper import config_of

    return config_of(Connection(conn_id="zk", conn_type="zookeeper", **fields))


def test_one_server_stands_in_host_and_port() -> None:
    assert keeper(host="zk1", port=12181).hosts == (("zk1", 12181),)


async def test_one_that_airflow_does_not_have_is_a_mistake_that_nobody_tries_again() -> None:
    from oncluster_airflow.errors import TaskRefused, as_airflow_error
    from oncluster_airflow.hooks.keeper import KeeperHook

    with pytest.raises(ConfigError, match=r"no connection 'zk_nobody'.* AIRFLOW_CONN_ZK_NOBODY") as refused:
        KeeperHook("zk_nobody").config()
    with pytest.raises(ConfigError, match="no connection 'zk_nobody'"):
        await KeeperHook("zk_nobody").aconfig()
    assert isinstance(as_airflow_error(refused.value), TaskRefused)


def test_several_servers_stand_in_host() -> None:
    assert keeper(host="zk1, zk2:2182,[::1]:2183").hosts == (("zk1", 2181), ("zk2", 2182), ("::1", 2183))


def test_an_address_of_ipv6_needs_no_brackets_where_no_port_follows() -> None:
    assert keeper(host="::1, fe80::5", port=2182).hosts == (("::1", 2182), ("fe80::5", 2182))


def test_login_and_password_are_the_digest_identity_and_are_not_shown() -> None:
    config = keeper(host="zk1", login="ada", password="hunter2")

    assert config.identity == "ada:hunter2"
    assert "hunter2" not in repr(config)


def test_extra_carries_the_chroot_the_times_and_tls() -> None:
    extra = '{"root": "/a", "session_timeout_ms": 5000, "secure": true, "ca_file": "/ca.pem"}'
    config = keeper(host="zk1", extra=extra)

    assert (config.root, config.session_timeout_ms) == ("/a", 5000)
    assert (config.secure, config.ca_file) == (True, "/ca.pem")


def test_a_field_nobody_knows_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'zk'.*chroot.*There are hosts, root"):
        keeper(host="zk1", extra='{"chroot": "/a"}')


def test_a_port_that_is_no_number_is_an_error_that_names_the_connection() -> None:
    with pytest.raises(ConfigError, match="'zk'"):
        keeper(host="zk1:abc")


def of_uri(conn_type: str, query: str) -> Connection:
    return Connection.from_uri(f"{conn_type}://host:2181/?{query}", conn_id="uri")


def test_in_a_uri_true_and_false_are_words() -> None:
    from oncluster_airflow.hooks.keeper import config_of
    from oncluster_airflow.hooks.nodes import NodeAddresses

    assert config_of(of_uri("zookeeper", "secure=false")).secure is False
    assert config_of(of_uri("zookeeper", "secure=True")).secure is True
    found = NodeAddresses.of(of_uri("clickhouse", "secure=false&verify=false"))
    assert (found.scheme, found.verify) == ("http", False)
    with pytest.raises(ConfigError, match=r"secure is 'maybe'"):
        config_of(of_uri("zookeeper", "secure=maybe"))
    with pytest.raises(ConfigError, match=r"'uri'.*verify is 'maybe'"):
        NodeAddresses.of(of_uri("clickhouse", "verify=maybe"))


@pytest.mark.parametrize("extra", ['{"root": "/a",}', "[1]", '"/a"'])
def test_extra_that_is_no_json_object_is_an_error_and_not_left_out(extra: str) -> None:
    """Without its root the queue would be looked for where nobody is."""
    with pytest.raises(ConfigError, match=r"'zk'.*no JSON object"):
        keeper(host="zk1", extra=extra)
    with pytest.raises(ConfigError, match=r"'ch'.*no JSON object"):
        addresses(host="ch1", extra=extra)


@pytest.mark.parametrize(
    "extra",
    [
        '{"session_timeout_ms": 0}',
        '{"session_timeout_ms": -5}',
        '{"session_timeout_ms": true}',
        '{"session_timeout_ms": 1.5}',
        '{"session_timeout_ms": [1]}',
        '{"operation_timeout_ms": "soon"}',
        '{"root": "a/b"}',
        '{"root": 5}',
        '{"ca_file": ["/ca.pem"]}',
        '{"max_txn_ops": 0}',
    ],
)
def test_a_value_that_cannot_be_meant_is_an_error_that_names_the_field(extra: str) -> None:
    host = "etcd://a" if "max_txn_ops" in extra else "zk1"
    field = next(iter(json.loads(extra)))
    with pytest.raises(ConfigError, match=f"'zk': {field} is "):
        keeper(host=host, extra=extra)


def test_null_in_extra_is_a_field_that_is_not_there() -> None:
    """And no chroot of the name `None`."""
    extra = '{"root": null, "ca_file": null, "session_timeout_ms": null, "secure": null}'
    assert keeper(host="zk1", extra=extra) == keeper(host="zk1")


def test_a_root_may_end_with_a_slash() -> None:
    assert keeper(host="zk1", extra='{"root": "/a/"}').root == "/a"
    assert keeper(host="zk1", extra='{"root": "/"}').root == ""


@pytest.mark.parametrize(("host", "port"), [("zk1:99999", None), ("zk1", 70000), ("zk1:-1", None)])
def test_a_port_that_is_none_is_an_error(host: str, port: int | None) -> None:
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        keeper(host=host, port=port)
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        addresses(host="ch1", port=70000)


def test_a_host_with_a_scheme_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'zk': Host has 'http'"):
        keeper(host="http://zk1:2181")
    with pytest.raises(ConfigError, match="'ch': Host has a scheme"):
        addresses(host="http://ch1")


@pytest.mark.parametrize("url", ['"10.0.0.1:8123"', '"ftp://u:hunter2@h"', "5", "null", '""'])
def test_an_address_of_a_node_that_is_none_is_an_error_and_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="'ch'") as caught:
        addresses(host="ch1", extra=f'{{"nodes": {{"node01": {url}}}}}')
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_no_host_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no host"):
        keeper()


def addresses(**fields: Any) -> Any:
    from oncluster_airflow.hooks.nodes import NodeAddresses

    return NodeAddresses.of(Connection(conn_id="ch", conn_type="clickhouse", **fields))


def test_nodes_are_asked_at_their_own_names_and_the_connections_port() -> None:
    assert addresses(host="ch1", port=8124).url_of(HostId("node01", 9000)) == "http://node01:8124"
    found = addresses(host="::1", extra='{"secure": true}')
    assert found.url_of(HostId("fe80::5", 9000)) == "https://[fe80::5]:8123"
    assert found.client().url == "https://[::1]:8123"


def test_nodes_in_extra_say_where_a_host_really_is() -> None:
    found = addresses(host="ch1", extra='{"nodes": {"node01": "https://10.0.0.1:8443"}}')

    assert found.url_of(HostId("node01", 9000)) == "https://10.0.0.1:8443"


def test_a_host_that_does_not_resolve_here_is_not_asked() -> None:
    found = addresses(host="ch1", extra='{"nodes": {"node01": "http://10.0.0.1:8123"}}')
    probe = found.probe([HostId("node01", 9000), HostId("no-such-host.invalid", 9000)])

    assert dict(probe.urls) == {"node01:9000": "http://10.0.0.1:8123"}


ONE_NAME = '{"nodes": {"ch:9001": "http://10.0.0.1:8001", "ch:9002": "http://10.0.0.1:8002"}}'
EACH = {"ch:9001": "http://10.0.0.1:8001", "ch:9002": "http://10.0.0.1:8002"}


async def test_nodes_of_one_name_are_each_asked_at_their_own_address(connection: Any) -> None:
    """By plans, by operations and by the check of a load."""
    from oncluster_airflow.operation_site import named_nodes
    from oncluster_airflow.operators.etl import urls_of

    hosts = [HostId("ch", 9001), HostId("ch", 9002)]
    assert dict(addresses(extra=ONE_NAME).probe(hosts).urls) == EACH
    nobody = HttpProbe({"ch:9001": "http://127.0.0.1:1"})
    assert [await nobody.is_up(host) for host in hosts] == [False, None]
    conn_id = connection("ch", conn_type="clickhouse", extra=ONE_NAME)
    assert (await named_nodes(conn_id, set(hosts)))[0] == EACH
    cluster = Cluster("c", (Shard(1, tuple(Replica(host.host, host.port) for host in hosts)),))
    assert urls_of(cluster, addresses(extra=ONE_NAME)) == EACH


def test_a_plan_trusts_the_certificates_that_the_connection_trusts() -> None:
    extra = '{"secure": true, "verify": false, "nodes": {"node01": "https://10.0.0.1:8443"}}'
    unverified = addresses(host="ch1", extra=extra).probe([HostId("node01", 9000)])
    verified = addresses(host="ch1", extra=extra.replace("false", "true")).probe([HostId("node01", 9000)])

    assert unverified.tls is not None and unverified.tls.verify_mode is ssl.CERT_NONE
    assert verified.tls is None


def test_the_nodes_password_is_not_shown() -> None:
    found = addresses(host="ch1", password="hunter2")
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(found.probe([]))


@pytest.mark.slow
def test_the_button_tests_a_connection(zookeeper: ZooKeeper) -> None:
    from oncluster_airflow.hooks import KeeperHook

    ok, words = KeeperHook().test_connection()
    assert ok, words
    assert "Connected" in words


def test_settings_are_relative_to_the_project_and_hide_the_ledgers_password() -> None:
    from oncluster_airflow.settings import Settings, project_root

    settings = Settings.from_environment(
        {"ONCLUSTER_MIGRATIONS": "my/migrations", "ONCLUSTER_LEDGER_URL": "postgresql://u:hunter2@h/db"}
    )
    assert settings.migrations == project_root() / "my/migrations"
    assert "hunter2" not in repr(settings)


def test_a_variable_that_is_empty_counts_as_one_that_is_not_set() -> None:
    """As docker-compose hands on what is not set on its side."""
    from oncluster_airflow.settings import OperationSettings, Settings

    names = ("HOME", "CONFIG", "MIGRATIONS", "LEDGER_URL", "DAG_MIGRATIONS", "RECORDS_URL", "BACKUP_KEEP")
    empty = {f"ONCLUSTER_{name}": "" for name in names}
    assert Settings.from_environment(empty) == Settings.from_environment({})
    assert OperationSettings.from_environment(empty) == OperationSettings.from_environment({})


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_number_that_is_none_is_an_error_that_names_the_variable(text: str) -> None:
    from oncluster_airflow.settings import Settings

    with pytest.raises(ConfigError, match="ONCLUSTER_DAG_MIGRATIONS"):
        Settings.from_environment({"ONCLUSTER_DAG_MIGRATIONS": text})


def etcd(**fields: Any) -> Etcd:
    config = keeper(**fields)
    assert isinstance(config, Etcd)
    return config


def test_a_host_that_begins_with_etcd_is_an_etcd_with_its_own_port() -> None:
    assert etcd(host="etcd://e1") == Etcd(hosts=(("e1", 2379),))
    assert etcd(host="etcd://e1", port=23790).hosts == (("e1", 23790),)


def test_several_members_of_etcd_stand_in_host_each_with_the_scheme_or_without() -> None:
    there = (("e1", 2379), ("e2", 23790), ("::1", 2381))
    assert etcd(host="etcd://e1, e2:23790,[::1]:2381").hosts == there
    assert etcd(host="etcd://e1, etcd://e2:23790,etcd://[::1]:2381/").hosts == there
    assert etcd(host="e0", extra='{"hosts": "etcd://e1,e2"}').hosts == (("e1", 2379), ("e2", 2379))


def test_login_and_password_are_those_of_etcd_and_are_not_shown() -> None:
    config = etcd(host="etcd://e1", login="ada", password="hunter2", extra='{"identity": "a:secret"}')

    assert (config.user, config.password, config.identity) == ("ada", "hunter2", "a:secret")
    assert "hunter2" not in repr(config) and "secret" not in repr(config)


def test_extra_carries_what_etcd_has_to_be_told() -> None:
    extra = (
        '{"root": "/a", "session_timeout_ms": 5000, "operation_timeout_ms": 7000, "key_prefix": "k/",'
        ' "max_txn_ops": 512, "secure": true, "ca_file": "/ca.pem", "certificate_file": "/c.pem",'
        ' "private_key_file": "/k.pem"}'
    )
    assert etcd(host="etcd://e1", extra=extra) == Etcd(
        hosts=(("e1", 2379),),
        root="/a",
        session_timeout_ms=5000,
        operation_timeout_ms=7000,
        key_prefix="k/",
        max_txn_ops=512,
        secure=True,
        ca_file="/ca.pem",
        certificate_file="/c.pem",
        private_key_file="/k.pem",
    )


def test_a_chroot_of_etcd_may_stand_behind_its_hosts() -> None:
    """As a place of the command line does: `etcd://e1,e2/path`."""
    assert etcd(host="etcd://e1,e2:23790/a/b").root == "/a/b"
    assert etcd(host="etcd://e1/").root == ""
    assert etcd(host="etcd://e1,e2:23790/a/b").hosts == (("e1", 2379), ("e2", 23790))
    with pytest.raises(ConfigError, match=r"'zk'.*root.*twice"):
        etcd(host="etcd://e1/a", extra='{"root": "/b"}')


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"host": "etcd://"}, "no host"),
        ({"host": "etcd://e1:abc"}, "'zk'"),
        ({"host": "etcd://e1/a,e2"}, "'zk'.*not the last"),
        ({"host": "etcd://e1/a,e2/b"}, "'zk'.*not the last"),
        ({"host": "etcd://e1", "extra": '{"max_txn_ops": "many"}'}, "'zk'"),
        ({"host": "etcd://e1", "extra": '{"secure": "maybe"}'}, "secure is 'maybe'"),
        ({"host": "etcd://e1", "extra": '{"chroot": "/a"}'}, "chroot.*key_prefix"),
        ({"host": "zk1", "extra": '{"key_prefix": "k/"}'}, "key_prefix"),
    ],
)
def test_what_makes_no_sense_for_etcd_is_an_error_that_names_the_connection(
    fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        keeper(**fields)
