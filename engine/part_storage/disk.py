"""Making files survive the loss of power, with as few waits for the disk as the file system allows.

A part has about a dozen files. To wait for each (fsync) is a dozen flushes of the device, 25 ms and more on a
busy disk. ext4 and XFS keep one log, whose entries reach the disk in their order. So the content of all files
is written and waited for (sync_file_range), then the part's directory is changed once more, which is the
youngest entry, and only that is waited for: whatever was logged before it is on the disk, too. Its flush also
empties the device's cache of what was written before. On any other file system, and on an ext4 that was made
without its log (`journal_task` of the kernel says `<none>`), every file is waited for by itself.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.patient_threads import PatientThreads

_MAX_DESCRIPTORS = 200
_WRITE, _WRITE_AND_WAIT = 2, 7
_FILE_SYSTEMS_WITH_ONE_LOG = frozenset({"ext3", "ext4", "xfs"})
_NO_JOURNAL = "<none>"
_FEW, _AT_ONCE = 2, 8
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)


class Durability(enum.Enum):
    """Whether a staged part survives the loss of power, or only that of the process."""

    POWER_LOSS = "files and directories are forced to disk"
    PROCESS = "the system writes when it likes"


def force_to_disk(directory: Path, durability: Durability, *, parent: Path | None = None) -> None:
    """Every file of a part, its directories, and the names in `parent`. Raises OSError."""
    if durability is Durability.PROCESS:
        return
    files, directories = _inside(directory)
    if _has_one_log(directory) and _written(files):
        os.utime(directory)
        _force([str(directory)])
        return
    parents = [] if parent is None else [str(parent)]
    every = [*files, *directories, *parents]
    for start in range(0, len(every), _MAX_DESCRIPTORS):
        _force(every[start : start + _MAX_DESCRIPTORS])


def force_names(tree: Path, durability: Durability) -> None:
    """The names in a directory and in all inside it; not the content of files. Raises OSError."""
    if durability is Durability.PROCESS:
        return
    if _has_one_log(tree):
        os.utime(tree)
        _force([str(tree)])
        return
    _, directories = _inside(tree)
    for start in range(0, len(directories), _MAX_DESCRIPTORS):
        _force(directories[start : start + _MAX_DESCRIPTORS])


def force_path(directory: Path, durability: Durability, *, below: Path) -> None:
    """The names in a directory, and that of each directory on the way to it from `below`."""
    if durability is Durability.POWER_LOSS:
        on_the_way = [each for each in directory.parents if each == below or each.is_relative_to(below)]
        _force([str(directory), *map(str, on_the_way)])


def force_directory(directory: Path, durability: Durability) -> None:
    """The names in a directory."""
    if durability is Durability.POWER_LOSS:
        _force([str(directory)])


def write_durably(path: Path, data: bytes, durability: Durability) -> None:
    """Put a small file in place, whole or not at all. It fits into what `have_room` has taken."""
    temporary = path.with_name(f"tmp_{path.name}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o666)
    with os.fdopen(descriptor, "wb") as file:  # not truncated before: that would give the room away
        file.write(data)
        file.truncate()
    if durability is Durability.PROCESS:
        temporary.rename(path)
        return
    if not (_has_one_log(path.parent) and _written([str(temporary)])):
        _force([str(temporary)])
    temporary.rename(path)
    _force([str(path.parent)])


def have_room(path: Path, size: int) -> None:
    """Take what `write_durably` needs for `size` bytes before a step that must not be left half done because
    the disk is full. Raises OSError."""
    path.with_name(f"tmp_{path.name}").write_bytes(bytes(size))


def _inside(directory: Path) -> tuple[list[str], list[str]]:
    """Files, and directories from the outermost on."""
    files: list[str] = []
    directories = [str(directory)]
    for here in directories:  # grows meanwhile
        with os.scandir(here) as entries:
            for entry in entries:
                (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.path)
    return files, directories


def _written(paths: Sequence[str]) -> bool:
    """Write the content of all files and wait for it; False where the system cannot."""
    for start in range(0, len(paths), _MAX_DESCRIPTORS):
        descriptors: list[int] = []
        try:
            for path in paths[start : start + _MAX_DESCRIPTORS]:
                descriptors.append(os.open(path, os.O_RDONLY))
            for flags in (_WRITE, _WRITE_AND_WAIT):
                for descriptor in descriptors:
                    if not _sync_file_range(descriptor, flags):
                        return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    return True


def _sync_file_range(descriptor: int, flags: int) -> bool:
    assert _SYNC_FILE_RANGE is not None
    whole = ctypes.c_int64(0)
    return bool(_SYNC_FILE_RANGE(descriptor, whole, whole, ctypes.c_uint(flags)) == 0)


def _force(paths: Sequence[str]) -> None:
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY))
        if len(descriptors) <= _FEW:
            for descriptor in descriptors:
                os.fsync(descriptor)
        else:
            # All at once, one flush of the device often serves several: a quarter of the time on a busy disk.
            here, *others = [descriptors[at::_AT_ONCE] for at in range(min(_AT_ONCE, len(descriptors)))]
            begun = [_threads().submit(_force_each, each) for each in others]
            for failed in (_force_each(here), *[each.result() for each in begun]):
                if failed is not None:
                    raise failed
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _force_each(descriptors: Sequence[int]) -> OSError | None:
    """The first error, when all have been waited for."""
    failed: OSError | None = None
    for descriptor in descriptors:
        try:
            os.fsync(descriptor)
        except OSError as error:
            failed = failed or error
    return failed


def _has_one_log(path: Path) -> bool:
    return _SYNC_FILE_RANGE is not None and _file_system(path.stat().st_dev) in _FILE_SYSTEMS_WITH_ONE_LOG


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return PatientThreads(_AT_ONCE - 1, "fsync")


@functools.cache
def _file_system(device: int) -> str:
    """The type of a mounted file system by its device; empty if that cannot be told, or if it is an ext file
    system without its log."""
    if is_without_journal(device):
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return ""


def is_without_journal(device: int, *, kernel: Path = Path("/sys")) -> bool:
    """Whether the kernel says so of an ext file system; `kernel` is where it says such things."""
    block = kernel / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    try:
        task = kernel / "fs" / "ext4" / block.resolve().name / "journal_task"
        return task.read_text().strip() == _NO_JOURNAL
    except OSError:
        return False
