"""engine.config.load: what is refused, with its place and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.load import load_node_config
from engine.errors import ConfigError
from tests.unit.config.support import load, write


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "<http_port>eighty</http_port>",
            r"config.xml:1: <http_port> is 'eighty'. Write a whole number from 0 to 65535",
        ),
        ("<http_port>70000</http_port>", r"<http_port> is '70000'"),
        (f"<http_port>{'1' * 5000}</http_port>", r"<http_port> is '1111"),
        ("<distributed_ddl><pool_size>²</pool_size></distributed_ddl>", "<pool_size> is '²'. Write a whole"),
        (
            "<distributed_ddl><pool_size>--1</pool_size></distributed_ddl>",
            "<pool_size> is '--1'. Write a whole",
        ),
        ("<tcp_port>0</tcp_port>", r"<tcp_port> is '0'. Write a whole number from 1"),
        ("<umask>0o27</umask>", r"<umask> is '0o27'. Write an octal number from 000 to 777"),
        ("<umask>28</umask>", r"<umask> is '28'"),
        ("<max_connections>-1</max_connections>", r"<max_connections> is '-1'"),
        ("\n<remote_servers><c/></remote_servers>", r"config.xml:2: cluster <c> has no shards"),
        ("<remote_servers><c><shard/></c></remote_servers>", "a shard without replicas"),
        ("<remote_servers><c><node/></c></remote_servers>", "<node> needs <host>"),
        (
            "<remote_servers><c><chard/></c></remote_servers>",
            r"unknown element <chard> in <c>. Known are: allow_distributed_ddl_queries, node, secret, shard",
        ),
        (
            "<remote_servers><c><shard><wait>1</wait></shard></c></remote_servers>",
            r"unknown element <wait> in <shard>. Known are: internal_replication, name, replica, weight",
        ),
        (
            "<remote_servers><c><shard><weight>-1</weight><replica><host>h</host></replica></shard></c></remote_servers>",
            "<weight> is '-1'",
        ),
        (
            (
                "<remote_servers><c><shard><internal_replication>maybe</internal_replication>"
                "<replica><host>h</host></replica></shard></c></remote_servers>"
            ),
            "<internal_replication> is 'maybe'. Write true or false",
        ),
        (
            "<http_addresses><address><host>h</host><http-port>1</http-port></address></http_addresses>",
            "unknown element <http-port> in <address>. Known are: host, http_host, http_port, port",
        ),
        ("<remote_servers><c><discovery/></c></remote_servers>", "<discovery>, which is not supported"),
        (
            "<remote_servers><c><node><host>h</host></node></c><c><node><host>h</host></node></c></remote_servers>",
            "cluster <c> is given twice",
        ),
        ("<zookeeper><root>/x</root></zookeeper>", "names no server"),
        ("<zookeeper><node><host>h</host></node><root>x</root></zookeeper>", "<root> of <zookeeper> is 'x'"),
        (
            "<zookeeper><node><host>h</host><secure>1</secure></node><node><host>i</host></node></zookeeper>",
            "<secure> is set for some servers",
        ),
        ("<zookeeper><node><host>h</host></node><identity>x</identity></zookeeper>", "user:password"),
        (
            "<distributed_ddl><path>relative</path></distributed_ddl>",
            "<path> of <distributed_ddl> is 'relative'",
        ),
        (
            "<distributed_ddl><pool_size>0</pool_size></distributed_ddl>",
            "<pool_size> should be greater than 0",
        ),
        ("<distributed_ddl><pfad>/x</pfad></distributed_ddl>", "unknown element <pfad>.*task_max_lifetime"),
        ("<distributed_ddl><profile>p</profile></distributed_ddl>", "profile 'p', which does not exist"),
        ("<distributed_ddl/><distributed_ddl><name>b</name></distributed_ddl>", "the same path"),
        (
            "<distributed_ddl><path>/a</path></distributed_ddl><distributed_ddl><path>/b</path></distributed_ddl>",
            "both name no clusters",
        ),
        (
            (
                "<distributed_ddl><path>/a</path><clusters>c</clusters></distributed_ddl>"
                "<distributed_ddl><path>/b</path><clusters>c</clusters></distributed_ddl>"
            ),
            "cluster 'c' belongs to the queues 'default' and 'queue2'",
        ),
        ("<users><u/></users>", "user 'u' has no password. Give exactly one of"),
        (
            "<users><u><password>x</password><no_password/></u></users>",
            "user 'u' has <password> and <no_password>",
        ),
        (
            "<users><u><password_double_sha1_hex>x</password_double_sha1_hex></u></users>",
            "not supported: the HTTP interface checks SHA-256 digests only",
        ),
        ("<users><u><ldap/></u></users>", "external authentication is not built in"),
        (
            "<backups><restore_from>https://b</restore_from></backups>",
            "<restore_from> is 'https://b'. Write an",
        ),
        ("<backups><restore_from>https://a@b/</restore_from></backups>", "<restore_from> is 'https://a@b/'"),
        (
            "<users><u><password/><allow_databases><database>a</database></allow_databases></u></users>",
            "<allow_databases> of user 'u' is not supported: every user of a node reads all of its databases",
        ),
        (
            "<users><u><password/><grants><query>GRANT SELECT ON a.*</query></grants></u></users>",
            "<grants> of user 'u' is not supported",
        ),
        (
            (
                "<users><u><password/><grants><query>GRANT ALL ON *.*</query>"
                "<query>REVOKE SELECT ON a.*</query></grants></u></users>"
            ),
            "<grants> of user 'u' is not supported",
        ),
        (
            "<users><u><password/><databases><a><t><filter>x = 1</filter></t></a></databases></u></users>",
            "<databases> of user 'u' is not supported",
        ),
        ("<users><u><password_sha256_hex>xyz</password_sha256_hex></u></users>", "is not 64 hex digits"),
        ("<users><u><no_password/><profile>p</profile></u></users>", "profile 'p', which does not exist"),
        (
            "<profiles><a><constraints><max_threads><most>3</most></max_threads></constraints></a></profiles>",
            "<most> is no constraint of a setting",
        ),
        ("<default_profile>p</default_profile><profiles><a/></profiles>", "is 'p', which does not exist"),
        ("<users><u><no_password/><networks><ip>x</ip></networks></u></users>", "<ip> is 'x'"),
        (
            "<users><u><no_password/><networks><host>h</host></networks></u></users>",
            "<host> in <networks> of user 'u' is not supported",
        ),
        (
            "<profiles><a><profile>b</profile></a><b><profile>a</profile></b></profiles>",
            "inherits from itself",
        ),
        ("<https_port>8443</https_port>", "<https_port> needs a certificate"),
        (
            "<openSSL><server><certificateFile>x</certificateFile></server></openSSL>",
            "lacks <privateKeyFile>",
        ),
        ("<macros from_zk='/y'/>", "is not supported"),
        ("<include_from>nowhere.xml</include_from>", "nowhere.xml: cannot be read: No such file"),
        ("<a><b></a>", "not well-formed XML"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_would_be_right(
    tmp_path: Path, body: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(tmp_path, body)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "text", ['include_from: "a\\0b"', 'path: {"@a": "\\0"}', '"a\\0": 1', 'a: {"#text": "\\0"}']
)
def test_a_zero_byte_in_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "config.yaml", text)
    with pytest.raises(ConfigError, match=r"config\.yaml:1: a text has a zero byte in it"):
        load_node_config(path)


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE x [<!ENTITY a "b">]><clickhouse><path>&a;</path></clickhouse>',
        '<!DOCTYPE x SYSTEM "file:///etc/passwd"><clickhouse/>',
        '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><clickhouse>&a;</clickhouse>',
        '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><clickhouse>&b;</clickhouse>',
    ],
)
def test_entities_and_document_types_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="document types and entities are refused"):
        load_node_config(write(tmp_path / "c.xml", text))


@pytest.mark.slow
def test_yaml_aliases_cannot_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: y}"] + [
        f"a{i}: &a{i} {{b: *a{i - 1}, c: *a{i - 1}, d: *a{i - 1}, e: *a{i - 1}}}" for i in range(1, 30)
    ]
    with pytest.raises(ConfigError, match="too many elements"):
        load_node_config(write(tmp_path / "c.yaml", "\n".join(lines)))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("c.yaml", "a: [", "not well-formed YAML"),
        ("c.yaml", "a: [1, 2\nb: {", r"c\.yaml:2:2: not well-formed YAML: expected ',' or '\]', but got ':'"),
        ("c.yaml", "- a", "a mapping is needed"),
        ("c.yaml", "a: " + "{a: " * 2000 + "1" + "}" * 2000, "nested more than 64 deep"),
        ("c.yaml", "a: [[1]]", "a list within a list"),
        ("c.yaml", "x: &x {a: 1}\ny: {<<: *x}", "merge keys"),
        ("c.yaml", "a: &a {b: *a}", "too many elements"),
        ("c.xml", "<server/>", "the root element is <server>. It has to be one of <clickhouse>, <yandex>"),
        ("c.xml", "", "not well-formed XML"),
        ("c.ini", "[x]", r"unknown kind of configuration file. Use one of the suffixes \.xml, "),
        ("c.xml", "<clickhouse>" + "<a>" * 100 + "</a>" * 100 + "</clickhouse>", "nested more than 64 deep"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_node_config(write(tmp_path / name, text))


@pytest.mark.parametrize(
    "password",
    ['"hunter2', "hunter2: x", "@hunter2", "*hunter2", "%hunter2", '"\\hunter2"', "[hunter2", "'a'hunter2"],
)
def test_yaml_that_cannot_be_read_is_placed_and_not_quoted(tmp_path: Path, password: str) -> None:
    """A password with one of YAML's characters is the usual reason, and messages go into logs."""
    text = f"users:\n  default:\n    password: {password}\n    profile: default\n"
    with pytest.raises(ConfigError, match=r"c\.yaml:[345]:\d+: not well-formed YAML: \w") as caught:
        load_node_config(write(tmp_path / "c.yaml", text))
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert "quotes" in caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.xml: cannot be read: No such file or directory"):
        load_node_config(tmp_path / "none.xml")
