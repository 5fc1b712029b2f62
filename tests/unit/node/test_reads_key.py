"""By what other nodes know what they do for a statement."""

from __future__ import annotations

from uuid import UUID

import pytest

from engine.env import SystemEnv
from engine.node.http.query import parse_query
from engine.node.statements.reads_key import PREFIX, READS_PLACE, kill_all_of, new_reads_key


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        (f"{PREFIX}0f1e", "", f"{PREFIX}0f1e-new"),
        (f"{PREFIX}0f1e", "own", "own"),
        (READS_PLACE, "", "new"),
        (f"{PREFIX}x' OR 1 --", "", "new"),
        ("somebody", "", "new"),
        ("", "", "new"),
    ],
)
def test_a_request_for_another_nodes_statement_is_called_by_that(key: str, given: str, expected: str) -> None:
    parameters = [("session_timeout", key), ("query_id", given)]
    assert parse_query("POST", {}, parameters, new_query_id="new").query_id == expected


def test_all_of_it_is_killed() -> None:
    assert kill_all_of("k") == "KILL QUERY WHERE startsWith(query_id, 'k-') ASYNC"


class EnvOfOneUuid(SystemEnv):
    """Python's own makes a uuid that begins with each digit once in sixteen times."""

    def __init__(self, first: str) -> None:
        self._uuid = UUID(f"{first}{'0' * 31}")

    def new_uuid(self) -> UUID:
        return self._uuid


@pytest.mark.parametrize("first", "0123456789abcdef")
def test_a_key_that_is_filled_in_is_never_taken_for_the_place_of_one(first: str) -> None:
    key = new_reads_key(EnvOfOneUuid(first))
    assert READS_PLACE not in key
    assert READS_PLACE.replace(READS_PLACE, key).replace(READS_PLACE, key) == key
