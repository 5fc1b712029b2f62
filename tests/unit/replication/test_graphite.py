"""Rollup rules of GraphiteMergeTree: the configuration, and the hash that Keeper has of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.graphite import GraphitePattern, GraphiteRollup, Retention, RuleType
from engine.config.load import load_node_config
from engine.errors import ConfigError, SqlError
from engine.replication.graphite import graphite_hash, tagged_regexp
from engine.replication.table_definition import parse_definition
from tests.unit.replication.graphite_support import ROLLUPS, SECTIONS

HASHES = {
    # What chDB 4.4 (ClickHouse 26.9) wrote into ZooKeeper under these rules.
    "graphite_rollup": "290258355189808818196974547740873374484",
    "typed": "23804452609481620880003175713377975547",
    "bare": "134629486745007761238179500094354830357",
}


def read(tmp_path: Path, sections: str) -> dict[str, GraphiteRollup]:
    file = tmp_path / "config.xml"
    file.write_text(f"<clickhouse>{sections}</clickhouse>")
    return dict(load_node_config(file).graphite)


def test_sections_are_found_by_name_and_by_shape(tmp_path: Path) -> None:
    assert read(tmp_path, SECTIONS) == ROLLUPS


@pytest.mark.parametrize("name", HASHES)
def test_the_hash_is_that_of_clickhouse(name: str) -> None:
    assert graphite_hash(ROLLUPS[name]) == HASHES[name]


def test_what_chdb_is_given_means_the_same(tmp_path: Path) -> None:
    written = "".join(rollup.to_xml(name) for name, rollup in ROLLUPS.items())
    assert read(tmp_path, written) == ROLLUPS


def test_names_with_markup_survive(tmp_path: Path) -> None:
    rollup = GraphiteRollup(
        patterns=(GraphitePattern(RuleType.PLAIN, "a<b&c", "sum", (Retention(0, 1),)),),
    )
    assert read(tmp_path, rollup.to_xml("odd")) == {"odd": rollup}


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("<default><function>sum</function><rule_type>plain</rule_type></default>", "for all metrics"),
        ("<pattern><function>sum</function><rule_type>some</rule_type></pattern>", "tag_list"),
        ("<pattern><regexp>x</regexp></pattern>", "neither"),
        ("<pattern><function>sum</function><age>1</age></pattern>", "no <age>"),
        ("<columns>x</columns>", "no <columns>"),
        (
            "<default><function>sum</function><retention><age>old</age></retention></default>",
            "whole number",
        ),
    ],
)
def test_rules_that_make_no_sense_are_refused_with_the_alternatives(
    tmp_path: Path, section: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"<graphite_rollup>{section}</graphite_rollup>")
    assert complaint in str(refused.value)
    assert "config.xml:1" in str(refused.value)


@pytest.mark.parametrize(
    ("tags", "regexp"),
    [
        ("name", r"^name\?"),
        ("name;b=2;a=1", r"^name\?(.*&)?a=1&(.*&)?b=2(&.*)?$"),
        ("b=2;a=1;", r"[\?&]a=1&(.*&)?b=2(&.*)?$"),
    ],
)
def test_a_list_of_tags_becomes_a_regular_expression(tags: str, regexp: str) -> None:
    assert tagged_regexp(tags) == regexp


CREATE = (
    "CREATE TABLE d.g (`Path` String, `Time` DateTime, `Value` Float64, `Version` UInt32) "
    "ENGINE = GraphiteMergeTree('graphite_rollup') ORDER BY (Path, Time) SETTINGS index_granularity = 8192"
)


def test_the_metadata_has_the_hash_of_the_rules_that_the_engine_names() -> None:
    metadata = parse_definition(CREATE, rollups=ROLLUPS).metadata
    assert metadata.to_bytes().decode().endswith(f"graphite hash: {HASHES['graphite_rollup']}\n")


def test_rules_that_nobody_configured_are_refused() -> None:
    with pytest.raises(SqlError) as refused:
        parse_definition(CREATE, rollups={"other": GraphiteRollup()})
    assert refused.value.code == 139
    assert "other" in str(refused.value)
