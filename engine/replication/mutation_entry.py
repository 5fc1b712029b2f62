"""An entry of `mutations/`: commands for all parts below given block numbers.

Source: ClickHouse's ReplicatedMergeTree. Servers from 20.1 on write `alter version`; 18.16 stops after
the commands, without a line break.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import Code
from engine.replication.part_name import PartName
from engine.replication.text import FormatReader, encode_bytes, escape

_NODE_NAME = re.compile(r"[0-9]{10}\Z", re.ASCII)


def mutation_number(name: str) -> int | None:
    """The place of a mutation in the queue by its znode's name; None for any other name."""
    return int(name) if _NODE_NAME.match(name) else None


@dataclass(frozen=True, slots=True)
class MutationEntry:
    """One mutation. `commands` is SQL such as `DELETE WHERE x = 1, UPDATE a = 2 WHERE 1`.

    `block_numbers` is, by partition, the number the mutation was given there. `alter_version` is -1 for a
    mutation that belongs to no ALTER of the columns, and None where the line is absent (18.16).
    """

    create_time: str
    source_replica: str
    block_numbers: tuple[tuple[str, int], ...]
    commands: str
    alter_version: int | None = -1

    def number_in(self, partition_id: str) -> int | None:
        """The mutation's number in a partition; None if that did not exist when it was made."""
        return dict(self.block_numbers).get(partition_id)

    def applies_to(self, part: PartName) -> bool:
        """Whether `part` is older than the mutation and will have to be rewritten."""
        number = self.number_in(part.partition_id)
        return number is not None and part.data_version < number

    def to_bytes(self) -> bytes:
        text = (
            f"format version: 1\ncreate time: {self.create_time}\nsource replica: {self.source_replica}\n"
            f"block numbers count: {len(self.block_numbers)}\n"
        )
        text += "".join(f"{partition_id}\t{number}\n" for partition_id, number in self.block_numbers)
        text += f"commands: {escape(self.commands)}"
        return encode_bytes(
            text if self.alter_version is None else f"{text}\nalter version: {self.alter_version}"
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> MutationEntry:
        """Raises MalformedEntry: 287 for an unknown version, 27 otherwise."""
        reader = FormatReader.of(data, where=where)
        reader.version("format version: ", known=range(1, 2))
        create_time = reader.line("create time: ", reader.time)
        source_replica = reader.line("source replica: ", reader.raw)
        numbers: list[tuple[str, int]] = []
        for _ in range(reader.line("block numbers count: ", reader.count)):
            partition_id = reader.partition_id()
            reader.expect("\t")
            numbers.append((partition_id, reader.line("", reader.unsigned)))
        if len({partition_id for partition_id, _ in numbers}) != len(numbers):
            raise reader.error("a partition is listed twice", code=Code.CANNOT_PARSE_TEXT)
        reader.expect("commands: ")
        commands = reader.escaped()
        alter_version = None
        if not reader.at_end:
            reader.expect("\nalter version: ")
            alter_version = reader.integer()
        reader.end()
        return cls(create_time, source_replica, tuple(numbers), commands, alter_version)
