"""Configuration files of a node."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from engine.config.load import load_node_config
from engine.config.model import NodeConfig


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def load(tmp_path: Path, body: str, **more: object) -> NodeConfig:
    """The node that a file with these elements describes."""
    return load_node_config(write(tmp_path / "config.xml", f"<clickhouse>{body}</clickhouse>"), **more)  # type: ignore[arg-type]
