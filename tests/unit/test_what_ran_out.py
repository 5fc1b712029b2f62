"""Errors that say that something ran out, as chDB 26.9 and the system word them."""

from __future__ import annotations

import errno

import pytest

from engine.errors import Code, SqlError, disk_error, is_passing, ran_out
from engine.storage.errors import mutation_error, sql_error, told

_NONE = ", errno: 24, strerror: Too many open files"
_FILE = f"Cannot open file /d/store/a.bin: {_NONE}"
_LISTING = "std::__1::filesystem::filesystem_error: filesystem error: in directory_iterator(...)"
_MUTATION = "Exception happened during execution of mutation 'mutation_6.txt' with part 'all_1_5_1' reason"
WORDS = [
    f"Code: 76. DB::ErrnoException: {_FILE}. (CANNOT_OPEN_FILE)",
    f"Code: 76. DB::Exception: {_FILE}: (while reading column v): (while reading from part /d/all_1_5_1/). ",
    f"Code: 573. DB::ErrnoException: Cannot open epoll descriptor: {_NONE}. (EPOLL_ERROR)",
    f"Code: 298. DB::Exception: Cannot create pipe: {_NONE}: While executing URL. (CANNOT_PIPE)",
    "Code: 1000. DB::Exception: I/O error: Too many open files. (POCO_EXCEPTION)",
    f'Code: 1001. DB::Exception: {_LISTING}: Too many open files ["/d/data/_oncluster/stage_1"]',
    f"Code: 341. DB::Exception: {_MUTATION}: 'Code: 76. DB::Exception: {_FILE}.'. This error maybe retryable",
    "Code: 241. DB::Exception: Query memory limit exceeded: would use 5 GiB. (MEMORY_LIMIT_EXCEEDED)",
    "Code: 439. DB::Exception: Cannot schedule a task: failed to start the thread. (CANNOT_SCHEDULE_TASK)",
]


@pytest.mark.parametrize("text", WORDS)
def test_what_ran_out_is_told_from_all_other_errors_of_the_same_code(text: str) -> None:
    error = sql_error(text)
    assert ran_out(error) and is_passing(error)
    assert ran_out(error.reworded("in other words"))
    assert ran_out(mutation_error(error))


@pytest.mark.parametrize(
    "text",
    [
        "Code: 76. DB::ErrnoException: Cannot open file /d/a.bin: , errno: 13, strerror: Permission denied.",
        "Code: 107. DB::ErrnoException: Cannot open file /d/a.bin: , errno: 2, strerror: No such file.",
        "Code: 40. DB::Exception: Checksum doesn't match: corrupted data.",
        "Code: 57. DB::Exception: Table d.`, errno: 24` already exists.",
    ],
)
def test_other_errors_are_not_that(text: str) -> None:
    assert not ran_out(sql_error(text)) and not is_passing(sql_error(text))


def test_errors_of_the_system_are_known_by_their_numbers() -> None:
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        assert ran_out(OSError(number, "")) and ran_out(disk_error(OSError(number, ""), "Cannot work"))
    full = OSError(errno.ENOSPC, "")
    assert is_passing(full) and not ran_out(full) and disk_error(full, "").code == Code.NOT_ENOUGH_SPACE
    assert not is_passing(OSError(errno.ENOENT, "")) and ran_out(MemoryError())
    assert disk_error(OSError(errno.EMFILE, "Too many"), "Cannot work").code == Code.CANNOT_OPEN_FILE


def test_a_definition_that_is_shown_as_empty_could_not_be_read() -> None:
    assert told("CREATE TABLE", "d.t") == "CREATE TABLE"
    with pytest.raises(SqlError, match=r"definition of d\.t") as said:
        told("", "d.t")
    assert ran_out(said.value)
