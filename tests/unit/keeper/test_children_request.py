"""What a server answers about children is read as kazoo reads it, however long their names are."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.serialization import GetChildren2

from engine.keeper.children_request import ChildrenRequest, _of_one_length

STAT = struct.pack(">qqqqiiiqiiq", *range(1, 12))


def answer(names: Sequence[str]) -> bytes:
    """Behind four bytes of something else."""
    encoded = [name.encode() for name in names]
    listed = b"".join(struct.pack(">i", len(name)) + name for name in encoded)
    return b"head" + struct.pack(">i", len(names)) + listed + STAT


SAME_LENGTH = st.integers(1, 140).flatmap(
    lambda length: st.lists(st.text("ab\x00\x01\x7f", min_size=length, max_size=length), min_size=2)
)


@given(
    st.one_of(st.lists(st.text(max_size=5)), SAME_LENGTH, st.lists(st.text("é\x01", min_size=2, max_size=2)))
)
def test_names_are_read_as_kazoo_reads_them(names: list[str]) -> None:
    data = answer(names)
    assert ChildrenRequest.deserialize(data, 4) == GetChildren2.deserialize(data, 4)
    assert ChildrenRequest.deserialize(data, 4)[0] == names


def test_names_of_a_log_are_read_at_once() -> None:
    names = [f"log-{number:010}" for number in range(1000)]
    assert _of_one_length(answer(names), 8, len(names)) == names


@pytest.mark.parametrize("cut", range(4, len(answer(["log-1", "log-2"]))))
def test_an_answer_that_is_cut_off_is_an_error(cut: int) -> None:
    with pytest.raises((struct.error, IndexError)):
        ChildrenRequest.deserialize(answer(["log-1", "log-2"])[:cut], 4)
