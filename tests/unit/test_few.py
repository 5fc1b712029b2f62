"""Of a family of tests the earlier run has a part, and both runs together have all."""

from __future__ import annotations

from tests.few import each_in_turn, few_first


def test_the_first_few_belong_to_the_earlier_run() -> None:
    assert [(each.values, bool(each.marks)) for each in few_first(["a", ("b", 2)], few=1)] == [
        (("a",), False),
        (("b", 2), True),
    ]


def test_every_case_is_early_with_one_variant_and_later_with_the_others() -> None:
    chosen = each_in_turn(iter("abc"), [1, 2])
    assert [each.values for each in chosen if not each.marks] == [("a", 1), ("b", 2), ("c", 1)]
    assert sorted(each.values for each in chosen) == [(case, n) for case in "abc" for n in (1, 2)]
