"""Tests with many seeds or cases of one kind: the first few belong to `make test`, the others to
`make test-extended`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_first(cases: Iterable[Any], *, few: int) -> list[Any]:
    """For `pytest.mark.parametrize`. `tests/conftest.py` looks for the name: the file has extended tests."""
    return [
        case if number < few else pytest.param(case, marks=pytest.mark.extended)
        for number, case in enumerate(cases)
    ]
