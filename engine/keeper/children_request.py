"""The request for a znode's children, whose answer is read at once where all names are of one length.

Those of a log, a queue or block numbers are, and there may be a thousand of them at every change.
"""

from __future__ import annotations

from typing import Any

from kazoo.protocol.serialization import GetChildren2, ZnodeStat, int_struct, stat_struct


class ChildrenRequest(GetChildren2):  # type: ignore[misc]  # kazoo has no types
    """As kazoo's."""

    __slots__ = ()

    @classmethod
    def deserialize(cls, data: bytes, at: int) -> Any:
        """Names and stat. Raises what kazoo raises for what is no such answer."""
        (count,) = int_struct.unpack_from(data, at)
        names = _of_one_length(data, at + int_struct.size, count)
        if names is None:
            return super().deserialize(data, at)
        behind = at + int_struct.size + count * (int_struct.size + len(names[0]))
        return names, ZnodeStat._make(stat_struct.unpack_from(data, behind))


def _of_one_length(data: bytes, at: int, count: int) -> list[str] | None:
    """`count` names, each led by its length; None unless all are equally long, and of ASCII."""
    if count < 2:
        return None
    (length,) = int_struct.unpack_from(data, at)
    stride = int_struct.size + length
    block = data[at : at + count * stride]
    if length < 1 or len(block) < count * stride or not block.isascii():
        return None
    if any(block[byte::stride] != block[byte : byte + 1] * count for byte in range(int_struct.size)):
        return None
    text = block.decode("ascii")
    return [text[start : start + length] for start in range(int_struct.size, len(text), stride)]
