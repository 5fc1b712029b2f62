"""Nodes of tests start from a process that has imported what they need; one for each worker of pytest."""

from __future__ import annotations

from engine.testing.launch import Launched, Program
from engine.testing.warm import WarmPython

_NODES = WarmPython("engine.cli.node", "engine.node.wiring", "engine.storage.chdb_module:load_chdb")


def warm(program: Program, output: int) -> Launched:
    """For `launch=`, wherever a test is not about a start itself or about memory."""
    return _NODES.launch(program, output)


def close() -> None:
    _NODES.close()
