"""engine.config.load: the files of a node, in XML and YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engine.config.load import load_client_config, load_node_config, load_topology
from engine.config.model import EMPTY_PASSWORD_SHA256, DistributedDdl, ZooKeeper
from engine.config.profiles import Constraint
from engine.config.quotas import QuotaAmount
from engine.errors import ConfigError
from engine.names import HostId
from tests.unit.config.support import load, write

SAMPLES = Path(__file__).parents[3] / "config"


# --- the samples --------------------------------------------------------------------------------------------


def test_the_xml_and_the_yaml_sample_say_the_same() -> None:
    assert load_node_config(SAMPLES / "cluster.xml") == load_node_config(SAMPLES / "cluster.yaml")


def test_the_sample_is_the_six_node_cluster() -> None:
    clusters = load_topology(SAMPLES / "cluster.xml").clusters
    hosts = {
        name: [[r.host for r in shard.replicas] for shard in cluster.shards]
        for name, cluster in clusters.items()
    }
    assert hosts == {
        "order_cluster": [["node01", "node02", "node03"], ["node04", "node05", "node06"]],
        "log_cluster": [["node01", "node02"], ["node03", "node04"], ["node05"]],
    }
    assert all(shard.internal_replication for cluster in clusters.values() for shard in cluster.shards)
    assert clusters["log_cluster"].host_ids[0] == HostId("node01", 9000)


@pytest.mark.parametrize("shared", ["cluster.xml", "cluster.yaml"])
@pytest.mark.parametrize("node", ["node01.xml", "node02.yaml"])
def test_a_node_takes_its_part_of_the_shared_file_whichever_way_both_are_written(
    tmp_path: Path, node: str, shared: str
) -> None:
    for name in ("cluster.xml", "cluster.yaml"):
        (tmp_path / name).write_bytes((SAMPLES / name).read_bytes())
    own = (SAMPLES / node).read_text()
    for name in ("cluster.xml", "cluster.yaml"):
        own = own.replace(name, shared)
    config = load_node_config(write(tmp_path / node, own))
    assert config.host_name == Path(node).stem
    assert config.topology.macros["replica"] == config.host_name
    assert config.topology.clusters == load_topology(SAMPLES / "cluster.xml").clusters
    assert config.zookeeper == ZooKeeper((("127.0.0.1", 2181),))
    assert config.queues == (DistributedDdl(),)


def test_the_macros_of_the_sample_agree_with_its_clusters() -> None:
    """Each node's shard macros name the shards in which the clusters have it."""
    shared = yaml.load((SAMPLES / "cluster.yaml").read_text(), Loader=yaml.BaseLoader)
    clusters = load_topology(SAMPLES / "cluster.yaml").clusters
    for number in range(1, 7):
        host = f"node{number:02d}"
        expected = {"layer": "01", "replica": host}
        for name, cluster in clusters.items():
            for shard in cluster.shards:
                if host in [replica.host for replica in shard.replicas]:
                    expected[f"{name.removesuffix('_cluster')}_shard"] = f"{shard.number:02d}"
        assert shared[f"macros_{host}"] == expected


# --- one file -----------------------------------------------------------------------------------------------


