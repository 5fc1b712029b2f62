"""Health: what the command line makes of reports and figures, and the limits of the configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.health import exit_code_for, samples_for
from engine.cli.health_show import sparkline
from engine.cli.main import cli
from engine.config.health_model import HealthSettings, TableLimits
from engine.config.load import load_node_config
from engine.errors import ConfigError
from engine.names import TableName
from engine.operations.finding import FindingKind, Severity
from engine.operations.health import Metric
from engine.operations.records import Sample
from engine.ports import free_ports
from tests.unit.operations.support import CLUSTER, simulated, site

RUNBOOKS = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
OF_OTHERS = {FindingKind.SCHEMA_DRIFT}


def settings(tmp_path, body, *, suffix="xml"):
    file = tmp_path / f"config.{suffix}"
    file.write_text(body)
    return load_node_config(file).health


def xml(body):
    return f"<clickhouse><oncluster><health>{body}</health></oncluster></clickhouse>"


def test_without_a_section_the_defaults_hold(tmp_path):
    assert settings(tmp_path, "<clickhouse/>") == HealthSettings()
    assert settings(tmp_path, "<clickhouse><oncluster/></clickhouse>") == HealthSettings()


def test_limits_are_read_from_xml_and_yaml_alike(tmp_path):
    from_xml = settings(
        tmp_path,
        xml(
            "<queue_size>50</queue_size><disk_free_percent>off</disk_free_percent>"
            "<table><pattern>logs.*</pattern><min_replicas>off</min_replicas></table>"
        ),
    )
    from_yaml = settings(
        tmp_path,
        "oncluster:\n  health:\n    queue_size: 50\n    disk_free_percent: 'off'\n"
        "    table:\n      - pattern: 'logs.*'\n        min_replicas: 'off'\n",
        suffix="yaml",
    )
    assert from_xml == from_yaml
    assert from_xml.disk_free_percent is None
    assert from_xml.of(TableName("shop", "t")) == TableLimits(queue_size=50)
    assert from_xml.of(TableName("logs", "t")) == TableLimits(queue_size=50, min_replicas=None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "<queue_sice>1</queue_sice>",
            "unknown element <queue_sice> in <health>. Known are: absolute_delay_s",
        ),
        ("<queue_size>many</queue_size>", "or off to leave the check out"),
        ("<queue_size>-1</queue_size>", "Write a whole number from 0 up"),
        ("<repair_limit>off</repair_limit>", "Write a whole number from 1 up."),
        ("<disk_free_percent>101</disk_free_percent>", "from 0 to 100"),
        ("<disk_critical_percent>20</disk_critical_percent>", "20 is more than <disk_free_percent> 15"),
        ("<table><queue_size>1</queue_size></table>", "<table> needs <pattern>"),
        ("<table><pattern>orders</pattern><queue_size>1</queue_size></table>", "database.table"),
        ("<table><pattern>a.*</pattern></table>", "changes no limit"),
        ("<table><pattern>a.*</pattern><ddl_age_s>1</ddl_age_s></table>", "unknown element <ddl_age_s>"),
    ],
)
def test_wrong_limits_are_refused_with_what_is_right(tmp_path, body, says):
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, xml(body))
    assert says in str(refused.value)
    assert "config.xml:1" in str(refused.value)


def test_the_exit_code_says_how_bad_it_is():
    codes = [
        int(exit_code_for(worst)) for worst in (None, Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    ]
    assert codes == [0, 0, 10, 20]


def test_bars_show_the_way_of_a_figure():
    assert sparkline([0, 7, 3.5]) == "▁█▄"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([]) == ""
    many = sparkline(list(range(600)))
    assert (len(many), many[0], many[-1]) == (60, "▁", "█")


def test_a_table_is_at_0_whenever_its_host_was_looked_at_and_it_has_no_figure(tmp_path):
    async def main(env, server):
        where = site(tmp_path, env, None)
        now = where.records.now_ms()
        where.records.add_samples(
            CLUSTER,
            [
                *(Sample(Metric.QUEUE_SIZE, 9, "n1:9000", "", now + at) for at in range(3)),
                Sample(Metric.QUEUE_SIZE, 9, "n1:9000", "d.t", now + 1),
                Sample(Metric.QUEUE_SIZE, 1, "n2:9000", "", now),
            ],
        )
        return samples_for(where, Metric.QUEUE_SIZE, host=None, table="d.t", hours=1)

    assert [(s.host, s.subject, s.value) for s in simulated(main)] == [
        ("n1:9000", "d.t", 0),
        ("n1:9000", "d.t", 9),
        ("n1:9000", "d.t", 0),
    ]


def test_an_unknown_cluster_is_refused_with_the_names_of_those_there_are(tmp_path):
    file = tmp_path / "config.xml"
    file.write_text(
        "<clickhouse><remote_servers><shop><shard><replica><host>n1</host><port>9000</port></replica></shard>"
        "</shop></remote_servers></clickhouse>"
    )
    arguments = ["--config", str(file), "--records-url", str(tmp_path / "r.db"), "--cluster", "shoop"]
    result = CliRunner().invoke(cli, ["health", "check", *arguments])
    assert result.exit_code == 5
    assert "Known clusters: shop" in result.stderr


@pytest.mark.parametrize("command", [["health", "check"], ["drift", "check"]])
def test_what_cannot_be_recorded_is_shown_all_the_same(command, tmp_path):
    [node, keeper] = free_ports(2)
    file = tmp_path / "config.xml"
    file.write_text(
        "<clickhouse><remote_servers><shop><shard><replica><host>127.0.0.1</host>"
        f"<http_port>{node}</http_port></replica></shard></shop></remote_servers>"
        f"<zookeeper><node><host>127.0.0.1</host><port>{keeper}</port></node></zookeeper>"
        "<distributed_ddl><path>/ddl</path></distributed_ddl></clickhouse>"
    )
    (tmp_path / "no folder").touch()
    records = str(tmp_path / "no folder" / "records.db")
    arguments = ["--config", str(file), "--records-url", records, "--patience", "0.1", "--json"]

    result = CliRunner().invoke(cli, [*command, *arguments])
    assert result.exit_code == 4
    assert json.loads(result.stderr)["error"]["kind"] == "RecordsUnavailable"
    assert "127.0.0.1" in json.dumps(json.loads(result.stdout))

    shown = CliRunner().invoke(cli, ["cluster", "show", *arguments[:-1]])
    assert (
        shown.exit_code == 0 and f"The records at sqlite+pysqlite:///{records} cannot be used" in shown.stdout
    )
    if command[0] == "health":  # and where nothing is to be recorded, nobody asks for a database
        result = CliRunner().invoke(cli, [*command, *arguments, "--no-record"])
        assert (result.exit_code, result.stderr) == (20, "")


def test_the_cluster_may_be_named_by_the_environment(tmp_path):
    file = tmp_path / "config.xml"
    node = "<shard><replica><host>h</host></replica></shard>"
    file.write_text(
        f"<clickhouse><remote_servers><one>{node}</one><two>{node}</two></remote_servers></clickhouse>"
    )
    records = str(tmp_path / "records.db")
    command = ["health", "findings", "--config", str(file), "--records-url", records, "--json"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 5
    assert "--cluster, or in $ONCLUSTER_CLUSTER: one, two" in result.stderr
    named = CliRunner(env={"ONCLUSTER_CLUSTER": "tow"})
    assert "'tow'" in named.invoke(cli, command).stderr
    assert "'three'" in named.invoke(cli, [*command, "--cluster", "three"]).stderr


@pytest.mark.parametrize("kind", sorted(set(FindingKind) - OF_OTHERS))
def test_every_kind_of_finding_has_its_page(kind):
    page = RUNBOOKS / f"{kind.value}.md"
    assert page.read_text().startswith(f"# {kind.value}: ")
    assert f"({kind.value}.md)" in (RUNBOOKS / "index.md").read_text()
