"""What ClickHouse's configuration processor does to a tree: merging files, `incl`, `from_env`.

Source: ClickHouse's ConfigProcessor. Elements of a merged file meet the first unmet element with equal name
and attributes; `replace` swaps it whole, `remove` takes it out, anything else goes on below it: its text is
then the merged file's, even if that is empty. Included text is looked up below the root of the `include_from`
file, by a name or a path of names. A variable of the environment is read as what could stand between an
element's tags. What is `optional`, is not to be had and says nothing itself is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.config.element import Element, parse_content
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

_SUBSTITUTIONS = frozenset({"incl", "from_env", "from_zk"})
_PROCESSING = _SUBSTITUTIONS | {"replace", "remove", "optional"}


def merge(into: Element, other: Element) -> None:
    """Merge the children of `other` into `into`, in place."""
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
            elif _only_offers(theirs):
                mine.attributes.update(theirs.attributes, replace="")  # else what is there stays
            else:
                if theirs.text or theirs.children or theirs.attributes.keys() & _SUBSTITUTIONS:
                    # What the merged file says stands in place of what would have been taken from elsewhere.
                    for name in _SUBSTITUTIONS:
                        mine.attributes.pop(name, None)
                mine.attributes.update(theirs.attributes)
                merge(mine, theirs)
        elif not remove:
            into.children.append(_without_marks(theirs))


def _identity(element: Element) -> tuple[str, ...]:
    attributes = sorted((k, v) for k, v in element.attributes.items() if k not in _PROCESSING)
    return (element.name, *(part for pair in attributes for part in pair))


def _only_offers(element: Element) -> bool:
    """Whether it stands for what may be elsewhere, and for nothing if it is not."""
    attributes = element.attributes
    is_bare = not element.text and not element.children
    return is_bare and "optional" in attributes and bool(attributes.keys() & _SUBSTITUTIONS)


def _without_marks(element: Element) -> Element:
    copy = element.copy()
    for each in copy.walk():
        if "incl" not in each.attributes:
            each.attributes.pop("replace", None)
        each.children = [child for child in each.children if "remove" not in child.attributes]
    return copy


def substitute(
    root: Element, *, included: Element | None, environ: Mapping[str, str], read: Collection[str]
) -> None:
    """Resolve `from_env` and `incl` below `root`, in place.

    A missing variable is a ConfigError unless `optional` is set; a missing inclusion leaves the element as it
    is, with a warning, because ClickHouse's own default files rely on that. Below children of the root that
    are not in `read` whatever is missing is left out without a word: a server's file takes keys of its own
    from places that are there for the server only.
    """
    outside = _Outside(included, environ)
    children: list[Element] = []
    for child in root.children:
        outside.is_read = child.name in read or child.name == "include"
        children += outside.in_place_of(child, ())
    root.children = children


def substitute_one(element: Element, *, environ: Mapping[str, str]) -> None:
    """Resolve `from_env` of one element, in place. Raises ConfigError."""
    _Outside(None, environ).in_place_of(element, ())


@dataclass(slots=True)
class _Outside:
    """Where substitutions come from. `is_read`: somebody reads the element that is being filled."""

    included: Element | None
    environ: Mapping[str, str]
    is_read: bool = True

    def in_place_of(self, element: Element, within: tuple[str, ...]) -> list[Element]:
        """The element, filled; what an `<include>` stands for; nothing, where nothing is to be had."""
        is_there = not _only_offers(element)
        inclusion = element.attributes.pop("incl", None)
        if inclusion is not None:
            is_there |= self._include(element, inclusion, within)
            within = (*within, inclusion)
        if "from_zk" in element.attributes and self.is_read:
            raise ConfigError(
                f"{element.source}: <{element.name} from_zk=…> is not supported",
                hint="Use from_env, incl, or a .d directory.",
            )
        variable = element.attributes.get("from_env")
        if variable is not None:
            is_there |= self._from_environment(element, variable)
        if not is_there:
            return []
        element.children = [each for child in element.children for each in self.in_place_of(child, within)]
        return element.children if element.name == "include" else [element]

    def _from_environment(self, element: Element, variable: str) -> bool:
        """Whether there is such a variable."""
        value = self.environ.get(variable)
        if value is not None:
            found = parse_content(value, source=element.source)
            if element.attributes.pop("replace", None) is not None:
                element.children.clear()
            element.text = found.text
            element.children.extend(found.children)
        elif self.is_read and "optional" not in element.attributes and not element.text:
            raise ConfigError(
                f"{element.source}: <{element.name}> takes the variable {variable}, which is not set",
                hint='Set it, or add optional="true".',
            )
        return value is not None

    def _include(self, element: Element, path: str, within: tuple[str, ...]) -> bool:
        """Whether there is such an element."""
        if path in within:
            raise ConfigError(f'{element.source}: incl="{path}" includes itself')
        found = self.included
        for name in path.split("/"):
            found = found.first(name) if found is not None else None
        if found is None:
            if self.is_read and "optional" not in element.attributes:
                logger.warning(
                    "config.include_missing element=%s incl=%s at=%s", element.name, path, element.source
                )
            return False
        if element.attributes.pop("replace", None) is not None:
            element.children.clear()
            element.text = ""
        element.text = element.text or found.text
        element.attributes.update((k, v) for k, v in found.attributes.items() if k in _PROCESSING)
        element.children.extend(child.copy() for child in found.children)
        return True
