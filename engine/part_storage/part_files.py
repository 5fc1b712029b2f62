"""Directories of parts: hard links, and what a part's own files say about it.

Source: ClickHouse's MergeTreeDataPart; a part is one directory with at most one level below it (projections).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from engine.errors import Corrupt, is_passing
from engine.part_storage.part_ttl import TTL_FILE, ttl_in
from engine.part_storage.part_uuid import UUID_FILE, part_of_text, uuid_of
from engine.replication.file_names import is_plain_name
from engine.replication.part_checksums import (
    MAX_FILE_BYTES,
    FileChecksum,
    PartDiffers,
    digest_of_file,
)
from engine.replication.part_name import PartName
from engine.replication.part_store import Part
from engine.siphash import siphash128_bytes

CHECKSUMS_FILE = "checksums.txt"
COLUMNS_FILE = "columns.txt"
COUNT_FILE = "count.txt"
PROJECTION_SUFFIX = ".proj"
LOCAL_FILES = frozenset(
    {UUID_FILE, "invalidated_system_columns.txt", "metadata_version.txt", "txn_version.txt"}
)
"""What belongs to a part's place in one table and not to the part: the name, what chDB notes at ATTACH, and
how often the one table was altered (REPLACE PARTITION loses it for projections)."""

_LOCAL_NAME = re.compile(r"([0-9A-Za-z-]+)_([0-9]+)_([0-9]+)_([0-9]+)(?:_([0-9]+))?\Z", re.ASCII)
_MAX_COLUMNS_BYTES = 16 << 20


def is_local_name(name: str) -> bool:
    """Whether `name` is that of a part in a table's directory (and not `tmp_…`, `detached`, …)."""
    return _LOCAL_NAME.match(name) is not None


def partition_of(local_name: str) -> str:
    """The partition id in a local name."""
    return local_name.split("_", 1)[0]


def first_block(local_name: str) -> int:
    return int(local_name.split("_")[1])


def last_block(local_name: str) -> int:
    return int(local_name.split("_")[2])


def level_of(local_name: str) -> int:
    return int(local_name.split("_")[3])


def is_file_name(name: str) -> bool:
    """Whether `name` may be a file of a part: a plain name, or one in a projection's directory.

    It comes from peers and is joined to a path.
    """
    directory, slash, file = name.rpartition("/")
    if slash and not (is_plain_name(directory) and directory.endswith(PROJECTION_SUFFIX)):
        return False
    return is_plain_name(file) and not file.endswith(PROJECTION_SUFFIX)


def link_part(source: Path, target: Path, *, name: PartName | None) -> None:
    """Make `target` a part of the same files, named `name`; None leaves it without a name.

    Raises OSError; nothing is left then.
    """
    target.mkdir(parents=True)
    try:
        _link_files(str(source), str(target))
        if name is not None:
            write_name(target, name)
    except BaseException:  # whatever it is: half a part must not stay
        shutil.rmtree(target, ignore_errors=True)
        raise


def write_name(directory: Path, name: PartName) -> None:
    """Have a part's directory carry its replicated name."""
    (directory / UUID_FILE).write_text(str(uuid_of(name)))


def _link_files(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                Path(target, entry.name).mkdir()
                _link_files(entry.path, f"{target}/{entry.name}")
            elif entry.name not in LOCAL_FILES:
                os.link(entry.path, f"{target}/{entry.name}")


def is_linked(source: Path, target: Path) -> bool:
    """Whether `target` is the same part on the disk. It may be of another attempt, or process."""
    try:
        return (source / CHECKSUMS_FILE).samefile(target / CHECKSUMS_FILE)
    except OSError:
        return False


def remove_tree(directory: Path) -> None:
    """Remove a directory, if it is there."""
    if not os.path.lexists(directory):
        return
    shutil.rmtree(directory, ignore_errors=True)


def name_in(directory: Path, partition_id: str) -> PartName | None:
    """The replicated name that a part's directory carries, if any. Raises OSError for want of descriptors."""
    try:
        return part_of_text(partition_id, (directory / UUID_FILE).read_text("ascii", "replace"))
    except OSError as error:
        if is_passing(error):
            raise
        return None


def files_of(directory: Path) -> list[tuple[str, int]]:
    """Names and sizes of a part's files without the local ones; sorted. Projections one level
    below."""
    found: list[tuple[str, int]] = []
    below: list[str] = []
    _add_files(str(directory), "", found, below)
    for name in below:
        _add_files(f"{directory}/{name}", f"{name}/", found, [])
    return sorted(found)


def _add_files(directory: str, prefix: str, found: list[tuple[str, int]], below: list[str]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                if entry.name not in LOCAL_FILES:
                    found.append((prefix + entry.name, entry.stat().st_size))
            elif entry.is_dir(follow_symlinks=False):
                below.append(entry.name)


def hash_of_part(directory: Path) -> str | None:
    """`hash_of_all_files` as its list of files has it; None where there is no list that can be read. Raises
    OSError for want of descriptors."""
    try:
        checksums = _small(f"{directory}/{CHECKSUMS_FILE}", MAX_FILE_BYTES)
        return digest_of_file(checksums, where=directory.name).hash_text
    except (OSError, ValueError, Corrupt) as error:
        if is_passing(error):
            raise
        return None


def read_part(directory: Path, name: PartName) -> Part:
    """What a part's small files say. Raises PartDiffers when they are not there or not whole, OSError for
    want of descriptors."""
    try:
        sizes = files_of(directory)
        checksums = _small(f"{directory}/{CHECKSUMS_FILE}", MAX_FILE_BYTES)
        columns = _small(f"{directory}/{COLUMNS_FILE}", _MAX_COLUMNS_BYTES)
        rows = int(_small(f"{directory}/{COUNT_FILE}", 64))
        modified_s = (directory / CHECKSUMS_FILE).stat().st_mtime
        digest = digest_of_file(checksums, where=str(name))
    except (OSError, ValueError, Corrupt) as error:
        if is_passing(error):
            raise
        raise PartDiffers(str(name), f"it cannot be read: {error}") from None
    size = sum(size for _, size in sizes)
    expires = any(file == TTL_FILE for file, _ in sizes)
    ttl = ttl_in(directory) if expires else None
    below = {file.partition("/")[0] for file, _ in sizes if "/" in file}
    projections = frozenset(each.removesuffix(PROJECTION_SUFFIX) for each in below)
    return Part(name, digest, columns, rows, size, modified_s, ttl, projections)


def _small(path: str, limit: int) -> bytes:
    """Raises ValueError for a file of more than `limit` bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise ValueError(f"{path} has {size} bytes")
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def data_hash_of(files: tuple[FileChecksum, ...]) -> bytes:
    """16 bytes that identify a part's rows: of names, sizes and hashes of the content of its data files.

    Compression does not matter. Source: ClickHouse's MergeTreeDataPartChecksums, "data only".
    """
    data = bytearray()
    for file in sorted(files, key=lambda file: file.name.encode("utf-8", "surrogateescape")):
        if not file.name.endswith(".bin"):
            continue
        name = file.name.encode("utf-8", "surrogateescape")
        size = file.size if file.content_size is None else file.content_size
        data += len(name).to_bytes(8, "little") + name
        data += size.to_bytes(8, "little") + (file.content_hash or file.hash)
    return siphash128_bytes(bytes(data))