def test_every_element_of_a_node_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <logger><level>trace</level></logger>
        <mark_cache_size>5368709120</mark_cache_size>
        <path>/var/lib/x/</path>
        <host_name>ch-1</host_name>
        <listen_host>0.0.0.0</listen_host>
        <http_port>18123</http_port>
        <https_port>18443</https_port>
        <tcp_port>19000</tcp_port>
        <tcp_port_secure>19440</tcp_port_secure>
        <interserver_http_host>ch-1.internal</interserver_http_host>
        <interserver_http_port>19009</interserver_http_port>
        <max_connections>7</max_connections>
        <max_concurrent_queries>9</max_concurrent_queries>
        <umask>027</umask>
        <distributed_ddl_use_initial_user_and_roles>1</distributed_ddl_use_initial_user_and_roles>
        <openSSL><server>
            <certificateFile>server.crt</certificateFile>
            <privateKeyFile>/keys/server.key</privateKeyFile>
        </server></openSSL>
        """,
    )
    assert config.path == "/var/lib/x"
    assert (config.host_name, config.listen_host) == ("ch-1", "0.0.0.0")
    assert (config.http_port, config.https_port, config.tcp_port, config.tcp_port_secure) == (
        18123,
        18443,
        19000,
        19440,
    )
    assert (config.interserver_http_host, config.interserver_http_port) == ("ch-1.internal", 19009)
    assert (config.max_connections, config.max_concurrent_queries) == (7, 9)
    assert config.umask == 0o027
    assert config.uses_initial_user
    assert (config.certificate_file, config.private_key_file) == (
        str(tmp_path / "server.crt"),
        "/keys/server.key",
    )


def test_an_old_root_element_is_as_good(tmp_path: Path) -> None:
    path = write(tmp_path / "c.xml", "<?xml version='1.0'?>\n<yandex><http_port>1</http_port></yandex>")
    assert load_node_config(path).http_port == 1


def test_a_host_name_may_come_from_the_queue_section(tmp_path: Path) -> None:
    config = load(tmp_path, "<distributed_ddl><host_name>node07</host_name></distributed_ddl>")
    assert config.host_name == "node07"
    assert config.queues[0].host_name == "node07"


def test_relative_paths_begin_beside_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "<path>../data</path>").path == str(tmp_path.parent / "data")


def test_clusters_are_read_in_every_form(tmp_path: Path) -> None:
    topology = load(
        tmp_path,
        """
        <tcp_port>9100</tcp_port>
        <remote_servers>
            <c>
                <secret>s</secret>
                <allow_distributed_ddl_queries>false</allow_distributed_ddl_queries>
                <shard>
                    <weight>3</weight>
                    <internal_replication>1</internal_replication>
                    <replica>
                        <host>a</host><port>9001</port><default_database>d</default_database>
                        <user>u</user><password>p</password><secure>1</secure>
                    </replica>
                    <replica2><host>b</host><priority>3</priority></replica2>
                </shard>
                <shard02><replica><host>::1</host><port>1</port></replica></shard02>
            </c>
            <short><node><host>x</host><port>2</port><weight>0</weight></node><node2><host>y</host></node2></short>
        </remote_servers>
        <macros><shard>01</shard><empty/></macros>
        """,
    ).topology
    cluster = topology.cluster("c")
    first, second = cluster.shards
    assert (cluster.secret, cluster.allow_distributed_ddl_queries) == ("s", False)
    assert (first.number, first.weight, first.internal_replication) == (1, 3, True)
    assert (second.number, second.weight, second.internal_replication) == (2, 1, False)
    replica = first.replicas[0]
    assert (replica.host_id, replica.default_database, replica.user, replica.password, replica.secure) == (
        HostId("a", 9001),
        "d",
        "u",
        "p",
        True,
    )
    assert first.replicas[1].host_id == HostId("b", 9100)
    assert [replica.priority for replica in first.replicas] == [1, 3]
    assert second.replicas[0].host_id == HostId("::1", 1)
    short = topology.cluster("short")
    assert [(s.number, s.weight, s.replicas[0].host_id) for s in short.shards] == [
        (1, 0, HostId("x", 2)),
        (2, 1, HostId("y", 9100)),
    ]
    assert topology.macros == {"shard": "01", "empty": ""}


def test_zookeeper_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <zookeeper>
            <node index="1"><host>zk1</host><port>12181</port></node>
            <node index="2"><host>zk2</host></node>
            <session_timeout_ms>5000</session_timeout_ms>
            <operation_timeout_ms>1000</operation_timeout_ms>
            <root>/prod/ch/</root>
            <identity>user:pass</identity>
        </zookeeper>
        """,
    )
    assert config.zookeeper == ZooKeeper(
        (("zk1", 12181), ("zk2", 2181)), 5000, 1000, root="/prod/ch", identity="user:pass"
    )


