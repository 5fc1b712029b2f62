"""The chDB of a Spark worker's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import os
from spark_apps.clickhouse_cluster.split import chdb_query
os.write(1, chdb_query("SELECT sum(number) FROM numbers(1000)", "TabSeparated"))
os._exit(0)
"""


@pytest.mark.slow
def test_a_worker_that_is_ended_without_warning_leaves_no_files_of_chdb(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    answer = subprocess.run(
        [sys.executable, "-c", WORKER], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout

    assert answer == b"499500\n"
    assert list(tmp_path.iterdir()) == []
