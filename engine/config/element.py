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

import yaml
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from engine.errors import ConfigError

ROOTS = ("clickhouse", "yandex")
XML_SUFFIXES = (".xml", ".conf")
YAML_SUFFIXES = (".yaml", ".yml")
_MAX_ELEMENTS = 200_000
"""More than any real file has; YAML aliases could otherwise grow a small file without bound."""
_MAX_DEPTH = 64


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
        return _parse_yaml(path, content)
    if path.suffix in XML_SUFFIXES:
        return _parse_xml(path, content)
    raise ConfigError(
        f"{path}: unknown kind of configuration file",
        hint=f"Use one of the suffixes {', '.join(XML_SUFFIXES + YAML_SUFFIXES)}.",
    )


class _XmlTarget(TreeBuilder):
    """Builds `Element`s and notes the line at which each begins."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.parser: Any = None  # defusedxml and the standard library give its expat parser no type
        self.stack: list[Element] = []
        self.root: Element | None = None

    def start(self, tag: str, attrs: dict[str, str]) -> Any:
        if len(self.stack) >= _MAX_DEPTH:
            raise ConfigError(f"{self.path}: elements are nested more than {_MAX_DEPTH} deep")
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
    target = _XmlTarget(path)
    parser = DefusedXMLParser(target=target, forbid_dtd=True)
    target.parser = parser
    try:
        parser.feed(content)
        parser.close()
    except ParseError as error:
        raise ConfigError(f"{path}: not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise ConfigError(
            f"{path}: document types and entities are refused: {type(error).__name__}",
            hint="Use incl= with include_from to share text between files.",
        ) from error
    except (LookupError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as XML: {error}") from error
    root = target.root
    if root is None or root.name not in ROOTS:
        raise ConfigError(
            f"{path}: the root element is <{root.name if root else ''}>",
            hint=f"It has to be one of {', '.join(f'<{name}>' for name in ROOTS)}.",
        )
    return root


def _parse_yaml(path: Path, content: bytes) -> Element:
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not well-formed YAML: {' '.join(str(error).split())}") from error
    if node is None:
        return Element(ROOTS[0], source=f"{path}:1")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: a mapping is needed at the top level of a YAML configuration")
    converter = _YamlConverter(path)
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    if len(keys) == 1 and keys[0] in ROOTS and isinstance(node.value[0][1], yaml.MappingNode):
        node = node.value[0][1]
    root = converter.element(ROOTS[0], node, 0)
    root.name = ROOTS[0]
    return root


class _YamlConverter:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def element(self, name: str, node: yaml.Node, depth: int) -> Element:
        self.count += 1
        source = f"{self.path}:{node.start_mark.line + 1}"
        if self.count > _MAX_ELEMENTS or depth > _MAX_DEPTH:
            raise ConfigError(f"{source}: too many elements; do aliases refer to each other?")
        element = Element(name, source=source)
        if isinstance(node, yaml.ScalarNode):
            is_null = node.tag == "tag:yaml.org,2002:null"
            element.text = "" if is_null else str(node.value).strip()
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._entry(element, key, value, depth)
        else:
            raise ConfigError(f"{source}: a list within a list has no meaning in a configuration")
        return element

    def _entry(self, element: Element, key: yaml.Node, value: yaml.Node, depth: int) -> None:
        source = f"{self.path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{source}: an element's name has to be text")
        name = str(key.value)
        if name == "<<":
            raise ConfigError(f"{source}: merge keys are not read", hint="Use a .d directory to merge.")
        if name.startswith("@") or name == "#text":
            if not isinstance(value, yaml.ScalarNode):
                raise ConfigError(f"{source}: {name} has to be text")
            if name == "#text":
                element.text = str(value.value).strip()
            else:
                element.attributes[name[1:]] = str(value.value)
        elif isinstance(value, yaml.SequenceNode):
            for item in value.value:
                element.children.append(self.element(name, item, depth + 1))
        else:
            element.children.append(self.element(name, value, depth + 1))
