"""The demo against what docker-compose runs: `docker-compose run --rm demo`.

It is the local stack's demo (`engine.local.demo`), told where everything is by the environment that
docker-compose.yaml gives it. Exit code 0 when every migration is applied on every host and the replicas of
each shard are equal.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from engine.client import NodeClient
from engine.config.load import load_topology
from engine.env import Env, SystemEnv
from engine.errors import NodeUnavailable, OnclusterError, ReplyLost
from engine.local.demo import migrate_all
from engine.local.demo_result import show_result
from engine.local.progress import ConsoleSink, Steps
from engine.local.state import Phase, ProcessEntry, StackState

AIRFLOW_URL = "http://airflow-api-server:8080"
_PATIENCE_S = 120.0
_POLL_S = 0.5


def stack_state(config_file: Path) -> StackState:
    """What the demo asks of a stack. No process of it is ours: `owner` and `processes` say nothing."""
    replicas = {
        replica.host: replica.http_address
        for cluster in load_topology(config_file).clusters.values()
        for replica in cluster.replicas
    }
    return StackState(
        mark="",
        owner=ProcessEntry("docker-compose", 0, 0.0),
        phase=Phase.READY,
        zookeeper="",
        config_file=str(config_file),
        migrations=os.environ["ONCLUSTER_MIGRATIONS"],
        ledger_url=os.environ["ONCLUSTER_LEDGER_URL"],
        nodes={host: f"http://{address}:{port}" for host, (address, port) in replicas.items()},
        airflow_url=AIRFLOW_URL,
        airflow_user="admin",
        airflow_password=os.environ["AIRFLOW_ADMIN_PASSWORD"],
    )


async def wait_for_nodes(urls: Iterable[str], *, env: Env) -> None:
    """Return when each answers a query. Raises what the client raised last for one that does not in time."""

    async def wait(url: str) -> None:
        deadline_s = env.monotonic_s() + _PATIENCE_S
        async with NodeClient(url, env=env) as client:
            while True:
                try:
                    await client.query_rows("SELECT 1")
                    return
                except (NodeUnavailable, ReplyLost):
                    if env.monotonic_s() > deadline_s:
                        raise
                await env.sleep(_POLL_S)

    await asyncio.gather(*map(wait, urls))


async def main() -> int:
    env = SystemEnv()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    state = stack_state(Path(os.environ["ONCLUSTER_CONFIG"]))
    started_s = env.monotonic_s()
    with ConsoleSink(console) as sink:
        steps = Steps(sink, env=env)
        steps.running("nodes", "waiting for all of them")
        await wait_for_nodes(state.nodes.values(), env=env)
        steps.done("nodes", ", ".join(state.nodes))
        result = await migrate_all(state, steps, env=env)
    result = result.taking(env.monotonic_s() - started_s)
    show_result(result, console)
    return 0 if result.succeeded else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except OnclusterError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        sys.exit(1)
