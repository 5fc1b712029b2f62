"""`oncluster`, which is also `python -m engine.cli`: Ctrl-C is handled before there is anything else."""

from __future__ import annotations

import sys


def begin() -> None:
    """The entry point of the script. Everything is imported within it, which takes a tenth of a second."""
    try:
        from engine.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    begin()
