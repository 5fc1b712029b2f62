"""A throw-away chDB in a process of its own, for rehearsals.

A process can open one chDB data directory, and rehearsed statements may be anything; so they run in a child
process on a temporary directory, which is removed at the end. The child ends when this process does: its
standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.errors import ReplyLost, SqlError
from engine.names import quote_string
from engine.sql import parse_statement
from engine.storage.guard import check_settings, check_statement

UNREACHABLE_CLUSTER = "cluster_of_a_scratch"
"""The only one: what has to be over a cluster can be made over it, and reads nothing."""
_LIMIT_BYTES = 64 << 20
_SCOPE = ": In scope SELECT formatQuerySingleLine("
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class ScratchChdb:
    """Use as an asynchronous context manager. `macros` are what `{name}` and `getMacro` find;
    `graphite` are sections of rollup rules, as XML."""

    def __init__(self, *, macros: Mapping[str, str] | None = None, graphite: Sequence[str] = ()) -> None:
        self._macros = dict(macros or {})
        self._graphite = list(graphite)
        self._directory: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Takes about half a second. Raises SqlError if chDB does not start."""
        self._directory = Path(tempfile.mkdtemp(prefix="oncluster-scratch-"))
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "engine.storage.scratch_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LIMIT_BYTES,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,  # some statements signal their whole process group
            )
            await self._ask(
                {
                    "path": str(self._directory / "data"),
                    "macros": self._macros,
                    "graphite": self._graphite,
                    "cluster": UNREACHABLE_CLUSTER,
                }
            )
        except BaseException:  # also a cancellation: the process must not be left running
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def query(
        self, sql: str, *, format: str = "TabSeparated", settings: Mapping[str, str] | None = None
    ) -> str:
        """The whole result as text. Raises SqlError; ReplyLost if chDB died of the statement."""
        check_statement(parse_statement(sql), sql)
        check_settings(settings or {})
        answer = await self._ask({"sql": sql, "format": format, "settings": dict(settings or {})})
        return str(answer["text"])

    async def execute(self, sql: str, *, settings: Mapping[str, str] | None = None) -> None:
        """Run a statement for its effect, under these settings. Raises as `query`."""
        await self.query(sql, format="Null", settings=settings)

    async def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """The result of a SELECT without FORMAT, every value as text. Raises as `query`."""
        text = await self.query(sql, format="JSONCompactStringsEachRow")
        return [json.loads(line) for line in text.splitlines()]

    async def validate(self, sql: str) -> str:
        """What ClickHouse's parser makes of `sql`, however long it is, on one line. Raises SqlError 62."""
        question = f"SELECT formatQuerySingleLine({quote_string(sql)})"
        try:
            text = await self.query(question, format="TSVRaw", settings={"max_query_size": "0"})
        except SqlError as error:
            # "In scope SELECT …" repeats all of `sql`, within a literal where nobody finds its secrets.
            error.message = error.message.partition(_SCOPE)[0]
            raise
        return text.rstrip("\n")

    async def close(self) -> None:
        """End the process and remove its directory. May be called twice."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()  # nothing in there is worth an orderly end
            await process.wait()
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        async with self._lock:
            process = self._process
            if process is None or process.stdin is None or process.stdout is None:
                raise ReplyLost("The scratch chDB is closed.")
            process.stdin.write(json.dumps(question).encode() + b"\n")
            try:
                await process.stdin.drain()
                line = await process.stdout.readline()
            except (BrokenPipeError, ConnectionResetError):
                line = b""
            except asyncio.CancelledError:
                process.kill()  # or the next question would get this one's answer
                raise
            if not line:
                code = await process.wait()
                raise ReplyLost(
                    f"The scratch chDB ended (exit code {code}) while it ran a statement.",
                    hint="Look at the statement that was under way.",
                )
        answer: dict[str, Any] = json.loads(line)
        if "code" in answer:
            raise SqlError(answer["code"], answer["message"], name=answer["name"], hint=answer["hint"])
        return answer


def _python_path() -> str:
    rest = os.environ.get("PYTHONPATH", "")
    return f"{_PACKAGE_ROOT}{os.pathsep}{rest}" if rest else str(_PACKAGE_ROOT)
