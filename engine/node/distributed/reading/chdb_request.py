"""A request with the text that chDB gets, and what is known of it: is its answer small, whom does it read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from engine.distributed.select import IS_CHECKED, Analysis
from engine.node.statements.statement import Asked
from engine.part_storage import LIKE_ONE_FOR_THE_SESSION

DEPTH = re.compile(r"\s*/\* distributed depth (\d+) \*/")
ONE_ROW = re.compile(DEPTH.pattern + r" /\* one row \*/(?!.*\bOUTFILE\b)", re.IGNORECASE | re.DOTALL)
_FOR_ONE_ROW = {"output_format_parallel_formatting": "0"}
"""It starts threads, which pay for many rows only."""
_MOST_WAITING = 64
_PASTE_JOIN = re.compile(r"\bPASTE\s+JOIN\b", re.IGNORECASE)
_DROPS_SORTING = "query_plan_remove_redundant_sorting"
_URL_IS_READ_BY_ONE = ("parallel_replicas_for_cluster_engines", "0")
_ALSO = (
    ("use_query_cache", "query_cache_nondeterministic_function_handling", "ignore"),
    ("use_query_cache", "query_cache_system_table_handling", "ignore"),
    ("exact_rows_before_limit", "optimize_read_in_order", "0"),
    ("enable_parallel_replicas", *_URL_IS_READ_BY_ONE),
    ("allow_experimental_parallel_reading_from_replicas", *_URL_IS_READ_BY_ONE),
)
"""Settings that need another one beside them, unless the user says something of that.

To the query cache `url()` may answer differently every time, and rows that were asked for early stand beside
a table of `system`, so it would refuse the statement (704, 719): it is run, and not kept. Rows that are read
in the order of ORDER BY beside those of `url()` would not be counted. With parallel replicas chDB would have
`url()` read by a cluster, and it knows none (701).
"""


def with_types(asked: Asked, types: Iterable[str]) -> Asked:
    """The request that may read columns of these types: chDB checks them like those of a CREATE where it is
    told what shards answer, and whoever made the table was asked."""
    if not any(map(IS_CHECKED.search, types)):
        return asked
    return replace(asked, settings={**asked.settings, **LIKE_ONE_FOR_THE_SESSION})


def with_text(asked: Asked, sql: str, analysis: Analysis, *, takes_settings: bool) -> Asked:
    """The request with the text that chDB gets."""
    asked = _with_settings_beside(_with_sorted_sides(asked)).rewritten(sql)
    asked = with_types(asked, (column.type for read in analysis.reads for column in read.result))
    is_small = analysis.has_one_row and "OUTFILE" not in sql.upper()
    return with_one_row(asked, takes_settings=takes_settings) if is_small else asked


def with_one_row(asked: Asked, *, takes_settings: bool) -> Asked:
    """The same for a SELECT whose answer needs no stream. It changes nothing, so that a request that may only
    read (GET) needs no readonly mode, which would cost a connection of its own."""
    if not asked.is_stateless or asked.session.is_readonly:
        return replace(asked, has_one_row=True)
    settings = {**_FOR_ONE_ROW, **asked.settings}
    return replace(
        asked, settings=settings, is_readonly=False, has_one_row=True, takes_settings=takes_settings
    )


def _with_sorted_sides(asked: Asked) -> Asked:
    """PASTE JOIN goes by the order of rows, and chDB drops the ORDER BY of its sides where one behind it or
    an aggregation makes it seem needless. One table may have that order by itself, shards have not."""
    told = (*asked.session.settings, *asked.settings)
    if not _PASTE_JOIN.search(asked.sql) or asked.session.is_readonly or _DROPS_SORTING in told:
        return asked
    return replace(asked, settings={**asked.settings, _DROPS_SORTING: "0"})


def _with_settings_beside(asked: Asked) -> Asked:
    told = {**asked.session.settings, **asked.settings}
    more = {
        name: value
        for setting, name, value in _ALSO
        if (setting in told or setting in asked.sql) and name not in told and name not in asked.sql
    }
    if not more or asked.session.is_readonly:
        return asked
    return replace(asked, settings={**asked.settings, **more})


def with_threads(asked: Asked, reads: int, *, usual: int) -> Asked:
    """A SELECT that reads other nodes `reads` times, each with a thread of its own that waits for the answer:
    else some would be asked when others have answered, and this node's own rows would be read by fewer.

    `usual`: the threads of a statement that does not say how many. One whose text says so has what it says. A
    session would be told before and behind the statement, so there it is done only where nobody else would
    have a thread.
    """
    given = {**asked.session.settings, **asked.settings}.get("max_threads", "")
    threads = int(given) if given.isdigit() and int(given) else usual
    is_told_for_nothing = not asked.is_stateless and reads < threads
    if not reads or is_told_for_nothing or asked.session.is_readonly or "max_threads" in asked.sql:
        return asked
    more = threads + min(reads, _MOST_WAITING)
    return replace(asked, settings={**asked.settings, "max_threads": str(more)})
