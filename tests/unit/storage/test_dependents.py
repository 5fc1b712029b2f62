"""What depends on a table, as a server without scratch tables says it."""

from engine.errors import Code, SqlError
from engine.storage.dependents import without_scratch_tables

HEAD = "Cannot drop or rename default.d, because some tables depend on it: "


def dependent(names: str) -> SqlError:
    return SqlError(Code.HAVE_DEPENDENT_OBJECTS, f"{HEAD}{names}.", name="HAVE_DEPENDENT_OBJECTS")


def test_scratch_tables_alone_are_no_hindrance() -> None:
    assert without_scratch_tables(dependent("_oncluster.merge_1, _oncluster.stage_2")) is None


def test_they_are_not_named_beside_a_users_table() -> None:
    left = without_scratch_tables(dependent("_oncluster.merge_1, default.t"))
    assert left is not None
    assert (left.code, left.message, left.name) == (630, f"{HEAD}default.t.", "HAVE_DEPENDENT_OBJECTS")


def test_any_other_error_is_as_it_was() -> None:
    for error in (
        dependent("default.t, default._oncluster.x"),
        SqlError(Code.HAVE_DEPENDENT_OBJECTS, "of another text"),
        SqlError(Code.UNKNOWN_TABLE, f"{HEAD}_oncluster.merge_1."),
    ):
        assert without_scratch_tables(error) is error
