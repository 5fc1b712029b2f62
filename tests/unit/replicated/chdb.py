"""chDB with a ZooKeeper of its own, as a node never has it: its Replicated tables write ClickHouse's znodes.

They stay read-only, since chDB has no address for other replicas: only CREATE can be asked of it, unless it
is told one (`tests/interop/replica_in_chdb.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from engine.config.model import ZooKeeper
from tests.unit.replication.graphite_support import SECTIONS

CHILD = """
import json, os, sys
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from chdb import _chdb
exec(sys.argv[2])
connection = _chdb.connect(sys.argv[1])
for line in sys.stdin:
    try:
        answer = {"text": connection.query(json.loads(line), "TabSeparatedRaw").bytes().decode()}
    except RuntimeError as error:
        answer = {"error": str(error)}
    answers.write(json.dumps(answer).encode() + b"\\n")
    answers.flush()
"""


class Clickhouse:
    """chDB in a child process. `before` is Python for that to run before chDB begins; `more` stands in its
    configuration."""

    def __init__(self, directory: Path, config: ZooKeeper, *, before: str = "", more: str = "") -> None:
        directory.mkdir()
        host, port = config.hosts[0]
        file = directory / "config.xml"
        file.write_text(
            f"<clickhouse><logger><level>fatal</level></logger><zookeeper><node><host>{host}</host>"
            f"<port>{port}</port></node><session_timeout_ms>{config.session_timeout_ms}</session_timeout_ms>"
            f"</zookeeper><background_schedule_pool_size>4</background_schedule_pool_size>"
            f"{SECTIONS}{more}</clickhouse>"
        )
        self._command = [sys.executable, "-c", CHILD, f"{directory / 'data'}?config-file={file}", before]
        self.start()
        self.query("CREATE DATABASE o ENGINE = Atomic")

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def answer(self, sql: str) -> dict[str, str]:
        """Its `text`, or its `error`. Raises OSError if the process has ended before."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(sql).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ConnectionError("chDB has ended")
        answer: dict[str, str] = json.loads(line)
        return answer

    def query(self, sql: str) -> str:
        answer = self.answer(sql)
        assert "error" not in answer, answer["error"]
        return answer["text"]

    def refusal(self, sql: str) -> str:
        try:
            self.query(sql)
        except AssertionError as error:
            return str(error)
        raise ValueError(f"not refused: {sql}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
