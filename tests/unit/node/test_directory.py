"""The node's data directory: what it may be, and whose."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.node.directory import NodeDirectory


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_without_hard_links_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The node started, and every insert into a replicated table failed."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        with pytest.raises(ConfigError, match="has no hard links"), NodeDirectory(tmp_path):
            pass
    with NodeDirectory(tmp_path):  # nobody holds the lock
        pass


def test_a_full_disk_is_no_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with NodeDirectory(tmp_path):
        assert sorted(path.name for path in tmp_path.rglob("lock*")) == ["lock"]
