"""The demo's rows: where each goes, and how replicas are judged."""

from __future__ import annotations

from dataclasses import replace

from engine.local.demo_flights import ReplicaContent, _read_rows
from engine.local.demo_result import DemoResult

CONTENT = ReplicaContent("node01", 1, rows=10, parts=2, digest="aa", inserted=10)


def result(*data: ReplicaContent) -> DemoResult:
    return DemoResult(clusters=(), schemas={}, answered=(), seconds=0.0, data=data)


def test_every_flight_goes_to_one_shard_which_its_number_says() -> None:
    shards = _read_rows(2)
    rows = [lines[1:] for lines in shards]
    assert sum(map(len, rows)) == 336_776
    for shard, lines in enumerate(rows):
        assert {int(line.split(b",")[10]) % 2 for line in lines} == {shard}
    assert shards[0][0] == shards[1][0]
    assert shards[0][0].startswith(b"year,month,day,")


def test_replicas_are_the_same_when_each_shard_has_one_digest() -> None:
    other_shard = replace(CONTENT, host="node04", shard=2, digest="bb", inserted=0)
    assert result().same_data
    assert result(CONTENT, replace(CONTENT, host="node02"), other_shard).same_data
    assert not result(CONTENT, replace(CONTENT, host="node02", digest="cc"), other_shard).same_data
