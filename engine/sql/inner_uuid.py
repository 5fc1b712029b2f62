"""`TO INNER UUID '…'`: the UUID of the table that a materialized view without TO has of its own.

Like the view's, it is made by who sends the statement, so that it is the same on all hosts.

Source: ClickHouse's ASTCreateQuery::generateRandomUUIDs.
"""

from __future__ import annotations

from engine.sql.cursor import Role
from engine.sql.draft import Draft
from engine.sql.kinds import StatementKind


def inner_uuid_at(d: Draft) -> int | None:
    """The offset at which the clause belongs; None for a statement that has it, or needs none."""
    if d.kind is not StatementKind.CREATE_MATERIALIZED_VIEW or not d.refs:
        return None
    words = d.words
    has_it = any(words[at : at + 3] == ["TO", "INNER", "UUID"] for at in range(len(words)))
    if has_it or any(ref.role is Role.TARGET for ref in d.refs):
        return None
    d.at = d.at_offset(d.refs[0].end)
    if d.uuid is not None and d.word == "UUID":
        d.at += 2
    if d.looking_at("ON", "CLUSTER"):
        d.at += 2
        d.identifier_or_string()
    if d.word == "REFRESH":
        d.skip_to("APPEND", "TO", "(", "ENGINE", "AS", "EMPTY", "POPULATE")
        if not d.accept("APPEND"):
            return None  # each refresh puts a new table in the old one's place
    return d.last_end
