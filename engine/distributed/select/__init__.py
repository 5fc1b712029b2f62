"""SELECT over Distributed tables: each reference becomes a subquery that reads one replica of every shard."""

from engine.distributed.select.model import (
    IS_CHECKED,
    RemoteSelect,
    ShardSource,
    SourceColumn,
    SourceTable,
    TooLong,
)
from engine.distributed.select.plan import (
    Analyse,
    Analysis,
    Plan,
    analyse_select,
    fill,
    over_nothing,
    plan_select,
)
from engine.distributed.select.spread import USUAL, Merging, Spread

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
    "over_nothing",
    "plan_select",
]
