"""Replicated tables as SQL sees them: what of a statement is replication's and not chDB's.

`runtime` knows the tables that run; `statements` is where handlers meet; each other module is one family of
statements.
"""

from engine.node.replicated.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.statements import ReplicatedStatements, StatementHandlers

__all__ = ["ReplicatedStatements", "ReplicatedTables", "RunningTable", "StatementHandlers"]
