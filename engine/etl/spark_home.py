"""A SPARK_HOME from which Python's processes import pyspark as it is installed.

Spark puts `python/lib/pyspark.zip` of its home before everything else on the path of the application and of
each Python process that it starts. A zip has no compiled modules, and nowhere to keep them: each process
compiles all of pyspark, for more than a second of processor time, and a load has half a dozen that do. In a
home without that file they find the package in their own environment, which is the same pyspark, compiled
once.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

_LINKED = ("bin", "conf", "jars", "sbin")
_NEEDED = ("bin", "jars")


def home_without_zip(directory: Path) -> Path | None:
    """A home in `directory`, of links to the pyspark of this environment; others may make it meanwhile.
    None where the package has no Spark in it.

    Raises OSError when the directory cannot be written.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    if not all((package / name).is_dir() for name in _NEEDED):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link, folder = directory / name, package / name
        if not folder.is_dir() or (link.is_symlink() and link.readlink() == folder):
            continue
        new = directory / f".{name}.{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(folder)
        new.replace(link)
    return directory
