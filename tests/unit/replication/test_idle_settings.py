"""Settings that a replicated table takes and does not follow: the list, the page and the log say the same."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from pathlib import Path

import pytest

from engine.names import TableName
from engine.replication.idle_settings import IDLE_SETTINGS, note_idle
from engine.replication.settings import ReplicatedSettings

PAGE = Path(__file__).parents[3] / "docs/concepts/replication-settings.md"


def test_the_page_lists_them() -> None:
    _, _, listed = PAGE.read_text().partition("## Taken and without effect")
    rows = [line.split(" | ")[1] for line in listed.splitlines() if line.startswith("|") and "`" in line]
    names = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert len(names) == len(set(names))
    assert set(names) == IDLE_SETTINGS


def test_none_is_followed_all_the_same() -> None:
    assert not IDLE_SETTINGS & {field.name for field in fields(ReplicatedSettings)}


def test_the_log_names_those_of_a_table(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        note_idle(TableName("d", "t"), ["index_granularity"])
        assert not caplog.messages
        note_idle(TableName("d", "t"), ["merge_selector_algorithm", "index_granularity", "assign_part_uuids"])
    assert caplog.messages == [
        "replication.settings_without_effect table=d.t settings=assign_part_uuids,merge_selector_algorithm"
    ]