def test_a_secure_zookeeper_takes_the_files_of_the_openssl_client_section(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <zookeeper><node><host>zk1</host><port>2281</port><secure>1</secure></node></zookeeper>
        <openSSL>
            <client>
                <caConfig>/etc/ca.pem</caConfig>
                <certificateFile>/etc/c.pem</certificateFile>
                <privateKeyFile>/etc/k.pem</privateKeyFile>
            </client>
        </openSSL>
        """,
    )
    assert config.zookeeper == ZooKeeper(
        (("zk1", 2281),),
        secure=True,
        ca_file="/etc/ca.pem",
        certificate_file="/etc/c.pem",
        private_key_file="/etc/k.pem",
    )


@pytest.mark.parametrize("section", ["zookeeper", "etcd"])
def test_relative_files_of_the_openssl_client_section_are_beside_the_configuration(
    tmp_path: Path, section: str
) -> None:
    body = f"""
        <{section}><node><host>k1</host><secure>1</secure></node></{section}>
        <openSSL>
            <client>
                <caConfig>ca.pem</caConfig>
                <certificateFile>tls/c.pem</certificateFile>
                <privateKeyFile>tls/k.pem</privateKeyFile>
            </client>
        </openSSL>
        """
    node = load(tmp_path, body)
    client = load_client_config(tmp_path / "config.xml")
    for found in (node.zookeeper, client.zookeeper):
        assert found is not None
        assert (found.ca_file, found.certificate_file, found.private_key_file) == (
            str(tmp_path / "ca.pem"),
            str(tmp_path / "tls/c.pem"),
            str(tmp_path / "tls/k.pem"),
        )


@pytest.mark.parametrize("section", ["zookeeper", "etcd"])
def test_a_host_may_be_an_address_of_ipv6_with_and_without_brackets(tmp_path: Path, section: str) -> None:
    nodes = "<node><host>[::1]</host><port>1</port></node><node><host>fe80::2</host><port>2</port></node>"
    load(tmp_path, f"<{section}>{nodes}</{section}>")
    keeper = load_client_config(tmp_path / "config.xml").zookeeper
    assert keeper is not None
    assert keeper.hosts == (("::1", 1), ("fe80::2", 2))
    assert keeper.connect_string == "[::1]:1,[fe80::2]:2"


def test_without_a_section_there_is_no_zookeeper_and_no_queue(tmp_path: Path) -> None:
    config = load(tmp_path, "<zookeeper incl='zk' optional='true'/>")
    assert (config.zookeeper, config.queues) == (None, ())


def test_a_queue_is_read_with_clickhouses_defaults(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <profiles><ddl><max_threads>1</max_threads></ddl></profiles>
        <distributed_ddl>
            <path>/q/ddl/</path>
            <profile>ddl</profile>
            <pool_size>2</pool_size>
            <task_max_lifetime>100</task_max_lifetime>
            <max_tasks_in_queue>0</max_tasks_in_queue>
        </distributed_ddl>
        """,
    )
    assert config.queues == (
        DistributedDdl(
            path="/q/ddl",
            profile="ddl",
            pool_size=2,
            task_max_lifetime_s=100,
            max_tasks_in_queue=1,
        ),
    )
    assert config.profiles == {"ddl": {"max_threads": "1"}}


def test_several_queues_are_several_sections_in_xml_and_a_list_in_yaml(tmp_path: Path) -> None:
    xml = load(
        tmp_path,
        """
        <distributed_ddl><path>/q/one</path></distributed_ddl>
        <distributed_ddl>
            <name>logs</name><path>/q/two</path><clusters>log_cluster, other</clusters>
        </distributed_ddl>
        """,
    )
    in_yaml = load_node_config(
        write(
            tmp_path / "c.yaml",
            """
            distributed_ddl:
              - path: /q/one
              - name: logs
                path: /q/two
                clusters: [log_cluster, other]
            """,
        )
    )
    assert xml.queues == in_yaml.queues
    assert [(q.name, q.path, q.clusters) for q in xml.queues] == [
        ("default", "/q/one", ()),
        ("logs", "/q/two", ("log_cluster", "other")),
    ]
    assert xml.queue_of("other").name == "logs"
    assert xml.queue_of("order_cluster").name == "default"


