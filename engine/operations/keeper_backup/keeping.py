"""A folder of backups: their names, and which of them are kept.

Safety argument. Only finished files that bear a name of ours are ever removed, the oldest by name (which is
the time of their making), and only when each of those that are kept passes its check: a folder whose newest
backups are damaged keeps all it has. Unfinished files stay: the next call continues them.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from pathlib import Path

from engine.errors import Refused
from engine.operations.keeper_backup.finished import open_backup

SUFFIX = ".keeper.zst"
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9]+")
_PLAIN_ROOT = re.compile(r"(?:/[A-Za-z0-9]+){0,10}\Z|/\Z")
_SHOWN_CHARS = 100
_NAME = re.compile(r"(.+)-\d{8}T\d{6}Z" + re.escape(SUFFIX) + r"\Z")


def label_of(root: str) -> str:
    """For backups of different roots in one folder: `keeper`, `keeper-clickhouse-tables`. What would be lost
    of a root (`/a_b`, `/a-b`) is in a digest at the end: one root's backups are never taken for another's."""
    label = "-".join(["keeper", *_NOT_IN_LABELS.sub(" ", root).split()])
    if _PLAIN_ROOT.match(root) and len(label) <= _SHOWN_CHARS:
        return label
    return f"{label[:_SHOWN_CHARS]}-{hashlib.sha256(root.encode()).hexdigest()[:8]}"


def backup_name(label: str, now_s: float) -> str:
    """`<label>-20261122T031500Z.keeper.zst`, in UTC: names sort by time."""
    at = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return f"{label}-{at:%Y%m%dT%H%M%SZ}{SUFFIX}"


def backups_in(folder: Path, label: str = "") -> list[Path]:
    """The finished backups with names of ours, the oldest first; of one label, or of all."""
    found = []
    for path in folder.iterdir():
        match = _NAME.match(path.name)
        if match and path.is_file() and label in ("", match.group(1)):
            found.append(path)
    return sorted(found, key=lambda path: path.name.removesuffix(SUFFIX)[-16:])


def unfinished_in(folder: Path, label: str) -> Path | None:
    """The name of the newest backup of a label that was begun and not finished: giving it again continues."""
    parts = sorted(folder.glob(f"*{SUFFIX}.part"))
    names = [path.with_name(path.name.removesuffix(".part")) for path in parts]
    own = [path for path in names if (match := _NAME.match(path.name)) and match.group(1) == label]
    return own[-1] if own else None


def prune_backups(folder: Path, *, keep: int, label: str = "") -> list[Path]:
    """Remove all but the newest `keep`; what was removed. Raises Corrupt when one that is kept is damaged."""
    if keep < 1:
        raise Refused("At least one backup is kept.")
    found = backups_in(folder, label)
    doomed = found[:-keep]
    if doomed:
        for path in found[-keep:]:
            open_backup(path)
    for path in doomed:
        path.unlink()
    return doomed
