"""Typed access to elements; every complaint names the file, the line, the element and what would be right."""

from __future__ import annotations

import re
from collections.abc import Collection

from engine.config.element import Element
from engine.errors import Code, ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def text(parent: Element, name: str, default: str = "") -> str:
    """The text of the child `name`; with several, the first counts, as in ClickHouse."""
    child = parent.first(name)
    return default if child is None else child.text


def required_text(parent: Element, name: str) -> str:
    value = text(parent, name)
    if not value:
        raise ConfigError(f"{parent.source}: <{parent.name}> needs <{name}>")
    return value


def integer(parent: Element, name: str, default: int, *, at_least: int = 0, at_most: int = 2**63 - 1) -> int:
    child = parent.first(name)
    if child is None:
        return default
    return integer_of(child, at_least=at_least, at_most=at_most)


def integer_of(child: Element, *, at_least: int = 0, at_most: int = 2**63 - 1) -> int:
    raw = child.text
    if not re.fullmatch(r"-?0*[0-9]{1,19}", raw) or not at_least <= int(raw) <= at_most:
        limit = f"from {at_least}" + (f" to {at_most}" if at_most < 2**63 - 1 else " up")
        raise ConfigError(f"{child.source}: <{child.name}> is '{raw}'", hint=f"Write a whole number {limit}.")
    return int(raw)


def port(parent: Element, name: str, default: int, *, at_least: int = 0) -> int:
    return integer(parent, name, default, at_least=at_least, at_most=65535)


def file_mode(parent: Element, name: str, default: int) -> int:
    """Permissions as `chmod` and `umask` write them: octal, with or without a leading 0."""
    child = parent.first(name)
    if child is None:
        return default
    if not re.fullmatch(r"0?[0-7]{1,3}", child.text):
        raise ConfigError(
            f"{child.source}: <{child.name}> is '{child.text}'", hint="Write an octal number from 000 to 777."
        )
    return int(child.text, base=8)


def boolean(parent: Element, name: str, default: bool) -> bool:
    child = parent.first(name)
    if child is None:
        return default
    word = child.text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(
        f"{child.source}: <{child.name}> is '{child.text}'", hint="Write true or false, 1 or 0, yes or no."
    )


def refuse_unknown(parent: Element, known: Collection[str], *, prefixes: tuple[str, ...] = ()) -> None:
    """Raise ConfigError if a child is neither in `known` nor begins with one of `prefixes`."""
    for child in parent.children:
        if child.name not in known and not (prefixes and child.name.startswith(prefixes)):
            raise ConfigError(
                f"{child.source}: unknown element <{child.name}> in <{parent.name}>",
                code=Code.UNKNOWN_ELEMENT_IN_CONFIG,
                hint=f"Known are: {', '.join(sorted({*known, *prefixes}))}.",
            )
