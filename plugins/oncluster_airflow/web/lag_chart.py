"""Replication lag as a line chart: an SVG that the page's own style sheet colours, for light and dark.

pygal draws; its scripts and inline styles are left out, because the page allows neither.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from typing import Any

from engine.operations.overview.lag import LagSeries
from engine.wording import duration

WIDTH, HEIGHT = 900, 240


def lag_chart(series: Sequence[LagSeries], *, since_ms: int, until_ms: int) -> str:
    """SVG text to stand in HTML. Lines have the classes `color-0`, `color-1`, … in the order of `series`."""
    import pygal  # not needed before the first chart: Airflow's other processes load this package, too
    from pygal.etree import etree

    chart = pygal.DateTimeLine(
        width=WIDTH,
        height=HEIGHT,
        js=(),
        css=(),
        show_dots=False,
        show_legend=False,
        explicit_size=False,
        include_x_axis=True,
        no_data_text="No samples",
        xrange=(since_ms / 1000, until_ms / 1000),
        x_value_formatter=_clock,
        value_formatter=_delay,
        margin=12,
        truncate_label=-1,
        x_labels=[_at(since_ms + (until_ms - since_ms) * step // 6) for step in range(7)],
        print_values=False,
    )
    for line in series:
        chart.add(line.host, [(_at(at_ms), value) for at_ms, value in line.points])
    tree: Any = chart.render_tree()
    _strip(tree)
    worst = max((line.greatest_s for line in series), default=0.0)
    tree.set("role", "img")
    tree.set("aria-label", f"Replication lag of {len(series)} hosts; at most {duration(worst)}.")
    return str(etree.tostring(tree, encoding="unicode"))


def _strip(element: Any) -> None:
    """Take away scripts, styles and comments, and links and attributes that would load or run something."""
    for child in list(element):
        name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if name in ("", "style", "script", "defs"):
            element.remove(child)
            continue
        for attribute in list(child.attrib):
            if attribute == "style" or attribute.startswith("on") or attribute.endswith("href"):
                del child.attrib[attribute]
        _strip(child)


def _at(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).replace(tzinfo=None)


def _delay(value_s: float) -> str:
    """Marks of the axis stand close together: exact, where words would say "2 min" twice."""
    return f"{value_s:g} s" if value_s < 600 else f"{value_s / 60:.3g} min"


@functools.lru_cache(maxsize=64)
def _clock(at: datetime.datetime) -> str:
    return at.strftime("%H:%M")
