"""SELECT over Distributed tables: each reference becomes a subquery that reads one replica of every shard."""

from engine.distributed.select.model import RemoteSelect, ShardSource, SourceColumn, SourceTable, TooLong
from engine.distributed.select.plan import Analyse, Plan, plan_select

__all__ = [
    "Analyse",
    "Plan",
    "RemoteSelect",
    "ShardSource",
    "SourceColumn",
    "SourceTable",
    "TooLong",
    "plan_select",
]
