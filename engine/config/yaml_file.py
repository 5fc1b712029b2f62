"""YAML as ClickHouse reads it; see `element`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from engine.config.element import MAX_DEPTH, MAX_ELEMENTS, ROOTS, Element
from engine.errors import ConfigError

_QUOTED = re.compile(r"'([^']*)'")


def _without_names(quoted: re.Match[str]) -> str:
    """Single characters and names of tokens stay; what else a problem quotes, such as an alias, is the
    file's."""
    text = quoted[1]
    return quoted[0] if len(text) <= 1 or text.startswith("<") else "'…'"


def parse_yaml(path: Path, content: bytes) -> Element:
    """Raises ConfigError."""
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # Without the line that the parser shows: a password with a character of YAML's stands in it.
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        problem = _QUOTED.sub(_without_names, error.problem or error.context or "")
        raise ConfigError(
            f"{place}: not well-formed YAML: {problem}",
            hint="A value with one of @ % & * ! | > ` or with `: ` in it goes into quotes.",
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not well-formed YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{path}: elements are nested more than {MAX_DEPTH} deep") from None
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
        if self.count > MAX_ELEMENTS or depth > MAX_DEPTH:
            raise ConfigError(f"{source}: too many elements; do aliases refer to each other?")
        element = Element(name, source=source)
        if isinstance(node, yaml.ScalarNode):
            is_null = node.tag == "tag:yaml.org,2002:null"
            element.text = "" if is_null else self._text(node).strip()
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
        name = self._text(key)
        if name == "<<":
            raise ConfigError(f"{source}: merge keys are not read", hint="Use a .d directory to merge.")
        if name.startswith("@") or name == "#text":
            if not isinstance(value, yaml.ScalarNode):
                raise ConfigError(f"{source}: {name} has to be text")
            if name == "#text":
                element.text = self._text(value).strip()
            else:
                element.attributes[name[1:]] = self._text(value)
        elif isinstance(value, yaml.SequenceNode):
            for item in value.value:
                element.children.append(self.element(name, item, depth + 1))
        else:
            element.children.append(self.element(name, value, depth + 1))

    def _text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if "\0" in text:
            raise ConfigError(f"{self.path}:{node.start_mark.line + 1}: a text has a zero byte in it")
        return text
