"""What Airflow's provider manager is told of this package when it is installed: the connection type
`zookeeper`.

Named as an entry point in pyproject.toml; with the package merely in the plugins folder, connections of
this type work too (from environment variables or the API), only the form in the UI does not know their
fields.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """In the form of Airflow's provider.yaml."""
    return {
        "package-name": "oncluster",
        "name": "oncluster",
        "description": "ON CLUSTER migrations for clusters that speak ClickHouse.",
        "connection-types": [
            {
                "connection-type": "zookeeper",
                "hook-class-name": "oncluster_airflow.hooks.keeper.KeeperHook",
                "hook-name": "ZooKeeper / ClickHouse Keeper",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"login": "Digest user", "password": "Digest password"},
                    "placeholders": {"host": "zk1:2181,zk2:2181,zk3:2181", "port": "2181"},
                },
                "conn-fields": {
                    "root": {
                        "label": "Root (chroot)",
                        "schema": {"type": ["string", "null"]},
                        "description": "A node below which all paths stand",
                    },
                    "session_timeout_ms": {
                        "label": "Session timeout (ms)",
                        "schema": {"type": ["integer", "null"], "default": 30000},
                    },
                    "secure": {"label": "Use TLS", "schema": {"type": ["boolean", "null"]}},
                    "ca_file": {"label": "CA file (PEM)", "schema": {"type": ["string", "null"]}},
                    "operation_timeout_ms": {
                        "label": "Operation timeout (ms)",
                        "schema": {"type": ["integer", "null"], "default": 10000},
                    },
                },
            }
        ],
    }
