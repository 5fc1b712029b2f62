"""Reads the section `oncluster/health`: when a check speaks up.

    <oncluster>
        <health>
            <queue_size>50</queue_size>
            <disk_free_percent>off</disk_free_percent>
            <table>
                <pattern>logs.*</pattern>
                <absolute_delay_s>3600</absolute_delay_s>
            </table>
        </health>
    </oncluster>

ClickHouse passes over a section that it does not know, so it may stand in a server's own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from engine.config import reading
from engine.config.element import Element
from engine.config.health_model import HealthSettings, TableLimits, TableOverride
from engine.errors import ConfigError

_OFF = "off"
_TABLE = "table"
_PATTERN = "pattern"
_LIMITS = frozenset(field.name for field in fields(TableLimits))
_COMMON = frozenset(field.name for field in fields(HealthSettings)) - {"limits", "overrides"}
_NEVER_OFF = frozenset({"samples_keep_s", "repair_limit", "repair_wait_s"})
_PERCENTS = frozenset({"disk_free_percent", "disk_critical_percent"})


def read_health(root: Element) -> HealthSettings:
    """The section; the defaults without one. Raises ConfigError that names the element and what is right."""
    ours = root.first("oncluster")
    section = None if ours is None else ours.first("health")
    if section is None:
        return HealthSettings()
    reading.refuse_unknown(section, _LIMITS | _COMMON | {_TABLE})
    settings = HealthSettings(
        limits=TableLimits(**_numbers(section, _LIMITS)),
        overrides=tuple(map(_override, section.all(_TABLE))),
        **_numbers(section, _COMMON),  # type: ignore[arg-type]  # the three that are never None are never off
    )
    low, critical = settings.disk_free_percent, settings.disk_critical_percent
    if low is not None and critical is not None and critical > low:
        raise ConfigError(
            f"{section.source}: <disk_critical_percent> {critical} is more than <disk_free_percent> {low}",
            hint="A disk gets critical when less is free than at the warning: write a smaller number.",
        )
    return settings


def _override(section: Element) -> TableOverride:
    reading.refuse_unknown(section, _LIMITS | {_PATTERN})
    pattern = reading.required_text(section, _PATTERN)
    if "." not in pattern and "*" not in pattern:
        raise ConfigError(
            f"{section.source}: <pattern> is '{pattern}', which no table fits",
            hint="Write database.table, with * for any text: shop.* or *.events.",
        )
    limits = _numbers(section, _LIMITS)
    if not limits:
        raise ConfigError(
            f"{section.source}: <table> for '{pattern}' changes no limit",
            hint=f"Add one of: {', '.join(sorted(_LIMITS))}.",
        )
    return TableOverride(pattern, limits)


def _numbers(section: Element, names: frozenset[str]) -> Mapping[str, int | None]:
    return {child.name: _number(child) for child in reversed(section.children) if child.name in names}


def _number(child: Element) -> int | None:
    may_be_off = child.name not in _NEVER_OFF
    if may_be_off and child.text.lower() == _OFF:
        return None
    most = 100 if child.name in _PERCENTS else 2**63 - 1
    try:
        return reading.integer_of(child, at_least=0 if may_be_off else 1, at_most=most)
    except ConfigError as error:
        words = f", or {_OFF} to leave the check out" if may_be_off else ""
        raise ConfigError(error.message, hint=f"{error.hint.rstrip('.')}{words}.") from None
