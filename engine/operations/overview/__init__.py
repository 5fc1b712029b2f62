"""What there is to see of a cluster at one moment, as values: for a page and for the command line.

Nothing here changes anything. `gather` looks, at hosts, queue and database separately and for a bounded
time; `why_stuck` says in words what does not move and why; showing it is the caller's affair.
"""

from engine.operations.overview.gather import look, look_at_hosts, look_at_queue, look_at_records
from engine.operations.overview.model import (
    Answer,
    Cell,
    ClusterOverview,
    HostsView,
    Level,
    Part,
    PartState,
    QueueView,
    RecordsView,
)
from engine.operations.overview.queue_grid import GridPage, Show, make_page
from engine.operations.overview.queue_reader import QueueReader

__all__ = [
    "Answer",
    "Cell",
    "ClusterOverview",
    "GridPage",
    "HostsView",
    "Level",
    "Part",
    "PartState",
    "QueueReader",
    "QueueView",
    "RecordsView",
    "Show",
    "look",
    "look_at_hosts",
    "look_at_queue",
    "look_at_records",
    "make_page",
]
