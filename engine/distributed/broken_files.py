"""What a person may do with files that were put aside as broken.

Safety argument. A file comes to `broken/` when it cannot be read as it was written, or when it is part of a
batch of which that holds for another. `restore` checks each file whole, as before it is sent, and only one
that is whole goes back, under its own number and token, to be sent in its turn; a name that is taken stays
taken. Rows of a batch may have arrived under the batch's token before: then they are written twice, which is
why nobody does this unasked. `drop` removes all there is in `broken/`; these rows were acknowledged, and are
lost unless somebody has inserted them again.
A crash leaves each file in one of both places, and the same call goes on.

Nothing here touches a file that is not in `broken/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.distributed.spool_disk import SpoolDisk
from engine.distributed.spool_file import check_file
from engine.distributed.spool_names import BROKEN, alone_name, file_name, number_of
from engine.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Restored:
    """Numbers of the files that went back, and of those that are broken indeed."""

    restored: tuple[int, ...]
    left: tuple[int, ...]


async def restore(disk: SpoolDisk, directory: str) -> Restored:
    """Put the files back that are whole; wake the sender after that. Raises OSError."""
    restored, left = [], []
    pending = set(disk.names(directory))
    for number in _numbers(disk, directory):
        try:
            if file_name(number) in pending or alone_name(number) in pending:
                raise Corrupt(f"There is another file {number} in {directory}.")
            await check_file(disk, _broken(directory, number))
        except Corrupt:
            left.append(number)
            continue
        disk.rename(_broken(directory, number), f"{directory}/{file_name(number)}")
        restored.append(number)
    if restored:
        await disk.sync_directory(directory)
        await disk.sync_directory(f"{directory}/{BROKEN}")
    return Restored(tuple(restored), tuple(left))


async def drop(disk: SpoolDisk, directory: str) -> tuple[int, ...]:
    """Remove all broken files of a directory; their numbers. Raises OSError."""
    numbers = _numbers(disk, directory)
    for number in numbers:
        disk.remove(_broken(directory, number))
    if numbers:
        await disk.sync_directory(f"{directory}/{BROKEN}")
    return numbers


def _numbers(disk: SpoolDisk, directory: str) -> tuple[int, ...]:
    found = (number_of(name) for name in disk.names(f"{directory}/{BROKEN}"))
    return tuple(sorted(number for number in found if number is not None))


def _broken(directory: str, number: int) -> str:
    return f"{directory}/{BROKEN}/{file_name(number)}"
