"""How far a quorum insert has come (`quorum/status`, `quorum/parallel/<part>`), and which part of each
partition was the last to reach its quorum (`quorum/last_part`).

Source: ClickHouse's ReplicatedMergeTree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.errors import Code
from engine.replication.part_name import PartName
from engine.replication.text import FormatReader, encode_bytes, escape


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """The replicas that have a part which waits for `required` of them."""

    part: PartName
    required: int
    replicas: frozenset[str]

    @property
    def is_reached(self) -> bool:
        return len(self.replicas) >= self.required

    def with_replica(self, replica: str) -> QuorumStatus:
        return replace(self, replicas=self.replicas | {replica})

    def to_bytes(self) -> bytes:
        names = "".join(f"{escape(name)}\n" for name in sorted(self.replicas))
        return encode_bytes(
            f"version: 1\npart_name: {self.part}\nrequired_number_of_replicas: {self.required}\n"
            f"actual_number_of_replicas: {len(self.replicas)}\nreplicas:\n{names}"
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> QuorumStatus:
        """Raises MalformedEntry: 287 for an unknown version, 27 or 233 otherwise."""
        reader = FormatReader.of(data, where=where)
        reader.version("version: ", known=range(1, 2))
        part = reader.line("part_name: ", reader.part)
        required = reader.line("required_number_of_replicas: ", reader.unsigned)
        count = reader.line("actual_number_of_replicas: ", reader.count)
        reader.expect("replicas:\n")
        replicas = frozenset(reader.line("", reader.escaped) for _ in range(count))
        if len(replicas) != count:
            raise reader.error("a replica is listed twice", code=Code.CANNOT_PARSE_TEXT)
        reader.end()
        return cls(part, required, replicas)


@dataclass(frozen=True, slots=True)
class LastQuorumParts:
    """By partition, the last part that reached its quorum. The order is that of the text."""

    parts: tuple[PartName, ...] = ()

    @property
    def by_partition(self) -> Mapping[str, PartName]:
        return {part.partition_id: part for part in self.parts}

    def with_part(self, part: PartName) -> LastQuorumParts:
        """`part` in the place of its partition's last one; a new partition comes last."""
        if part.partition_id not in self.by_partition:
            return LastQuorumParts((*self.parts, part))
        same = part.partition_id
        return LastQuorumParts(tuple(part if old.partition_id == same else old for old in self.parts))

    def to_bytes(self) -> bytes:
        """Always version 2; nothing at all where no part is known, as in a table just made."""
        if not self.parts:
            return b""
        lines = "".join(f"{part.partition_id}\t{part}\n" for part in self.parts)
        return encode_bytes(f"version: 2\nparts count: {len(self.parts)}\n{lines}")

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> LastQuorumParts:
        """Reads version 2, version 1 (one part's name) and the empty text. Raises MalformedEntry."""
        reader = FormatReader.of(data, where=where)
        if reader.at_end:
            return cls()
        if reader.peek() != "v" or not data.startswith(b"version: "):
            part = reader.part()
            reader.end()
            return cls((part,))
        reader.version("version: ", known=range(2, 3))
        parts: list[PartName] = []
        for _ in range(reader.line("parts count: ", reader.count)):
            partition_id = reader.partition_id()
            reader.expect("\t")
            part = reader.line("", reader.part)
            if part.partition_id != partition_id:
                raise reader.error(f"part {part} is listed for partition {partition_id}")
            parts.append(part)
        if len({part.partition_id for part in parts}) != len(parts):
            raise reader.error("a partition is listed twice")
        reader.end()
        return cls(tuple(parts))
