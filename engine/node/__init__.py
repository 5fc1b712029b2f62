"""One node: chDB, the HTTP interface, the DDL queue's worker, in one process."""

from engine.node.run import run_node

__all__ = ["run_node"]
