"""The section `profiles`: settings, and constraints on what their users may make of them.

What a profile says stands above what its parents (`<profile>`) say, and that above the default profile, which
holds for everybody.

Source: ClickHouse's Context::setDefaultProfiles, SettingsProfilesCache and SettingsConstraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.config.element import Element
from engine.errors import ConfigError

DEFAULT = "default"
OF_TABLES = "merge_tree_"
"""Begins the names of constraints on settings of MergeTree tables."""
_CONSTRAINTS = "constraints"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Of one setting; values as texts. A constant one may not be changed at all."""

    minimum: str | None = None
    maximum: str | None = None
    disallowed: tuple[str, ...] = ()
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class Profiles:
    """By profile's name. Who has no constraints is not in `constraints`."""

    default: str
    settings: Mapping[str, Mapping[str, str]]
    constraints: Mapping[str, Mapping[str, Constraint]]


def read_profiles(root: Element) -> Profiles:
    """Raises ConfigError."""
    elements = {e.name: e for section in root.all("profiles") for e in section.children}
    default = _default(root, elements)
    usual = _lineage(default, elements, ()) if default in elements else []
    lines = {name: [*usual, *_lineage(name, elements, ())] for name in elements}
    constraints = {name: _constraints(line) for name, line in lines.items()}
    return Profiles(
        default,
        {name: _settings(line) for name, line in lines.items()},
        {name: found for name, found in constraints.items() if found},
    )


def _default(root: Element, elements: Mapping[str, Element]) -> str:
    """`<default_profile>`. Who only operates a cluster reads no profiles."""
    element = root.first("default_profile")
    if element is None or element.text in ("", DEFAULT):
        return DEFAULT
    if elements and element.text not in elements:
        raise ConfigError(
            f"{element.source}: <default_profile> is '{element.text}', which does not exist",
            hint=f"Profiles are: {', '.join(sorted(elements))}.",
        )
    return element.text


def _lineage(name: str, elements: Mapping[str, Element], within: tuple[str, ...]) -> list[Element]:
    """The profile behind its parents."""
    element = elements[name]
    if name in within:
        raise ConfigError(f"{element.source}: profile '{name}' inherits from itself")
    line: list[Element] = []
    for child in element.all("profile"):
        if child.text not in elements:
            raise ConfigError(
                f"{child.source}: there is no profile '{child.text}'",
                hint=f"Profiles are: {', '.join(sorted(elements))}.",
            )
        line += _lineage(child.text, elements, (*within, name))
    return [*line, element]


def _settings(line: list[Element]) -> Mapping[str, str]:
    return {
        child.name: child.text
        for element in line
        for child in element.children
        if child.name not in ("profile", _CONSTRAINTS)
    }


def _constraints(line: list[Element]) -> Mapping[str, Constraint]:
    found: dict[str, Constraint] = {}
    for element in line:
        for section in element.all(_CONSTRAINTS):
            for setting in section.children:
                found[setting.name] = _changed(found.get(setting.name, Constraint()), setting)
    return found


def _changed(constraint: Constraint, setting: Element) -> Constraint:
    for child in setting.children:
        match child.name:
            case "min":
                constraint = replace(constraint, minimum=child.text)
            case "max":
                constraint = replace(constraint, maximum=child.text)
            case "disallowed":
                constraint = replace(constraint, disallowed=(*constraint.disallowed, child.text))
            case "const" | "readonly":
                constraint = replace(constraint, is_constant=True)
            case "writable" | "changeable_in_readonly":  # with `readonly = 1` a node lets nothing be changed
                constraint = replace(constraint, is_constant=False)
            case _:
                raise ConfigError(
                    f"{child.source}: <{child.name}> is no constraint of a setting",
                    hint="Constraints are <min>, <max>, <disallowed> and <const/>.",
                )
    return constraint
