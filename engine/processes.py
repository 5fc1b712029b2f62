"""Processes of the operating system. Each may end while it is asked about."""

from __future__ import annotations

import psutil


def is_alive(process: psutil.Process) -> bool:
    """False as well for one that has ended and that its parent has not taken note of (a zombie)."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
