"""`oncluster`, also `python -m engine.cli`: Ctrl-C and SIGTERM are handled before there is anything else."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def begin() -> None:
    """The entry point of the script. Everything is imported within it, which takes a tenth of a second."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        from engine.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Where no event loop takes SIGTERM: while things are imported, and until a command has one."""
    os.write(2, b"Terminated.\n")  # what is being printed may be interrupted, too
    sys.exit(143)


if __name__ == "__main__":
    begin()