def test_a_cluster_without_a_queue_is_told_so(tmp_path: Path) -> None:
    config = load(tmp_path, "<distributed_ddl><clusters>a</clusters></distributed_ddl>")
    with pytest.raises(ConfigError, match=r"no <distributed_ddl> section for cluster 'b'") as caught:
        config.queue_of("b")
    assert caught.value.code == 139


# --- several files ------------------------------------------------------------------------------------------


def test_files_of_the_merge_directories_come_on_top_in_the_order_of_their_names(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config.xml",
        """
        <clickhouse>
            <http_port>1</http_port><tcp_port>1</tcp_port>
            <macros><a>1</a><b>1</b></macros>
            <zookeeper><node><host>old</host></node><root>/r</root></zookeeper>
        </clickhouse>
        """,
    )
    write(
        tmp_path / "config.d" / "10.xml",
        """
        <clickhouse>
            <http_port>2</http_port>
            <macros><b>2</b><c>2</c></macros>
            <zookeeper replace="replace"><node><host>new</host></node></zookeeper>
        </clickhouse>
        """,
    )
    write(tmp_path / "config.d" / "20.yaml", 'http_port: 3\ntcp_port: {"@remove": "1"}\n')
    write(tmp_path / "config.d" / "30.txt", "not a configuration")
    write(tmp_path / "config.d" / ".40.xml", "hidden")
    config = load_node_config(path)
    assert (config.http_port, config.tcp_port) == (3, 9000)
    assert config.topology.macros == {"a": "1", "b": "2", "c": "2"}
    assert config.zookeeper == ZooKeeper((("new", 2181),))


def test_repeated_elements_without_attributes_meet_in_their_order(tmp_path: Path) -> None:
    nodes = "<clickhouse><zookeeper>{}</zookeeper></clickhouse>"
    path = write(tmp_path / "c.xml", nodes.format("<node><host>a</host></node>" * 2))
    write(
        tmp_path / "c.d" / "x.xml",
        nodes.format("<node><port>1</port></node><node><port>2</port></node><node><host>c</host></node>"),
    )
    zookeeper = load_node_config(path).zookeeper
    assert zookeeper is not None
    assert zookeeper.hosts == (("a", 1), ("a", 2), ("c", 2181))


def test_repeated_elements_meet_one_to_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.xml",
        """
        <clickhouse><zookeeper>
            <node index="1"><host>a</host></node><node index="2"><host>b</host></node>
        </zookeeper></clickhouse>
        """,
    )
    write(
        tmp_path / "c.d" / "x.xml",
        """
        <clickhouse><zookeeper>
            <node index="2"><host>B</host></node><node index="3"><host>c</host></node>
        </zookeeper></clickhouse>
        """,
    )
    zookeeper = load_node_config(path).zookeeper
    assert zookeeper is not None
    assert [host for host, _ in zookeeper.hosts] == ["a", "B", "c"]


def test_included_text_may_replace_or_add(tmp_path: Path) -> None:
    write(
        tmp_path / "shared.xml",
        "<clickhouse><m><a>included</a></m><port>5</port><n><x>1</x></n></clickhouse>",
    )
    config = load(
        tmp_path,
        """
        <include_from>shared.xml</include_from>
        <http_port incl="port"/>
        <macros incl="m" replace="replace"><a>own</a></macros>
        """,
    )
    assert config.http_port == 5
    assert config.topology.macros == {"a": "included"}


def test_a_missing_inclusion_keeps_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(tmp_path, '<macros incl="nowhere"><a>own</a></macros>')
    assert config.topology.macros == {"a": "own"}
    assert "config.include_missing element=macros incl=nowhere" in caplog.text


