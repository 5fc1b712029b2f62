"""What of the local stack is to run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What to run. `hosts` empty: all of the cluster file; `cluster_file` and `migrations` None: this
    project's. Airflow reads the migrations again every `dags_read_every_s`."""

    home: Path
    port_base: int | None = None
    cluster_file: Path | None = None
    migrations: Path | None = None
    hosts: tuple[str, ...] = ()
    with_airflow: bool = True
    dags_read_every_s: int = 5
    airflow_password: str = field(default="", repr=False)

    def to_json(self) -> str:
        return json.dumps(
            {
                "home": str(self.home),
                "port_base": self.port_base,
                "cluster_file": str(self.cluster_file) if self.cluster_file else None,
                "migrations": str(self.migrations) if self.migrations else None,
                "hosts": list(self.hosts),
                "with_airflow": self.with_airflow,
                "dags_read_every_s": self.dags_read_every_s,
                "airflow_password": self.airflow_password,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> StackOptions:
        raw: dict[str, Any] = json.loads(text)
        for name in ("home", "cluster_file", "migrations"):
            raw[name] = Path(raw[name]) if raw[name] else None
        raw["hosts"] = tuple(raw["hosts"])
        return cls(**raw)
