"""The host × task grid, page by page. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.operations.overview.model import Cell, QueueView, Task

PAGE_TASKS = 50


class Show(enum.StrEnum):
    """Which tasks."""

    ALL = "all"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GridPage:
    """`tasks` are those of the page; `number` counts from 1 to `pages`. The counts are of the whole queue."""

    show: Show
    number: int
    pages: int
    hosts: tuple[str, ...]
    tasks: tuple[Task, ...]
    matching: int
    total: int
    open: int
    failed: int
    unread: int

    @property
    def first(self) -> int:
        """The place of the page's first task among those that match, from 1."""
        return (self.number - 1) * PAGE_TASKS + 1 if self.matching else 0

    @property
    def last(self) -> int:
        return min(self.matching, self.number * PAGE_TASKS)


def make_page(view: QueueView, *, show: Show = Show.ALL, number: int = 1) -> GridPage:
    """One page; a number beyond the last page is the last page."""
    tasks = matching(view, show)
    pages = max(1, -(-len(tasks) // PAGE_TASKS))
    number = min(max(1, number), pages)
    return GridPage(
        show=show,
        number=number,
        pages=pages,
        hosts=view.hosts,
        tasks=tuple(tasks[(number - 1) * PAGE_TASKS : number * PAGE_TASKS]),
        matching=len(tasks),
        total=len(view.tasks),
        open=sum(task.is_open for task in view.tasks),
        failed=sum(task.has_failures for task in view.tasks),
        unread=view.unread,
    )


def matching(view: QueueView, show: Show) -> Sequence[Task]:
    """The tasks to be shown, the newest first."""
    match show:
        case Show.ALL:
            return view.tasks
        case Show.OPEN:
            return [task for task in view.tasks if task.is_open]
        case Show.FAILED:
            return [task for task in view.tasks if task.has_failures]


def counts_by_host(view: QueueView) -> Mapping[str, Mapping[Cell, int]]:
    """For each host how many tasks are in which state; states without tasks left out."""
    letters = {cell: cell.value for cell in Cell if cell is not Cell.NONE}
    columns = zip(*(task.cells for task in view.tasks), strict=True) if view.tasks else [()] * len(view.hosts)
    counted: list[Mapping[Cell, int]] = [
        {cell: number for cell, letter in letters.items() if (number := column.count(letter))}
        for column in columns
    ]
    return dict(zip(view.hosts, counted, strict=True))
