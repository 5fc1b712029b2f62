"""Replicated tables as SQL sees them: what of a statement is replication's and not chDB's.

    running       which tables there are, and their replicas' life; `statements` is where handlers meet
    definitions   CREATE, ATTACH, RENAME, DROP, conversions, SHOW
    parts         ALTER, mutations, OPTIMIZE, CHECK, partitions
    rows          INSERT, the views in front and behind, consistent reads

Each imports only from those above it, `parts` and `rows` not from each other. `assembly` puts them together.
"""

from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import ReplicatedStatements, StatementHandlers

__all__ = ["ReplicatedStatements", "ReplicatedTables", "RunningTable", "StatementHandlers"]
