"""Each of these bugs, put into the spool on purpose, must be caught by the promise that it breaks.

A bug is a patch of the real code. The list is also a list of what must not be simplified away.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.distributed import sender as sender_module
from engine.distributed import spool_table
from engine.distributed.batches import BatchRecord
from engine.distributed.sender import DirectorySender
from engine.distributed.spool_file import FileHead, SpoolFile
from engine.distributed.spool_table import SpoolBlock, TableSpool
from engine.errors import Corrupt
from engine.testing.spool_disk import ModelDisk
from engine.testing.spool_simulation import Scenario, simulate
from tests.simulation.deliberate_bugs import Bugs

BUGS = Bugs()


@BUGS.add("S2", first=5)
def a_file_is_removed_before_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one_by_one(self: DirectorySender) -> None:
        for number in self._spool.pending(self.directory):
            file = await self._checked(number)
            if file is not None:
                data = self._disk.read(file.path, 0, 1 << 20)
                self._remove([number])
                self._disk.append(f"{file.path}.going", data)
                await self._deliver(self._outgoing([replace(file, path=f"{file.path}.going")]))

    monkeypatch.setattr(DirectorySender, "_one_by_one", one_by_one)


@BUGS.add("S3", is_batch=True)
def a_batch_is_not_recorded_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: BatchRecord, *args: Any) -> None:
        return None

    monkeypatch.setattr(BatchRecord, "begin", nothing)
    monkeypatch.setattr(BatchRecord, "confirm", nothing)


@BUGS.add("S3")
def every_attempt_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(1 << 30))

    def token_of(heads: Sequence[FileHead]) -> str:
        return str(uuid.UUID(int=next(count)))

    monkeypatch.setattr(sender_module, "token_of", token_of)


@BUGS.add("S1")
def an_insert_is_acknowledged_while_its_files_are_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    put = TableSpool.put

    async def put_first_half(self: TableSpool, blocks: Sequence[SpoolBlock], **rest: Any) -> None:
        await put(self, blocks[:1], **rest)
        for number, block in enumerate(blocks[1:]):
            path = f"tmp/{self._next + number}.bin"
            await spool_table.write_file(self.disk, path, block.head, block.body)

    monkeypatch.setattr(TableSpool, "put", put_first_half)


@BUGS.add("S1", has_power_loss=True, kills=8)
def names_are_not_forced_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: ModelDisk, directory: str) -> None:
        return None

    monkeypatch.setattr(ModelDisk, "sync_directory", nothing)


@BUGS.add("S1", has_power_loss=True, kills=8)
def an_empty_file_is_taken_for_one_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    check = DirectorySender._checked

    async def checked(self: DirectorySender, number: int, *others: Any) -> SpoolFile | None:
        if self._env.rng.random() < 0.2:
            self._remove([number])
            return None
        return await check(self, number, *others)

    monkeypatch.setattr(DirectorySender, "_checked", checked)


@BUGS.add(
    "S3",
    first=95,
    is_batch=True,
    has_lost_replies=True,
    has_flipped_bits=True,
    waits_for_more=True,
    has_failing_parts=False,
    kills=8,
    seeds=600,
)
def what_is_left_of_a_recorded_batch_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    send = DirectorySender._send_recorded

    async def recorded(self: DirectorySender, numbers: Sequence[int]) -> None:
        whole = []
        for number in numbers:
            try:
                await sender_module.check_file(self._disk, self._path(number))
                whole.append(number)
            except (Corrupt, FileNotFoundError):
                self._give_up([number])
        if len(whole) == len(numbers):
            await send(self, numbers)
        else:
            self._record.forget()

    monkeypatch.setattr(DirectorySender, "_send_recorded", recorded)


@BUGS.add(
    "S3", first=17, is_batch=True, has_lost_replies=True, has_refusals=True, splits_batches=True, kills=8
)
def a_batch_that_may_be_there_is_sent_file_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recorded(self: DirectorySender, numbers: Sequence[int]) -> None:
        files = [await sender_module.check_file(self._disk, self._path(number)) for number in numbers]
        await self._send_batch(list(zip(numbers, files, strict=True)))

    monkeypatch.setattr(DirectorySender, "_send_recorded", recorded)


@BUGS.add("S3", is_batch=True, kills=8)
def a_batch_goes_without_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deliver(self: DirectorySender, numbers: Sequence[int], files: Sequence[SpoolFile]) -> None:
        await self._deliver(self._outgoing(files))
        self._record.forget()
        self._remove(numbers)

    monkeypatch.setattr(DirectorySender, "_deliver_batch", deliver)


@BUGS.add("S3", is_batch=True, has_repeats=True)
def a_batchs_token_hides_one_that_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "can_join", lambda one, other: one.columns == other.columns)


@BUGS.add("S5", has_full_disk=True)
def a_refused_insert_leaves_what_it_had_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    put = TableSpool.put

    async def one_after_another(
        self: TableSpool, blocks: Sequence[SpoolBlock], *, after: Awaitable[None] | None
    ) -> None:
        if after is not None:
            await after
        for block in blocks:
            await put(self, [block])
            self.disk.is_full |= self._next % 3 == 0  # type: ignore[attr-defined]

    monkeypatch.setattr(TableSpool, "put", one_after_another)


@BUGS.add("S5", has_failing_parts=True)
def rows_are_kept_before_the_rest_of_their_insert_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    put = TableSpool.put

    async def at_once(
        self: TableSpool, blocks: Sequence[SpoolBlock], *, after: Awaitable[None] | None
    ) -> None:
        await put(self, blocks)
        if after is not None:
            await after

    monkeypatch.setattr(TableSpool, "put", at_once)


@BUGS.add("S5", limit_bytes=300)
def pending_bytes_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def admit(self: TableSpool, *args: Any) -> None:
        return None

    monkeypatch.setattr(TableSpool, "admit", admit)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUGS))
def test_a_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.patch(monkeypatch)
    seen: set[str] = set()
    for number in range(bug.seeds):
        seed = (bug.first + number) % bug.seeds
        report = simulate(seed, replace(Scenario.of_seed(seed), **bug.changes))
        seen |= {violation.promise for violation in report.violations}
        if bug.promise in seen:
            return
    pytest.fail(f"{bug.promise} held on {bug.seeds} seeds; broken were {sorted(seen) or 'none'}")
