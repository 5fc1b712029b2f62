"""Running a benchmark's servers: what was started is stopped on Ctrl-C and SIGTERM, too."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.cli.exits import ExitCode, Terminated
from engine.cli.running import run_async

T = TypeVar("T")


def run_benchmark(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. Exits with 143 after SIGTERM; raises KeyboardInterrupt. Its clean-up has run then."""
    try:
        return run_async(work)
    except Terminated:
        sys.exit(ExitCode.TERMINATED)
