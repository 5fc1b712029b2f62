"""Tests with many seeds or cases of one kind: the first few are fast tests, the others slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_first(cases: Iterable[Any], *, few: int) -> list[Any]:
    """For `pytest.mark.parametrize`. `tests/conftest.py` looks for the name: the file has slow tests."""
    return [
        case if number < few else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
