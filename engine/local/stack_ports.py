"""Which ports the local stack listens on.

    base + 23 …   the nodes' HTTP ports, one after another (default 18123 for node01)
    base + 80     Airflow's user interface and API          (default 18180)
    base + 81     ZooKeeper                                 (default 18181)
    base + 82     what Airflow's tasks ask                  (default 18182)

The base is 18100 unless `--port-base` or $ONCLUSTER_PORT_BASE says otherwise; base 0 takes free ports. Single
ports: $ONCLUSTER_NODE_PORT (of the first node), $ONCLUSTER_AIRFLOW_PORT, $ONCLUSTER_AIRFLOW_TASKS_PORT,
$ONCLUSTER_ZOOKEEPER_PORT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.env import Env
from engine.errors import Busy, ConfigError
from engine.ports import free_ports, holder_of, is_free

DEFAULT_BASE = 18_100
_NODES, _AIRFLOW, _ZOOKEEPER, _AIRFLOW_TASKS = 23, 80, 81, 82
MAX_NODES = _AIRFLOW - _NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPorts:
    """One port per server; `nodes` in the order of the cluster file's hosts."""

    airflow: int
    airflow_tasks: int
    zookeeper: int
    nodes: tuple[int, ...]

    @classmethod
    def choose(
        cls, *, nodes: int, port_base: int | None, environ: Mapping[str, str], env: Env | None = None
    ) -> StackPorts:
        """Ports for `nodes` nodes. Raises ConfigError for numbers that are no ports."""
        base = _number("--port-base", port_base) if port_base is not None else None
        if base is None:
            base = _from(environ, "ONCLUSTER_PORT_BASE", DEFAULT_BASE)
        if base:
            _number("port base", base + _AIRFLOW_TASKS)
            if nodes > MAX_NODES:
                raise ConfigError(
                    f"{nodes} nodes do not fit between the ports {base + _NODES} and {base + _AIRFLOW}.",
                    hint="Use --port-base 0, which takes free ports.",
                )
            airflow, tasks, zookeeper = base + _AIRFLOW, base + _AIRFLOW_TASKS, base + _ZOOKEEPER
            node_ports = tuple(range(base + _NODES, base + _NODES + nodes))
        else:
            airflow, tasks, zookeeper, *rest = free_ports(3 + nodes, env=env)
            node_ports = tuple(rest)
        first_node = _from(environ, "ONCLUSTER_NODE_PORT", 0)
        return cls(
            airflow=_from(environ, "ONCLUSTER_AIRFLOW_PORT", airflow),
            airflow_tasks=_from(environ, "ONCLUSTER_AIRFLOW_TASKS_PORT", tasks),
            zookeeper=_from(environ, "ONCLUSTER_ZOOKEEPER_PORT", zookeeper),
            nodes=tuple(range(first_node, first_node + nodes)) if first_node else node_ports,
        )

    def require_free(self) -> None:
        """Raises Busy, naming every port that is taken and by whom."""
        wanted = {
            "Airflow": (self.airflow,),
            "Airflow's tasks": (self.airflow_tasks,),
            "ZooKeeper": (self.zookeeper,),
            "the nodes": self.nodes,
        }
        taken = [
            f"{port} (for {who}) by {holder_of(port)}"
            for who, ports in wanted.items()
            for port in ports
            if not is_free(port)
        ]
        if taken:
            raise Busy(
                f"{'Port' if len(taken) == 1 else 'Ports'} in use: {', '.join(taken)}.",
                holder=taken[0],
                hint="Stop that program, or choose others: --port-base N, or --port-base 0 for free ports.",
            )


def _from(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    if not text:
        return otherwise
    try:
        return _number(f"${name}", int(text))
    except ValueError:
        raise ConfigError(f"${name} is {text!r}.", hint="It must be a port number.") from None


def _number(what: str, value: int) -> int:
    if not 0 <= value <= 65_535:
        raise ConfigError(f"{what} gives {value}, which is no port.", hint="Ports go from 1 to 65535.")
    return value
