"""Spark's Python processes, and the garbage that they look for.

After each task Spark has the process collect garbage, which takes 50 ms for what the modules alone consist
of, at the moment when the commit begins.
"""

from __future__ import annotations

import gc

_is_done = False


def spare_the_modules() -> None:
    """Collections leave out what is there now. Once in a process: what comes later is collected as ever."""
    global _is_done
    if not _is_done:
        _is_done = True
        gc.freeze()
