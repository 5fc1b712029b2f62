"""The hosts that were shown to who approved a statement. It goes to no other: what it would destroy on a host
that has joined since nobody has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config.model import Topology
from engine.migrations.errors import MigrationRefused
from engine.migrations.model import StatementRef


@dataclass(frozen=True, slots=True)
class Shown:
    """The cluster and the hosts of each statement that needed approval; of nothing where nobody was asked."""

    statements: Mapping[StatementRef, tuple[str, frozenset[str]]] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> Shown:
        return cls(
            {
                StatementRef.from_json(
                    {**statement, "version": migration["version"], "direction": plan["direction"]}
                ): (statement["cluster"], frozenset(host["host"] for host in statement["hosts"]))
                for migration in plan["migrations"]
                for statement in migration["statements"]
                if statement["needs_approval"]
            }
        )

    def require_none_joined(self, topology: Topology, ref: StatementRef) -> None:
        """Raises MigrationRefused when the statement would go to a host that was not shown."""
        if ref not in self.statements:
            return
        name, shown = self.statements[ref]
        joined = sorted({host.readable for host in topology.cluster(name).host_ids} - shown)
        if joined:
            raise MigrationRefused(
                f"{', '.join(joined)} joined {name} after the plan was approved.",
                hint="Start a new run, which plans and asks anew.",
            )

    def to_json(self) -> list[dict[str, Any]]:
        """By hosts, because most statements go to the same ones."""
        refs: dict[tuple[str, frozenset[str]], list[StatementRef]] = {}
        for ref, where in self.statements.items():
            refs.setdefault(where, []).append(ref)
        return [
            {"cluster": name, "hosts": sorted(hosts), "statements": [ref.to_json() for ref in found]}
            for (name, hosts), found in refs.items()
        ]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Shown:
        return cls(
            {
                StatementRef.from_json(ref): (group["cluster"], frozenset(group["hosts"]))
                for group in data
                for ref in group["statements"]
            }
        )
