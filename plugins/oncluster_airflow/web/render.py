"""HTML of what was seen. Everything that comes from a cluster is escaped by the templates (autoescape)."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from engine.operations.overview import Cell, ClusterOverview, GridPage, Level, PartState, Show
from engine.operations.overview.lag import lag_series
from engine.operations.overview.model import Task
from engine.operations.overview.queue_grid import counts_by_host
from engine.operations.overview.words import WORDS_OF_CELLS
from engine.operations.records import Sample
from engine.wording import duration, moment, shortened, size
from oncluster_airflow.web.actions import Action, dag_run_of
from oncluster_airflow.web.lag_chart import lag_chart

_HERE = Path(__file__).parent
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "theme.js": "text/javascript"}

GLYPHS: Mapping[Cell, str] = {
    Cell.DONE: "✓",
    Cell.FAILED: "✗",
    Cell.RUNNING: "▶",
    Cell.WAITING: "…",
    Cell.AWAY: "○",
    Cell.ABANDONED: "–",
    Cell.UNREAD: "?",
    Cell.NONE: "",
}
_CELLS = {
    cell.value: Markup('<td class="c-{}" title="{}">{}</td>').format(
        "n" if cell is Cell.NONE else cell.value, WORDS_OF_CELLS[cell], GLYPHS[cell]
    )
    for cell in Cell
}
_EMPTY_CELL = Markup("<td></td>")
LAG_SPANS_S: Mapping[str, int] = {"1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}


@dataclass(frozen=True, slots=True)
class Site:
    """Where the page stands: `base` of its own routes, `airflow` of Airflow's, both ending in a slash."""

    base: str
    airflow: str
    docs_url: str = ""


def static_text(name: str) -> str:
    """Raises KeyError for a name that is not of the page."""
    if name not in STATIC:
        raise KeyError(name)
    return (_HERE / "static" / name).read_text()


@functools.cache
def static_version() -> str:
    """Changes with the files, so that browsers may keep them."""
    return hashlib.sha256("".join(static_text(name) for name in STATIC).encode()).hexdigest()[:12]


def warm() -> None:
    """Blocks for some tenths of a second: templates are compiled, and the library for charts is loaded."""
    for name in _environment().list_templates():
        _environment().get_template(name)
    lag_chart((), since_ms=0, until_ms=1000)


def render_index(site: Site, clusters: Sequence[str]) -> str:
    return _render("index.html", site, clusters=clusters)


def render_error(site: Site, title: str, what: str, advice: str) -> str:
    return _render("error.html", site, title=title, what=what, advice=advice)


def render_cluster(
    site: Site,
    overview: ClusterOverview,
    page: GridPage | None,
    *,
    clusters: Sequence[str],
    actions: Sequence[tuple[Action, bool]],
    lag_span: str,
) -> str:
    """The whole page. `actions` with whether the user may start them."""
    view = overview.queue.value
    return _render(
        "cluster.html",
        site,
        at_ms=overview.at_ms,
        overview=overview,
        cluster=overview.cluster,
        clusters=clusters,
        page=page,
        counts=counts_by_host(view) if view else {},
        actions=actions,
        lag=_lag(overview, lag_span),
        lag_span=lag_span,
        lag_spans=list(LAG_SPANS_S),
    )


def render_task(site: Site, overview: ClusterOverview, task: Task) -> str:
    """One task, host by host."""
    view = overview.queue.value
    hosts = view.hosts if view else ()
    cells = [(host, Cell(letter)) for host, letter in zip(hosts, task.cells, strict=False)]
    return _render(
        "task.html",
        site,
        at_ms=overview.at_ms,
        cluster=overview.cluster,
        clusters=(),
        task=task,
        cells=[(host, cell) for host, cell in cells if cell is not Cell.NONE],
        stuck=[item for item in overview.stuck if item.task == task.name],
    )


# --- the chart --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lag:
    svg: Markup
    legend: tuple[tuple[str, str], ...]
    samples: int


def _lag(overview: ClusterOverview, span: str) -> _Lag | None:
    """None while the database has not been read."""
    view = overview.records.value
    if view is None:
        return None
    since_ms = overview.at_ms - LAG_SPANS_S.get(span, LAG_SPANS_S["24h"]) * 1000
    return _drawn_lag(view.lag, since_ms // 60_000 * 60_000, -(-overview.at_ms // 60_000) * 60_000)


@functools.lru_cache(maxsize=8)
def _drawn_lag(samples: tuple[Sample, ...], since_ms: int, until_ms: int) -> _Lag:
    series = lag_series(samples, since_ms=since_ms, until_ms=until_ms)
    legend = tuple((line.host, duration(line.greatest_s)) for line in series)
    svg = lag_chart(series, since_ms=since_ms, until_ms=until_ms) if series else ""
    return _Lag(Markup(svg), legend, sum(len(line.points) for line in series))


# --- templates --------------------------------------------------------------------------------------------


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": _ago,
        "bytes": size,
        "cells": _cells,
        "clock": _clock,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "path": lambda text: quote(str(text), safe=""),
        "shorten": lambda text, most: shortened(text, most=most),
        "words": duration,
    }
    environment.globals |= {
        "Cell": Cell,
        "GLYPHS": GLYPHS,
        "Level": Level,
        "PartState": PartState,
        "Show": Show,
        "WORDS": WORDS_OF_CELLS,
        "dag_run_of": dag_run_of,
    }
    return environment


def _render(template: str, site: Site, **values: Any) -> str:
    return _environment().get_template(template).render(site=site, version=static_version(), **values)


@pass_context
def _ago(context: Context, at_ms: int | None) -> str:
    """An age, by the page's own time."""
    return "" if at_ms is None else duration((context["at_ms"] - at_ms) / 1000)


def _clock(at_ms: int | None) -> str:
    return moment(at_ms) if at_ms else ""


def _cells(task: Task, columns: int) -> Markup:
    """The cells of one row: joined here, because a loop over thousands of them in a template is slow."""
    known = Markup("").join(_CELLS[letter] for letter in task.cells)
    return known + _EMPTY_CELL * (columns - len(task.cells))
