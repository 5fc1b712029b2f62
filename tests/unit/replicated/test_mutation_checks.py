"""Which mutations are refused because replicas would come to different rows."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.node.replicated.parts.mutation_checks import Functions, refuse_fickle
from engine.sql.user_functions import with_bodies

FUNCTIONS = Functions(
    exact={"hostName": False, "concat": True}, any_case={"now": False, "rand": False, "lower": True}
)
BODIES = {
    "f": "CREATE FUNCTION f AS x -> g(x)",
    "g": "CREATE FUNCTION g AS (x) -> (x + `Rand`())",
    "pure": "CREATE FUNCTION pure AS x -> lower(pure(x))",
}


def refused(text: str) -> bool:
    try:
        for each in with_bodies(text, BODIES):
            refuse_fickle(each, FUNCTIONS, ["k", "v", "today"])
    except SqlError as error:
        assert error.code == 36
        return True
    return False


@pytest.mark.parametrize(
    "value",
    [
        "now()",
        "NOW ()",
        "`rand`()",
        '"RAND"()',
        "hostName()",
        "concat(v, Rand(/* 1 */))",
        "CURRENT_TIMESTAMP",
        "`current_user`",
        "f(v)",
        "(SELECT 1)",
        "arrayMap(x -> x + rand(), [1])[1]",
        "Today",
    ],
)
def test_what_may_give_something_else_on_another_replica_is_refused(value: str) -> None:
    assert refused(f"UPDATE v = {value} WHERE k = 1")
    assert refused(f"DELETE WHERE v = {value}")


@pytest.mark.parametrize(
    "value",
    [
        "lower('now()')",
        "HOSTNAME(v)",  # there is no such function, as chDB will say
        "today",  # a column
        "k.now",
        "now.1",
        "arrayMap(now -> now + 1, [v])[1]",
        "(k + 1 AS user) + user",
        "pure(v)",
        "-- rand()\n v",
    ],
)
def test_what_is_the_same_everywhere_is_not_refused(value: str) -> None:
    assert not refused(f"UPDATE v = {value} WHERE k = 1")
