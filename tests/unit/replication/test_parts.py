"""Part names, ranges, and sets of parts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SqlError
from engine.replication.part_name import (
    LEGACY_MAX_LEVEL,
    MAX_LEVEL,
    OldSyntaxName,
    PartName,
    drop_range,
    inserted,
    merged,
)
from engine.replication.part_set import (
    ActivePartSet,
    Added,
    Covered,
    PartsIntersect,
    containing,
    covered,
)

P = PartName.parse


@pytest.mark.parametrize(
    "text",
    [
        "all_0_0_0",
        "201812_0_2_1",
        "201812_0_2_1_5",
        "20200102--5_1_1_0",
        "51fbadfb0deeea70ceafbd3c7c8aef25_7_7_0",
        "all_0_41_999999999_999999999",
        "201902_0_1_4294967295",
        "201901_0_2_999999999_2",
    ],
)
def test_a_name_is_written_back_as_it_was_read(text: str) -> None:
    assert str(P(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "all_0_0",
        "all_0_0_0_",
        "all_0_0_0_1_2",
        "all_1_0_0",
        "all_00_0_0",
        "all_0_01_0",
        "all_0_0_0_0",
        "all_-1_0_0",
        "all_+1_1_0",
        "all_0_0_0\n",
        " all_0_0_0",
        "all_0_0_0/",
        "../all_0_0_0",
        "a/b_0_0_0",
        "a.b_0_0_0",
        "a b_0_0_0",
        "_0_0_0",
        "é_0_0_0",
        "all_٣_٣_0",
        "all_0_9999999999999999999_0",
        "all_0_9223372036854775808_0",
        "all_0_0_4294967296",
        "x" * 129 + "_0_0_0",
        "all_0_0_0\0",
        "ignored_all_0_0_0",
    ],
)
def test_what_is_no_name_is_refused_with_clickhouses_code(text: str) -> None:
    with pytest.raises(SqlError) as refused:
        P(text)
    assert refused.value.code == 233
    assert PartName.try_parse(text) is None


def test_an_old_syntax_name_gives_its_month_and_keeps_its_dates() -> None:
    name = OldSyntaxName.parse("20181201_20181230_1_4_2_7")
    assert name.part == P("201812_1_4_2_7")
    assert str(name) == "20181201_20181230_1_4_2_7"
    for text in ("20181201_20190101_1_4_2", "20181230_20181201_1_4_2", "201812_1_4_2"):
        with pytest.raises(SqlError):
            OldSyntaxName.parse(text)


def test_a_wider_part_contains_a_narrower_one_only_with_a_higher_level() -> None:
    assert not P("all_0_5_2").contains(P("all_0_4_2"))
    assert P("all_0_5_3").contains(P("all_0_4_2"))
    assert P("all_0_5_2").contains(P("all_0_5_2"))
    assert P("all_0_5_2_9").contains(P("all_0_5_2"))
    assert not P("all_0_5_2").contains(P("all_0_5_2_9"))
    assert not P("all_0_5_3").contains(P("all_0_4_2_9"))
    assert not P("all_0_5_3").contains(P("b_0_4_2"))


def test_a_drop_range_contains_everything_before_its_number_whatever_its_level_and_mutation() -> None:
    span = drop_range("all", 42)
    assert str(span) == "all_0_41_999999999_999999999"
    assert span is not None and span.is_range
    assert span.contains(P("all_0_41_7_40")) and span.contains(P("all_3_3_0"))
    assert not span.contains(P("all_41_42_1"))
    assert drop_range("all", 0) is None
    assert P(f"all_0_1_{LEGACY_MAX_LEVEL}").is_range and not P("all_0_1_3").is_range
    assert P(f"all_0_9_{MAX_LEVEL}").contains(P(f"all_0_1_{MAX_LEVEL}"))


def test_the_data_version_is_the_mutation_or_else_the_first_block() -> None:
    assert P("all_3_9_1").data_version == 3
    assert P("all_3_9_1_12").data_version == 12
    assert str(P("all_3_9_1").mutated(12)) == "all_3_9_1_12"
    with pytest.raises(ValueError):
        P("all_3_9_1_12").mutated(12)


def test_a_merge_spans_its_sources_and_counts_one_level_more() -> None:
    assert merged([P("all_0_2_1_4"), P("all_3_3_0"), P("all_5_5_0")]) == P("all_0_5_2_4")
    assert merged([P("201902_2_2_0")]) == P("201902_2_2_1")
    for wrong in (
        [],
        [P("a_0_0_0"), P("b_1_1_0")],
        [P("a_1_1_0"), P("a_0_0_0")],
        [P("a_0_2_1"), P("a_2_2_0")],
    ):
        with pytest.raises(ValueError):
            merged(wrong)


# --- sets -------------------------------------------------------------------------------------------------


def test_a_merged_part_takes_the_place_of_its_sources() -> None:
    parts = ActivePartSet(map(P, ["all_0_0_0", "all_1_1_0", "all_2_2_0", "b_1_1_0"]))
    assert parts.add(P("all_0_1_1")) == Added((P("all_0_0_0"), P("all_1_1_0")))
    assert list(map(str, parts)) == ["all_0_1_1", "all_2_2_0", "b_1_1_0"]
    assert len(parts) == 3 and P("all_0_1_1") in parts and P("all_0_0_0") not in parts


def test_a_covered_part_is_not_added_and_one_learns_by_what_it_is_covered() -> None:
    parts = ActivePartSet([P("all_0_5_2")])
    assert parts.add(P("all_3_3_0")) == Covered(P("all_0_5_2"))
    assert parts.add(P("all_0_5_2")) == Covered(P("all_0_5_2"))
    assert parts.get_containing(P("all_3_3_0")) == P("all_0_5_2")
    assert parts.get_containing(P("all_6_6_0")) is None


def test_parts_that_overlap_without_containing_are_refused_and_change_nothing() -> None:
    parts = ActivePartSet([P("all_0_3_1"), P("all_4_4_0")])
    for text in ("all_2_5_1", "all_0_4_1", "all_3_4_5", "all_0_3_0_9"):
        with pytest.raises(PartsIntersect):
            parts.add(P(text))
    assert list(map(str, parts)) == ["all_0_3_1", "all_4_4_0"]


def test_a_drop_range_takes_out_what_it_contains_and_nothing_else() -> None:
    parts = ActivePartSet(map(P, ["all_0_3_1", "all_4_4_0", "all_7_7_0", "b_0_0_0"]))
    span = drop_range("all", 5)
    assert span is not None
    assert parts.remove_covered_by(span) == (P("all_0_3_1"), P("all_4_4_0"))
    assert list(map(str, parts)) == ["all_7_7_0", "b_0_0_0"]
    assert not parts.remove(P("all_4_4_0")) and parts.remove(P("b_0_0_0"))
    assert parts.partition_ids == ("all",)


part_names = st.builds(
    lambda p, low, span, level, mutation: PartName(p, low, low + span, level, mutation),
    st.sampled_from(["all", "201812"]),
    st.integers(0, 12),
    st.integers(0, 5),
    st.integers(0, 3) | st.just(MAX_LEVEL),
    st.integers(0, 3),
)


@given(part_names)
def test_every_name_survives_its_text(part: PartName) -> None:
    assert P(str(part)) == part


@given(part_names, part_names, part_names)
def test_containing_is_a_partial_order(a: PartName, b: PartName, c: PartName) -> None:
    assert a.contains(a)
    if a.contains(b) and b.contains(c) and not a.is_range:
        assert a.contains(c)
    if a.contains(b):
        assert a.intersects(b)


@given(st.lists(part_names, max_size=25), part_names)
def test_a_set_answers_as_a_search_through_all_parts_would(names: list[PartName], probe: PartName) -> None:
    parts = ActivePartSet()
    model: list[PartName] = []
    for name in names:
        overlapping = [each for each in model if each.intersects(name)]
        try:
            result = parts.add(name)
        except PartsIntersect:
            assert any(not each.contains(name) and not name.contains(each) for each in overlapping)
        else:
            match result:
                case Covered(by):
                    assert by in model and by.contains(name)
                case Added(replaced):
                    assert sorted(replaced) == sorted(each for each in model if name.contains(each))
                    model = [each for each in model if each not in replaced] + [name]
        assert list(parts) == sorted(model) and len(parts) == len(model)
    assert parts.get_containing(probe) == next((each for each in model if each.contains(probe)), None)
    assert list(parts.parts_covered_by(probe)) == sorted(each for each in model if probe.contains(each))
    twin = parts.copy()
    twin.remove_covered_by(PartName(probe.partition_id, 0, 99, MAX_LEVEL, 99))
    assert list(parts) == sorted(model)


def test_an_inserted_part_spans_its_one_block() -> None:
    assert inserted("all", 7) == P("all_7_7_0")
    with pytest.raises(SqlError):
        inserted("../x", 7)


_ANY_PART = st.builds(
    lambda partition, first, length, level, mutation: PartName(
        partition, first, first + length, level, mutation
    ),
    st.sampled_from(["a", "b"]),
    st.integers(0, 9),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([0, 20, 21]),
)


@given(st.lists(_ANY_PART, max_size=12), _ANY_PART)
def test_of_any_parts_those_that_others_contain(parts: list[PartName], part: PartName) -> None:
    distinct = sorted(set(parts))
    assert covered(parts) == [
        each for each in distinct if any(o != each and o.contains(each) for o in distinct)
    ]
    found = containing(parts, part)
    assert found in parts and found.contains(part) if found else not any(o.contains(part) for o in parts)


def test_many_parts_are_compared_in_no_time() -> None:
    """5,000 took 10 s, with each start of a table."""
    parts = [PartName("all", number, number, 0) for number in range(5000)]
    outer = PartName("all", 100, 110, 1)
    begin_s = time.process_time()
    assert covered([*parts, outer]) == parts[100:111]
    assert time.process_time() - begin_s < 1.0
