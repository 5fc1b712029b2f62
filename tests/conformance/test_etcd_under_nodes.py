"""The command line with a configuration whose Keeper is an etcd, and two node processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from tests.conformance.nodes_support import ask
from tests.conformance.test_etcd_in_use import two_nodes as two_nodes  # a fixture

pytestmark = pytest.mark.slow
COUNTED = "CREATE TABLE counted (k UInt8, v UInt64) ENGINE = MergeTree ORDER BY k"


def oncluster(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    environ = {
        "ONCLUSTER_CONFIG": str(tmp_path / "n1.xml"),
        "ONCLUSTER_LEDGER_URL": str(tmp_path / "ledger.db"),
        "ONCLUSTER_HOME": str(tmp_path),
    }
    result = CliRunner(env=environ).invoke(cli, [*arguments, "--json"])
    return result.exit_code, result.output


def test_the_command_line_submits_waits_and_migrates_over_etcd(tmp_path, two_nodes):
    code, output = oncluster(tmp_path, "ddl", "submit", COUNTED, "--cluster", "all", "--token", "one")
    assert code == 0, output
    code, output = oncluster(tmp_path, "ddl", "wait", "--token", "one")
    assert code == 0, output
    assert {host["host"] for host in json.loads(output)["status"]["hosts"]} == {"n1", "n2"}

    folder = tmp_path / "migrations" / "all"
    folder.mkdir(parents=True)
    (folder / "0001_column.up.sql").write_text("ALTER TABLE default.counted ADD COLUMN c UInt8")
    (folder / "0001_column.down.sql").write_text("ALTER TABLE default.counted DROP COLUMN c")
    migrate = (
        "migrate",
        "apply",
        "--dir",
        str(tmp_path / "migrations"),
        "--cluster",
        "all",
        "--no-rehearse",
    )
    for _ in range(2):  # the second finds that nothing is to be done
        code, output = oncluster(tmp_path, *migrate)
        assert code == 0, output
    for port in two_nodes:
        assert ask(port, "SELECT name FROM system.columns WHERE table = 'counted'").split() == ["k", "v", "c"]
