"""What depends on something that is dropped or renamed: the node's scratch tables do not count.

A scratch table has its table's structure, and so the dictionaries that its defaults ask. It stands while a
part is made, and a moment longer; users know nothing of it.

Source: ClickHouse's DatabaseCatalog::checkTableCanBeRemovedOrRenamed.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.storage.layout import SCRATCH_DATABASE

_BEFORE_NAMES = "some tables depend on it: "

UNCHECKED = {"check_table_dependencies": "0", "check_referential_table_dependencies": "0"}
"""For a statement that only scratch tables stand in the way of."""


def without_scratch_tables(error: SqlError) -> SqlError | None:
    """The error as a server without them has it; None where there is none then."""
    head, found, names = error.message.partition(_BEFORE_NAMES)
    if error.code != Code.HAVE_DEPENDENT_OBJECTS or not found:
        return error
    all_names = names.removesuffix(".").split(", ")
    others = [name for name in all_names if not name.startswith(f"{SCRATCH_DATABASE}.")]
    if not others:
        return None
    if len(others) == len(all_names):
        return error
    return SqlError(error.code, f"{head}{found}{', '.join(others)}.", hint=error.hint, name=error.name)
