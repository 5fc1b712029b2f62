"""SELECT over Distributed tables: each reference becomes a subquery that reads one replica of every shard."""

from engine.distributed.select.model import (
    IS_CHECKED,
    RemoteSelect,
    ShardSource,
    SourceColumn,
    SourceTable,
    TooLong,
)
from engine.distributed.select.on_shards import USUAL, Merging, Spread
from engine.distributed.select.plan import Analyse, Analysis, Plan, analyse_select, fill, plan_select

__all__ = [
    "IS_CHECKED",
    "USUAL",
    "Analyse",
    "Analysis",
    "Merging",
    "Plan",
    "RemoteSelect",
    "ShardSource",
    "SourceColumn",
    "SourceTable",
    "Spread",
    "TooLong",
    "analyse_select",
    "fill",
    "plan_select",
]
