"""SYSTEM commands about the node itself: RELOAD CONFIG, STOP and START REPLICATED DDL QUERIES.

While they are stopped, this node takes no statement ON CLUSTER from clients (392), but for SYSTEM …; what
others have put into the queue it carries out. They are on again with the next start. As in ClickHouse.
"""

from __future__ import annotations

from engine.node.config_reload import ConfigReload
from engine.sql import Statement, StatementKind

_STOP = "STOP REPLICATED DDL QUERIES"
_START = "START REPLICATED DDL QUERIES"


class NodeCommands:
    """`run` what it `takes`, from a client or from the queue."""

    def __init__(self, config_reload: ConfigReload) -> None:
        self._config_reload = config_reload
        self.is_replicated_ddl_enabled = True

    def takes(self, statement: Statement) -> bool:
        is_switch = statement.kind is StatementKind.SYSTEM and statement.system_command in (_STOP, _START)
        return is_switch or self._config_reload.takes(statement)

    def run(self, statement: Statement) -> None:
        """Raises SqlError if the configuration cannot be read."""
        if self._config_reload.takes(statement):
            self._config_reload.run()
        else:
            self.is_replicated_ddl_enabled = statement.system_command == _START
