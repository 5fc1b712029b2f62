"""The engine, shared by all; only with ONCLUSTER_COMPOSE=1, which `make test-compose` sets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.compose.docker_engine import Engine, NoEngine, base_image, compose_command, ended_in_order, engine


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    """Skips, with the reason, where nobody asked for it or there is none."""
    if os.environ.get("ONCLUSTER_COMPOSE") != "1":
        pytest.skip("builds images and starts 16 containers, ten minutes: `make test-compose` runs it")
    with contextlib.ExitStack() as stack:
        try:
            compose_command()
            stack.enter_context(ended_in_order())
            found = stack.enter_context(engine())
        except NoEngine as reason:
            pytest.skip(str(reason))
        yield found


@pytest.fixture(scope="session")
def base(docker_engine: Engine) -> str:
    try:
        return base_image(docker_engine)
    except NoEngine as reason:
        pytest.skip(str(reason))
