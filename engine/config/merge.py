"""What ClickHouse's configuration processor does to a tree: merging files, `incl`, `from_env`.

Source: ClickHouse's ConfigProcessor. Elements of a merged file meet the first unmet element with equal name
and attributes; `replace` swaps it whole, `remove` takes it out, anything else goes on below it. Included text
is looked up among the children of the root of the `include_from` file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from engine.config.element import Element
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

_PROCESSING = frozenset({"replace", "remove", "incl", "from_env", "from_zk", "optional"})


def merge(into: Element, other: Element) -> None:
    """Merge the children of `other` into `into`, in place."""
    if other.text or other.children:
        into.text = other.text
    unmet: dict[tuple[str, ...], list[Element]] = {}
    for child in into.children:
        unmet.setdefault(_identity(child), []).append(child)
    for theirs in other.children:
        remove, replace = "remove" in theirs.attributes, "replace" in theirs.attributes
        if remove and replace:
            raise ConfigError(f"{theirs.source}: <{theirs.name}> has both 'remove' and 'replace'")
        candidates = unmet.get(_identity(theirs))
        if candidates:
            mine = candidates.pop(0)
            at = next(i for i, child in enumerate(into.children) if child is mine)
            if remove:
                del into.children[at]
            elif replace:
                into.children[at] = _without_marks(theirs)
            else:
                if "incl" in theirs.attributes or "from_env" in theirs.attributes:
                    mine.attributes.update(theirs.attributes)
                merge(mine, theirs)
        elif not remove:
            into.children.append(_without_marks(theirs))


def _identity(element: Element) -> tuple[str, ...]:
    attributes = sorted((k, v) for k, v in element.attributes.items() if k not in _PROCESSING)
    return (element.name, *(part for pair in attributes for part in pair))


def _without_marks(element: Element) -> Element:
    copy = element.copy()
    for each in copy.walk():
        if "incl" not in each.attributes:
            each.attributes.pop("replace", None)
        each.children = [child for child in each.children if "remove" not in child.attributes]
    return copy


def substitute(element: Element, *, included: Element | None, environ: Mapping[str, str]) -> None:
    """Resolve `from_env` and `incl` in `element` and below, in place.

    A missing variable is a ConfigError unless `optional` is set; a missing inclusion leaves the element as it
    is, with a warning, because ClickHouse's own default files rely on that.
    """
    _substitute(element, included, environ, ())


def _substitute(
    element: Element, included: Element | None, environ: Mapping[str, str], within: tuple[str, ...]
) -> None:
    if "from_zk" in element.attributes:
        raise ConfigError(
            f"{element.source}: <{element.name} from_zk=…> is not supported",
            hint="Use from_env, incl, or a .d directory.",
        )
    variable = element.attributes.get("from_env")
    if variable is not None:
        value = environ.get(variable)
        if value is not None:
            element.text = value.strip()
        elif "optional" not in element.attributes and not element.text:
            raise ConfigError(
                f"{element.source}: <{element.name}> takes the variable {variable}, which is not set",
                hint='Set it, or add optional="true".',
            )
    inclusion = element.attributes.pop("incl", None)
    if inclusion is not None:
        _include(element, inclusion, included, within)
        within = (*within, inclusion)
    children: list[Element] = []
    for child in element.children:
        _substitute(child, included, environ, within)
        # `<include incl="x"/>` stands for what it includes, not for an element of that name.
        children.extend(child.children if child.name == "include" else [child])
    element.children = children


def _include(element: Element, name: str, included: Element | None, within: tuple[str, ...]) -> None:
    if name in within:
        raise ConfigError(f'{element.source}: incl="{name}" includes itself')
    found = included.first(name) if included is not None else None
    if found is None:
        if "optional" not in element.attributes:
            logger.warning(
                "config.include_missing element=%s incl=%s at=%s", element.name, name, element.source
            )
        return
    if element.attributes.pop("replace", None) is not None:
        element.children.clear()
        element.text = ""
    element.text = element.text or found.text
    element.children.extend(child.copy() for child in found.children)
