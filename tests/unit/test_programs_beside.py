"""What stands beside the packages and is seldom run, benchmarks above all, names nothing that is gone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path for folder in ("benchmarks", "compose", "tools") for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_it_imports_from_the_project_is_there(program: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "engine":
            assert node.module
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name) and not _is_module(f"{node.module}.{name.name}"):
                    missing.append(f"{node.module}.{name.name}")
    assert missing == []


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
