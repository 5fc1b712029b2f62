"""What the text of a table's engine says of its keys, and of when rows are removed."""

from __future__ import annotations

import pytest

from spark_apps.clickhouse_cluster.engine_text import clauses, descending_keys


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            (
                "ReplicatedMergeTree('/c/t ORDER BY x', 'r') PARTITION BY toYYYYMM(d) PRIMARY KEY a "
                "ORDER BY (a, b) SAMPLE BY a TTL d + toIntervalYear(1) GROUP BY a SET b = max(b), "
                "d TO DISK 'cold' SETTINGS index_granularity = 8192"
            ),
            {
                "PARTITION BY": "toYYYYMM(d)",
                "PRIMARY KEY": "a",
                "ORDER BY": "(a, b)",
                "SAMPLE BY": "a",
                "TTL": "d + toIntervalYear(1) GROUP BY a SET b = max(b), d TO DISK 'cold'",
                "SETTINGS": "index_granularity = 8192",
            },
        ),
        ("MergeTree ORDER BY TTL TTL TTL + 1", {"ORDER BY": "TTL", "TTL": "TTL + 1"}),
        ("MergeTree(d, a, 8192)", {}),
    ],
)
def test_clauses_are_told_from_columns_and_texts_that_look_like_them(
    text: str, found: dict[str, str]
) -> None:
    assert clauses(text) == found


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("MergeTree ORDER BY tuple(a DESC) SETTINGS x = 1", ("a DESC", "a DESC")),
        ("MergeTree ORDER BY a DESC", ("a DESC", "a DESC")),
        ("MergeTree PRIMARY KEY a ORDER BY tuple(a, b + 1 DESC)", ("a, b + 1 DESC", "a")),
    ],
)
def test_directions_are_part_of_a_descending_key(text: str, keys: tuple[str, str]) -> None:
    assert descending_keys(text) == {"sorting_key": keys[0], "primary_key": keys[1]}


@pytest.mark.parametrize("text", ["MergeTree ORDER BY (`DESC`, a)", "MergeTree ORDER BY tuple()", "Memory"])
def test_other_keys_are_as_the_server_lists_them(text: str) -> None:
    assert descending_keys(text) == {}
