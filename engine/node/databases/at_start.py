"""The definitions in Replicated databases before replicated tables begin to follow their own logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from engine.node.databases.catalog import DatabaseCatalog
from engine.node.databases.texts import raw_texts
from engine.storage.layout import private_directory

TextsAtStart = Mapping[UUID, Mapping[str, str]]
"""chDB's own texts by table's name, by database."""


def catalog_of(path: Path) -> DatabaseCatalog:
    """`path` is the node's data."""
    return DatabaseCatalog(private_directory(path) / "databases")


def texts_at_start(path: Path) -> TextsAtStart:
    """By them a database knows its digest again where such a table was altered before its session began.
    Raises Corrupt."""
    return {record.uuid: raw_texts(path, record.name) for record in catalog_of(path).load()}
