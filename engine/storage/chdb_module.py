"""chDB's native module without the rest of its Python package.

`import chdb` starts an engine in memory to learn its version and loads numpy, pyarrow and pandas where they
are installed: 0.15 s and 45 MB for each node, for things that a node has no use for. All that a node needs
is the extension module `chdb._chdb`, so its package is stood in for while that is loaded. Whoever imports
`chdb` later gets the whole package, with this very module in it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.errors import ConfigError

_PACKAGE = "chdb"
_DEEPBIND = 0x8
"""RTLD_DEEPBIND of glibc, as `import chdb` has it: chDB's own allocator serves chDB, whatever is loaded."""


def load_chdb() -> Any:
    """The extension module `chdb._chdb`. Raises ImportError where chDB is not installed, ConfigError where
    it does not start on this machine."""
    name = f"{_PACKAGE}._chdb"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError(f"The package {_PACKAGE} is not installed", name=_PACKAGE)
    directory = Path(spec.origin).parent
    library = next(directory.glob("_chdb*.so"), None)
    if library is None or _PACKAGE in sys.modules:
        return importlib.import_module(name)
    if sys.platform == "linux":
        ctypes.CDLL(str(library), mode=sys.getdlopenflags() | _DEEPBIND)
    stand_in = ModuleType(_PACKAGE)
    stand_in.__path__ = [str(directory)]
    sys.modules[_PACKAGE] = stand_in
    try:
        return importlib.import_module(name)
    except ImportError as error:
        zone = os.environ.get("TZ")
        hint = f"The environment says TZ={zone}: is that a time zone of this machine?" if zone else ""
        raise ConfigError(f"chDB does not start here: {error}.", hint=hint) from error
    finally:
        del sys.modules[_PACKAGE]
