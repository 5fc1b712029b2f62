"""What holds for every test: no test fails for being slow, and none leaves a process behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not make a property false; how many examples there are is each test's business.
settings.register_profile("oncluster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("oncluster")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Whatever a test started is gone at the end of the session."""
    mine = psutil.Process(os.getpid())
    before = {child.pid for child in mine.children(recursive=True)}
    yield
    left = []
    for child in mine.children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.pid not in before and child.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{child.pid} {command[:200]}")
        except psutil.NoSuchProcess:
            continue
    # Python's own helper for multiprocessing, which ends with us.
    left = [line for line in left if "multiprocessing.resource_tracker" not in line]
    assert left == []
