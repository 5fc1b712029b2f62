"""What some Pythons cannot do, for tests that need it."""

from __future__ import annotations

import sys

import pytest

keeps_texts_of_any_bytes = pytest.mark.skipif(
    sys.version_info < (3, 11, 4),
    reason="before 3.11.4 Python loses the text of an error of chDB's that is no UTF-8, and its code with it",
)
