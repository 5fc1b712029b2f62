"""By what other nodes know what they do for a statement."""

from __future__ import annotations

import pytest

from engine.node.http.query import parse_query
from engine.node.reads_key import PREFIX, READS_PLACE, kill_all_of


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
