"""What chDB keeps of a failed statement: the output that it had written until then.

It gives it in front of the next result of the connection, whatever that is. So a connection that lives on is
rid of it first.
"""

from __future__ import annotations

import contextlib
from typing import Any

_NOTHING = ""
"""A text without a statement. A statement may fail as the one before it did, for want of memory or beyond the
limits of a session; then the output would stay."""


def drop_output(connection: Any) -> None:
    """On the connection of a statement that has just failed. It raises nothing."""
    with contextlib.suppress(RuntimeError):
        connection.query(_NOTHING, "Null")
