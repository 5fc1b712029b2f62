"""The parts of replicated tables on chDB.

    store = await ChdbPartStore.open(pool, table, uuid)
    await store.load()

`ChdbPartStore` is the table of contents; each of its methods leads to one module.
"""

from engine.part_storage.disk import Durability
from engine.part_storage.hidden_settings import (
    HIDDEN_SETTINGS,
    settings_of,
    with_hidden_settings,
    with_settings,
    without_hidden_settings,
)
from engine.part_storage.insert_stage import InsertStage
from engine.part_storage.plain_source import open_plain
from engine.part_storage.store import ChdbPartStore
from engine.part_storage.table_state import FoundTable
from engine.part_storage.workers import LIKE_ONE_FOR_THE_SESSION, LIKE_ONE_THAT_IS_THERE, SCRATCH_DATABASE

__all__ = [
    "HIDDEN_SETTINGS",
    "LIKE_ONE_FOR_THE_SESSION",
    "LIKE_ONE_THAT_IS_THERE",
    "SCRATCH_DATABASE",
    "ChdbPartStore",
    "Durability",
    "FoundTable",
    "InsertStage",
    "open_plain",
    "settings_of",
    "with_hidden_settings",
    "with_settings",
    "without_hidden_settings",
]
