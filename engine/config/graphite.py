"""Rollup rules of GraphiteMergeTree tables: `graphite_rollup`, or a section of another name and this shape.

    <graphite_rollup>
        <path_column_name>Path</path_column_name>
        <pattern>
            <regexp>\\.count$</regexp>
            <function>sum</function>
            <retention><age>0</age><precision>60</precision></retention>
        </pattern>
        <default>
            <function>avg</function>
            <retention><age>0</age><precision>60</precision></retention>
        </default>
    </graphite_rollup>

The engine's argument names the section. Tables keep a hash of the rules in Keeper, so all replicas of a table
need the same rules.

Source: ClickHouse's configuration of GraphiteMergeTree.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from engine.config import reading
from engine.config.element import Element
from engine.errors import Code, ConfigError

SECTION = "graphite_rollup"


class RuleType(enum.Enum):
    """Which metrics a pattern is for: all, those without tags, those with tags."""

    ALL = "all"
    PLAIN = "plain"
    TAGGED = "tagged"
    TAG_LIST = "tag_list"
    """Tagged, the regular expression written as a list of tags."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Rows older than `age_s` are rounded to `precision_s`."""

    age_s: int
    precision_s: int


@dataclass(frozen=True, slots=True)
class GraphitePattern:
    """What happens to metrics that `regexp` matches; the default's is empty. `function` may be empty."""

    rule_type: RuleType = RuleType.ALL
    regexp: str = ""
    function: str = ""
    retentions: tuple[Retention, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphiteRollup:
    """One section. The default, where there is one, is the last of the patterns, without a regexp."""

    path_column: str = "Path"
    time_column: str = "Time"
    value_column: str = "Value"
    version_column: str = "Timestamp"
    patterns: tuple[GraphitePattern, ...] = ()
    default: GraphitePattern | None = None

    def to_xml(self, name: str) -> str:
        """The section as chDB reads it."""
        columns = {
            "path_column_name": self.path_column,
            "time_column_name": self.time_column,
            "value_column_name": self.value_column,
            "version_column_name": self.version_column,
        }
        lines = [f"<{tag}>{escape(column)}</{tag}>" for tag, column in columns.items()]
        lines += [_pattern_xml("pattern", pattern) for pattern in self.patterns]
        if self.default is not None:
            lines.append(_pattern_xml("default", self.default))
        return f"<{name}>{''.join(lines)}</{name}>"


def sections_xml(rollups: Mapping[str, GraphiteRollup]) -> list[str]:
    """Each section as chDB reads it."""
    return [rollup.to_xml(name) for name, rollup in rollups.items()]


def read_graphite(root: Element) -> Mapping[str, GraphiteRollup]:
    """All sections of rollup rules, by name. Raises ConfigError 137 and 139 as ClickHouse does, and 36."""
    return {child.name: _rollup(child) for child in root.children if _is_rollup(child)}


def _is_rollup(element: Element) -> bool:
    return element.name == SECTION or any(
        child.name.startswith(("pattern", "default"))
        and any(part.name.startswith("retention") or part.name == "function" for part in child.children)
        for child in element.children
    )


def _rollup(section: Element) -> GraphiteRollup:
    known = {"path_column_name", "time_column_name", "value_column_name", "version_column_name", "default"}
    for child in section.children:
        if child.name not in known and not child.name.startswith("pattern"):
            raise _unknown(section, child, sorted(known | {"pattern"}))
    usual = GraphiteRollup()
    default = section.first("default")
    rule = None if default is None else _pattern(default)
    if default is not None and rule is not None and rule.rule_type is not RuleType.ALL:
        raise ConfigError(
            f"{default.source}: <default> of <{section.name}> has the rule type {rule.rule_type.value}",
            code=Code.BAD_ARGUMENTS,
            hint="The default is for all metrics.",
        )
    return GraphiteRollup(
        path_column=reading.text(section, "path_column_name", usual.path_column),
        time_column=reading.text(section, "time_column_name", usual.time_column),
        value_column=reading.text(section, "value_column_name", usual.value_column),
        version_column=reading.text(section, "version_column_name", usual.version_column),
        patterns=tuple(_pattern(child) for child in section.children if child.name.startswith("pattern")),
        default=rule,
    )


def _pattern(element: Element) -> GraphitePattern:
    rule = reading.text(element, "rule_type", RuleType.ALL.value)
    if rule not in [item.value for item in RuleType]:
        raise ConfigError(
            f"{element.source}: <rule_type> is '{rule}'",
            code=Code.BAD_ARGUMENTS,
            hint=f"Write one of {', '.join(item.value for item in RuleType)}.",
        )
    for child in element.children:
        if child.name not in ("rule_type", "regexp", "function") and not child.name.startswith("retention"):
            raise _unknown(element, child, ["rule_type", "regexp", "function", "retention"])
    pattern = GraphitePattern(
        rule_type=RuleType(rule),
        regexp=reading.text(element, "regexp"),
        function=reading.text(element, "function"),
        retentions=tuple(
            Retention(
                reading.integer(child, "age", 0, at_most=2**32 - 1),
                reading.integer(child, "precision", 0, at_most=2**32 - 1),
            )
            for child in element.children
            if child.name.startswith("retention")
        ),
    )
    if not pattern.function and not pattern.retentions:
        raise ConfigError(
            f"{element.source}: <{element.name}> has neither <function> nor <retention>",
            code=Code.NO_ELEMENTS_IN_CONFIG,
        )
    return pattern


def _unknown(parent: Element, child: Element, known: list[str]) -> ConfigError:
    return ConfigError(
        f"{child.source}: <{parent.name}> has no <{child.name}>",
        code=Code.UNKNOWN_ELEMENT_IN_CONFIG,
        hint=f"There are {', '.join(known)}.",
    )


def _pattern_xml(name: str, pattern: GraphitePattern) -> str:
    parts = [
        f"<{tag}>{escape(text)}</{tag}>"
        for tag, text in (("regexp", pattern.regexp), ("function", pattern.function))
        if text
    ]
    if pattern.rule_type is not RuleType.ALL:
        parts.insert(0, f"<rule_type>{pattern.rule_type.value}</rule_type>")
    parts += [
        f"<retention><age>{retention.age_s}</age><precision>{retention.precision_s}</precision></retention>"
        for retention in pattern.retentions
    ]
    return f"<{name}>{''.join(parts)}</{name}>"
