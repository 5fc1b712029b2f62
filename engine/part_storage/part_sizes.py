"""Whether a part's files are there and as long as its `checksums.txt` says.

What comes from elsewhere is compared before it is believed. So is what chDB has written: it (26.9) takes no
notice when the disk refuses the rest of a file, lists the file as it should be, and says that all is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import Code, MalformedEntry, SqlError, is_passing
from engine.part_storage.part_files import CHECKSUMS_FILE, COLUMNS_FILE, LOCAL_FILES, files_of
from engine.replication.part_checksums import FileChecksum, PartDiffers, parse_checksums_file

UNLISTED = frozenset(
    {
        CHECKSUMS_FILE,
        COLUMNS_FILE,
        LOCAL_FILES,
        "columns_substreams.txt",
        "default_compression_codec.txt",
        "serialization.json",
        "count.txt",
        "partition.dat",
        "ttl.txt",
    }
)
"""Files that `checksums.txt` need not list."""


def check_files(directory: Path, part: str) -> None:
    """Raises PartDiffers unless the files are those that `checksums.txt` lists, with the sizes it says, and
    OSError where they cannot be looked at for want of descriptors.

    A projection is listed as one entry and has a list of its own.
    """
    _check(directory, files_of(directory), _listed(directory, part), part)


def check_written(directory: Path, files: Sequence[tuple[str, int]]) -> tuple[FileChecksum, ...]:
    """The same of what chDB has just made, which has these `files`; returns their list. Raises SqlError
    243."""
    try:
        listed = _listed(directory, directory.name)
        _check(directory, files, listed, directory.name)
    except PartDiffers as differs:
        raise SqlError(
            Code.NOT_ENOUGH_SPACE,
            f"The disk has not taken all of part {directory.name}: {differs.reason}",
            hint="Make room on the disk of the node, or look at it.",
        ) from differs
    return tuple(listed.values())


def _check(
    directory: Path, files: Sequence[tuple[str, int]], listed: dict[str, FileChecksum], part: str
) -> None:
    here: dict[str, int] = {}
    projections: dict[str, dict[str, int]] = {}
    for name, size in files:
        projection, slash, file = name.partition("/")
        if slash:
            projections.setdefault(projection, {})[file] = size
        else:
            here[name] = size
    _check_list(here, {name: file for name, file in listed.items() if name not in projections}, part)
    for projection, sizes in projections.items():
        if projection not in listed:
            raise PartDiffers(part, f"projection {projection} is not listed")
        _check_list(sizes, _listed(directory / projection, part), part)


def _listed(directory: Path, part: str) -> dict[str, FileChecksum]:
    try:
        data = (directory / CHECKSUMS_FILE).read_bytes()
    except OSError as error:
        if is_passing(error):
            raise
        raise PartDiffers(part, f"it has no {CHECKSUMS_FILE}") from None
    try:
        return {file.name: file for file in parse_checksums_file(data, where=part)}
    except MalformedEntry as error:
        raise PartDiffers(part, f"its {CHECKSUMS_FILE} cannot be read: {error.message}") from None


def _check_list(here: dict[str, int], listed: dict[str, FileChecksum], part: str) -> None:
    for name, file in listed.items():
        if here.get(name) != file.size:
            raise PartDiffers(part, f"file {name} has {here.get(name)} bytes instead of {file.size}")
    strange = sorted(here.keys() - listed.keys() - UNLISTED)
    if strange:
        raise PartDiffers(part, f"file {strange[0]} is not listed")