def test_the_environment_fills_in(tmp_path: Path) -> None:
    body = '<http_port from_env="PORT"/><tcp_port from_env="NONE" optional="1">7</tcp_port>'
    assert load(tmp_path, body, environ={"PORT": "5"}).http_port == 5
    assert load(tmp_path, body, environ={"PORT": "5"}).tcp_port == 7
    with pytest.raises(
        ConfigError, match=r"config.xml:1: <http_port> takes the variable PORT, which is not set"
    ):
        load(tmp_path, body, environ={})


def test_overrides_win(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "<http_port>1</http_port><distributed_ddl><path>/a</path></distributed_ddl>",
        overrides={"http_port": "2", "distributed_ddl/path": "/b", "zookeeper/node/host": "zk"},
    )
    assert config.http_port == 2
    assert config.queues[0].path == "/b"
    assert config.zookeeper == ZooKeeper((("zk", 2181),))


# --- users --------------------------------------------------------------------------------------------------

_SHA256_OF_X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_users_and_profiles_are_read_from_their_own_file(tmp_path: Path) -> None:
    write(
        tmp_path / "users.xml",
        f"""
        <clickhouse>
            <profiles>
                <default><max_threads>4</max_threads></default>
                <reader><profile>default</profile><readonly>1</readonly></reader>
                <limited><allow_distributed_ddl>0</allow_distributed_ddl></limited>
            </profiles>
            <users>
                <default><no_password/></default>
                <plain><password>x</password><profile>reader</profile>
                    <networks><ip>10.0.0.0/8</ip><ip>::1</ip></networks></plain>
                <hashed><password_sha256_hex>{_SHA256_OF_X.upper()}</password_sha256_hex>
                    <profile>limited</profile><quota>some</quota></hashed>
            </users>
            <quotas><some>
                <interval><duration>60</duration><queries from_env="SOME"/></interval></some></quotas>
        </clickhouse>
        """,
    )
    write(tmp_path / "users.d" / "more.yaml", 'users: {guest: {password: ""}}\n')
    config = load(tmp_path, "<users_config>users.xml</users_config>", environ={"SOME": "5"})
    quota = config.users["hashed"].quota
    assert quota is not None
    assert [interval.limits for interval in quota.intervals] == [{QuotaAmount.QUERIES: 5}]
    assert config.users["default"].password_sha256_hex == ""
    assert config.users["guest"].password_sha256_hex == EMPTY_PASSWORD_SHA256
    assert config.users["plain"].password_sha256_hex == _SHA256_OF_X
    assert config.users["hashed"].password_sha256_hex == _SHA256_OF_X
    assert config.users["plain"].networks == ("10.0.0.0/8", "::1/128")
    assert config.users["default"].networks == ("::/0",)
    assert config.profiles["reader"] == {"max_threads": "4", "readonly": "1"}
    assert not config.users["hashed"].allow_distributed_ddl
    assert config.users["plain"].allow_distributed_ddl


def test_the_default_profile_holds_for_all_and_others_change_it(tmp_path: Path) -> None:
    text = """
        {default}
        <profiles>
            <default><max_threads>4</max_threads><max_block_size>7</max_block_size><readonly>1</readonly></default>
            <base><max_threads>5</max_threads></base>
            <child><profile>base</profile><readonly>0</readonly></child>
        </profiles>
        <users><ann><no_password/></ann><bob><no_password/><profile>child</profile></bob></users>
    """
    config = load(tmp_path, text.format(default=""))
    assert config.profiles["child"] == {"max_threads": "5", "max_block_size": "7", "readonly": "0"}
    assert (config.users["ann"].profile, config.users["bob"].profile) == ("default", "child")
    assert config.settings_of_log() == {"max_threads": "4", "max_block_size": "7"}
    assert config.settings_of_log("child") == config.profiles["child"]
    config = load(tmp_path, text.format(default="<default_profile>base</default_profile>"))
    assert config.profiles["child"] == {"max_threads": "5", "readonly": "0"}
    assert (config.users["ann"].profile, config.default_settings) == ("base", {"max_threads": "5"})


