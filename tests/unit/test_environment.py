"""The installation: the lock serves the project, PySpark is whole, and no file names a registry."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.strip()]

# Joined here so that this file names none of them either.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
]


def locked() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in LOCK:
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def project_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]


def test_the_lock_pins_every_line_and_names_no_place() -> None:
    for line in LOCK:
        requirement = Requirement(line)
        assert requirement.url is None
        assert [s.operator for s in requirement.specifier] == ["=="], line
        assert "://" not in line


def test_the_lock_serves_every_dependency_of_the_project() -> None:
    pins = locked()
    unserved = []
    for wanted in project_requirements():
        versions = [
            Version(next(iter(pin.specifier)).version) for pin in pins.get(canonicalize_name(wanted.name), [])
        ]
        if not versions or not all(version in wanted.specifier for version in versions):
            unserved.append(str(wanted))
    assert unserved == [], "run `make lock`"


def test_no_file_names_a_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    guilty = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace").lower()
        guilty += [f"{name}: {host}" for host in REGISTRIES if host in text]
    assert guilty == []


@pytest.mark.parametrize("package", ["pyspark", "pyspark-client"])
def test_pyspark_is_whole(package: str) -> None:
    """Both packages install into the folder `pyspark`; every file must be the one its own list promises."""
    distribution = metadata.distribution(package)
    assert distribution.version == metadata.version("pyspark")
    record = distribution.read_text("RECORD")
    assert record is not None
    damaged = []
    for name, digest, size in csv.reader(record.splitlines()):
        path = Path(str(distribution.locate_file(name)))
        if not size or not name.startswith("pyspark/"):
            continue
        if not path.is_file() or path.stat().st_size != int(size):
            damaged.append(name)
        elif name.endswith(".py"):
            algorithm, _, expected = digest.partition("=")
            actual = base64.urlsafe_b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).rstrip(b"=")
            if actual.decode() != expected:
                damaged.append(name)
    assert damaged == [], "remove .venv and run `make venv`"


def test_pyspark_brings_the_jars_of_zookeeper() -> None:
    jars = [Path(str(path)).name for path in metadata.files("pyspark") or () if str(path).endswith(".jar")]
    assert any(re.fullmatch(r"zookeeper-3\.\d+\.\d+\.jar", jar) for jar in jars)
    assert any(re.fullmatch(r"zookeeper-jute-3\.\d+\.\d+\.jar", jar) for jar in jars)
