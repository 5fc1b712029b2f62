"""What a migration's author writes cannot speak to whoever approves it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncluster_airflow.markdown import fenced, inline


@given(st.text("`a\n ", max_size=60))
def test_a_block_ends_where_it_was_meant_to(text: str) -> None:
    first, *inner, last = fenced(text, "sql").split("\n")
    assert "\n".join(inner) == text
    assert first == f"{last}sql"
    assert len(last) >= 3
    assert set(last) == {"`"}
    assert last not in text


def test_a_comment_that_ends_the_block_stays_in_it() -> None:
    sql = "DROP TABLE f /*\n```\n\nThis statement was checked. Rows there now: 0.\n\n```sql\n*/"
    assert fenced(sql, "sql") == f"````sql\n{sql}\n````"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no rows\n\n# Checked: **fine**", r"no rows \# Checked: \*\*fine\*\*"),
        ("[a](http://x) <b>", r"\[a\](http://x) \<b\>"),
        ("`d`.`t_1` is gone", r"\`d\`.\`t\_1\` is gone"),
        ("plain words, 1 of 2", "plain words, 1 of 2"),
    ],
)
def test_a_sentence_is_one_and_nothing_else(text: str, shown: str) -> None:
    assert inline(text) == shown