def test_constraints_are_those_of_the_profile_its_parents_and_the_default_one(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <profiles>
            <default><constraints><max_threads><min>2</min><max>8</max></max_threads></constraints></default>
            <base><constraints><readonly><const/></readonly></constraints></base>
            <child><profile>base</profile><constraints>
                <max_threads><max>4</max><disallowed>3</disallowed></max_threads>
                <readonly><changeable_in_readonly/></readonly>
            </constraints></child>
        </profiles>
        """,
    )
    assert config.constraints == {
        "default": {"max_threads": Constraint("2", "8")},
        "base": {"max_threads": Constraint("2", "8"), "readonly": Constraint(is_constant=True)},
        "child": {"max_threads": Constraint("2", "4", ("3",)), "readonly": Constraint()},
    }


def test_without_users_only_this_machine_gets_in(tmp_path: Path) -> None:
    users = load(tmp_path, "").users
    assert list(users) == ["default"]
    assert users["default"].networks == ("127.0.0.1/32", "::1/128")


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <users><u><password>hunter2</password></u></users>
        <zookeeper><node><host>z</host></node><identity>u:hunter2</identity></zookeeper>
        <remote_servers><c><secret>hunter2</secret><node><host>h</host><password>hunter2</password></node></c>
        </remote_servers>
        """,
    )
    assert "hunter2" not in repr(config)
    assert config.users["u"].password_sha256_hex not in repr(config)


def test_yaml_scalars_are_text_as_written(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.yaml", "macros: {shard: 01, replica: 1e3, on: yes, date: 2024-01-01, none: ~}\n"
    )
    assert load_topology(path).macros == {
        "shard": "01",
        "replica": "1e3",
        "on": "yes",
        "date": "2024-01-01",
        "none": "",
    }


def test_equal_addresses_are_noted_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ClickHouse's own sample has a cluster of two shards on localhost:9000."""
    node = "<shard><replica><host>localhost</host><port>9000</port>{}</replica></shard>"
    same = node.format("") * 2
    circular = "".join(node.format(f"<default_database>{d}</default_database>") for d in "ab")
    config = load(tmp_path, f"<remote_servers><same>{same}</same><ring>{circular}</ring></remote_servers>")
    assert len(config.topology.cluster("same").shards) == 2
    assert "config.duplicate_replica cluster=same host=localhost:9000" in caplog.text
    assert "cluster=ring" not in caplog.text
    assert config.topology.cluster("ring").is_circular
    assert not config.topology.cluster("same").is_circular


def test_credentials_of_the_interserver_port_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        <interserver_listen_host>::1</interserver_listen_host>
        <interserver_http_credentials>
            <user>parts</user><password>new</password><allow_empty>1</allow_empty>
            <old><user>parts</user><password>before</password></old>
            <old><user>legacy</user><password>x</password></old>
        </interserver_http_credentials>
        """,
    )
    assert config.interserver_listen_host == "::1"
    access = config.interserver_access
    assert access is not None
    assert (access.user, access.password, access.allow_empty) == ("parts", "new", True)
    assert access.old == (("parts", "before"), ("legacy", "x"))
    assert "new" not in repr(config)


def test_places_of_backups_are_trusted_by_name(tmp_path: Path) -> None:
    one, two = "https://b.example.com/", "http://127.0.0.1:9000/b/c/"
    places = f"<restore_from>{one}</restore_from><restore_from>{two}</restore_from>"
    assert load(tmp_path, f"<backups>{places}<allowed_disk>d</allowed_disk></backups>").trusted_backups == (
        one,
        two,
    )
    assert load(tmp_path, "").trusted_backups == ()


def test_the_interserver_port_needs_a_certificate_for_tls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="interserver_https_port"):
        load(tmp_path, "<interserver_https_port>9010</interserver_https_port>")
