"""Workloads and resources are made again right after chDB has started.

chDB writes them to files, as a server does, and starts without a look at them: they had no effect then, could
not be dropped (36, "doesn't exist") nor made again (36, "already exists"). Nothing is changed by making them
again: each file gets the text that it has.

Source: ClickHouse's WorkloadEntityDiskStorage.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from engine.errors import SqlError

log = logging.getLogger(__name__)

_CREATE = re.compile(r"\s*CREATE\s+(WORKLOAD|RESOURCE)\b", re.IGNORECASE)


def make_workloads(path: Path, query: Callable[[str], str]) -> None:
    """One names others, so each is tried until none is left that can be made; those are named in the log, and
    their files stay. Raises OSError."""
    left = {file: file.read_text("utf-8", "surrogateescape") for file in sorted(path.glob("workload/*.sql"))}
    while left:
        errors: dict[Path, str] = {}
        for file, text in left.items():
            replacing, found = _CREATE.subn(r"CREATE OR REPLACE \1", text, count=1)
            try:
                if not found:
                    raise SqlError(62, "Not the definition of a workload or a resource")
                query(replacing)
            except SqlError as failed:
                errors[file] = failed.message
        if len(errors) == len(left):
            for file, error in errors.items():
                log.critical("storage.workload_not_loaded file=%s error=%s", file, error)
            return
        left = {file: left[file] for file in errors}
