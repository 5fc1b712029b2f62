"""Who may read what a process made."""

from __future__ import annotations

import stat
from pathlib import Path


def open_to_others(directory: Path) -> set[Path]:
    """What group or others may do anything with, in a directory; symbolic links have no say."""
    files = list(directory.rglob("*"))
    assert files, f"nothing was made in {directory}"
    modes = {file: file.lstat().st_mode for file in files}
    return {file for file, mode in modes.items() if mode & 0o077 and not stat.S_ISLNK(mode)}
