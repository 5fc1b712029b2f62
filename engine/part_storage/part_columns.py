"""Columns that no table has and that tell of the part a row lies in: `_part` and its kin, in mutations.

A mutation runs in a scratch table. chDB reads what these columns say from the name of the part's directory
there, so a mutation that names them runs on a part of the replicated name (`ScratchTables.renamed`): `_part`,
`_block_number`, `_part_data_version` say what they say on a ClickHouse server. The others (`_partition_id`,
`_part_offset`, …) are the same under any name. Two things are beyond that and are refused, because what came
out would be wrong:

- `_table` and `_database`, which would be the scratch table's. ClickHouse's own mutations fail with 16
  NO_SUCH_COLUMN_IN_TABLE where they do not take them for constants.
- a subquery that reads such a column: it reads tables as chDB has them, whose parts have chDB's names.

A table may have columns with these names, but in chDB no mutation can read those (10, not found in block).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.errors import Code, SqlError
from engine.sql.cursor import Cursor
from engine.sql.tokens import literal_value
from engine.sql.user_functions import names_in

_OF_THE_NAME = frozenset({"_part", "_block_number", "_part_data_version"})
"""What they say comes from the name of the part."""
_OF_THE_TABLE = frozenset({"_table", "_database"})
_CHDBS_OWN = _OF_THE_NAME | {"_part_uuid"}
"""Of parts that readers see these say something else than on a ClickHouse server."""


def depends_on_name(texts: Sequence[str]) -> bool:
    """Whether expressions may say something else where the part has another name."""
    return any(not _OF_THE_NAME.isdisjoint(names_in(text)) for text in texts)


def refuse_untellable(texts: Sequence[str]) -> None:
    """Raises SqlError 48 for commands of a mutation whose result would be wrong here."""
    for text in texts:
        if (_OF_THE_TABLE | _CHDBS_OWN).isdisjoint(names_in(text)):
            continue
        for name, is_in_subquery in _where_named(text):
            if is_in_subquery and name in _CHDBS_OWN:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"Column {name} in a subquery of a mutation is not supported for replicated tables: "
                    "parts have other names there",
                    hint=f"Use {name} outside of subqueries, or choose the rows by columns of the table.",
                )
            if not is_in_subquery and name in _OF_THE_TABLE:
                raise SqlError(
                    Code.NOT_IMPLEMENTED,
                    f"Column {name} in a mutation of a replicated table is not supported",
                    hint="Leave it out: a mutation is of one table, whose name is known.",
                )


def _where_named(text: str) -> Iterator[tuple[str, bool]]:
    """Every identifier, and whether it stands in a subquery."""
    c = Cursor(text)
    within: list[bool] = []
    for at, (token, word) in enumerate(zip(c.tokens, c.words, strict=True)):
        if word == "(":
            is_subquery = at + 1 < len(c.words) and c.words[at + 1] in ("SELECT", "WITH")
            within.append(is_subquery or within[-1:] == [True])
        elif word == ")" and within:
            within.pop()
        elif token.is_name:
            yield literal_value(token), within[-1:] == [True]
