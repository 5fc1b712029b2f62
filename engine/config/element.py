"""A configuration file as a tree of elements, the same from XML and from YAML.

XML: root `<clickhouse>` or `<yandex>`; no DTD, no entities. YAML as ClickHouse reads it: a mapping's keys are
element names, a list repeats its element, `@name` is an attribute, `#text` the text beside attributes; every
scalar is text, so `01` stays `01`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from engine.errors import ConfigError

ROOTS = ("clickhouse", "yandex")
XML_SUFFIXES = (".xml", ".conf")
YAML_SUFFIXES = (".yaml", ".yml")
MAX_ELEMENTS = 200_000
"""More than any real file has; YAML aliases could otherwise grow a small file without bound."""
MAX_DEPTH = 64


@dataclass(slots=True)
class Element:
    """One element. `source` says where it was read: `file:line`."""

    name: str
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    source: str = ""

    def all(self, name: str) -> list[Element]:
        """The children called `name`."""
        return [child for child in self.children if child.name == name]

    def first(self, name: str) -> Element | None:
        """The first child called `name`."""
        return next((child for child in self.children if child.name == name), None)

    def walk(self) -> Iterator[Element]:
        """This element and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def copy(self) -> Element:
        return Element(
            self.name,
            self.text,
            dict(self.attributes),
            [child.copy() for child in self.children],
            self.source,
        )


def parse_file(path: Path, content: bytes) -> Element:
    """The tree of one file, by its suffix. Raises ConfigError naming the file and the place."""
    if path.suffix in YAML_SUFFIXES:
        from engine.config.yaml_file import parse_yaml  # most nodes have XML: it takes 20 ms

        return parse_yaml(path, content)
    if path.suffix in XML_SUFFIXES:
        return _parse_xml(path, content)
    raise ConfigError(
        f"{path}: unknown kind of configuration file",
        hint=f"Use one of the suffixes {', '.join(XML_SUFFIXES + YAML_SUFFIXES)}.",
    )


def parse_content(text: str, *, source: str) -> Element:
    """What could stand between the tags of an element, in an element without a name: `a&amp;b` is a&b, and
    `<host>h</host>` a child. What is no XML, which a server would refuse, is text as it stands."""
    if "&" not in text and "<" not in text:
        return Element("", text.strip(), source=source)
    target = _XmlTarget(source)
    try:
        found = _fed(target, f"<value>{text}</value>".encode())
    except (ParseError, DefusedXmlException, ValueError):
        found = None
    if found is None:
        return Element("", text.strip(), source=source)
    for each in found.walk():
        each.source = source
    return found


class _XmlTarget(TreeBuilder):
    """Builds `Element`s and notes the line at which each begins."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = path
        self.parser: Any = None  # defusedxml and the standard library give its expat parser no type
        self.stack: list[Element] = []
        self.root: Element | None = None

    def start(self, tag: str, attrs: dict[str, str]) -> Any:
        if len(self.stack) >= MAX_DEPTH:
            raise ConfigError(f"{self.path}: elements are nested more than {MAX_DEPTH} deep")
        line = self.parser.parser.CurrentLineNumber
        element = Element(tag, attributes=dict(attrs), source=f"{self.path}:{line}")
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def end(self, tag: str) -> Any:
        element = self.stack.pop()
        element.text = element.text.strip()

    def data(self, data: str) -> None:
        if self.stack:
            self.stack[-1].text += data

    def close(self) -> Any:
        return self.root


def _parse_xml(path: Path, content: bytes) -> Element:
    try:
        root = _fed(_XmlTarget(path), content)
    except ParseError as error:
        raise ConfigError(f"{path}: not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise ConfigError(
            f"{path}: document types and entities are refused: {type(error).__name__}",
            hint="Use incl= with include_from to share text between files.",
        ) from error
    except (LookupError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as XML: {error}") from error
    if root is None or root.name not in ROOTS:
        raise ConfigError(
            f"{path}: the root element is <{root.name if root else ''}>",
            hint=f"It has to be one of {', '.join(f'<{name}>' for name in ROOTS)}.",
        )
    return root


def _fed(target: _XmlTarget, content: bytes) -> Element | None:
    parser = DefusedXMLParser(target=target, forbid_dtd=True)
    target.parser = parser
    parser.feed(content)
    parser.close()
    return target.root
