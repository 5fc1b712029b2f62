"""Tests with many seeds or cases of one kind: the first few belong to `make test`, the others to
`make test-extended`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def few_first(cases: Iterable[Any], *, few: int) -> list[Any]:
    """For `pytest.mark.parametrize`; a tuple is a value for each name. `tests/conftest.py` looks for the name
    of this function: the file has extended tests."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=() if number < few else pytest.mark.extended)
        for number, case in enumerate(tuples)
    ]


def each_in_turn(cases: Iterable[Any], variants: Sequence[Any]) -> list[Any]:
    """Every case with every variant, for `pytest.mark.parametrize`: the earlier run has each case with one of
    the variants, which take turns. `tests/conftest.py` looks for this name, too."""
    known = list(cases)
    pairs = [
        (case, variants[(number + more) % len(variants)])
        for more in range(len(variants))
        for number, case in enumerate(known)
    ]
    return few_first(pairs, few=len(known))
