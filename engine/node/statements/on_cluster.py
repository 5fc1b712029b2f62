"""ON CLUSTER from a client: check, submit, wait, and answer in the client's format.

A statement is submitted under the client's token or a fresh one. The connection that waits is only a
spectator: when it breaks, the statement goes on, and whoever asks again with the same token is attached to
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from engine.config.model import Topology
from engine.ddl import OutputMode, output_columns, prepare, result_stream
from engine.ddl.entry import DEFAULT_VERSION
from engine.ddl.output import DEFAULT_TIMEOUT_S
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import HostId
from engine.node.queues import KEEPER_WAIT_S, NodeQueues
from engine.node.statements.hosts_answer import HostsAnswer, settings_of_ddl
from engine.node.statements.node_commands import NodeCommands
from engine.node.statements.own_dictionaries import with_whole_dictionaries
from engine.node.statements.statement import Answer, Asked
from engine.setting_values import whole_number_of
from engine.sql import Statement, expand_macros

_NOT_SHIPPED = frozenset({"readonly", "log_comment", "implicit_select", "query_id"})


class ClusterStatements:
    """The initiator's side of the queues."""

    def __init__(
        self,
        queues: NodeQueues | None,
        *,
        env: Env,
        topology: Callable[[], Topology],
        initiator: HostId,
        is_one_statement: Callable[[str], Awaitable[bool]],
        commands: NodeCommands,
        names_user: bool = False,
    ) -> None:
        """`names_user`: entries say who asked, from version 8 on."""
        self._names_user = names_user
        self._commands = commands
        self._queues = queues
        self._env = env
        self._topology = topology
        self._initiator = initiator
        self._is_one_statement = is_one_statement

    async def run(self, asked: Asked, statement: Statement) -> Answer:
        """Submit and wait. Raises what the checks raise, KeeperUnavailable 999, SqlError 139 without Keeper;
        the outcome's own error is raised by the answer's `finish`, after its rows."""
        if self._queues is None:
            raise SqlError(Code.NO_ELEMENTS_IN_CONFIG, "There is no Zookeeper configuration in server config")
        settings = settings_of_ddl(asked)
        mode = OutputMode.parse(settings.get("distributed_ddl_output_mode", "throw"))
        timeout_s = _number(settings, "distributed_ddl_task_timeout", DEFAULT_TIMEOUT_S)
        version = _number(settings, "distributed_ddl_entry_format_version", DEFAULT_VERSION)
        topology = self._topology()
        cluster = expand_macros(statement.on_cluster or "", topology.macros)
        queue = self._queues.of_cluster(cluster)
        prepared = prepare(
            asked.sql if _have_own_database(topology, cluster) else await with_whole_dictionaries(asked),
            topology=topology,
            queue=queue,
            token=asked.token or str(self._env.new_uuid()),
            current_database=asked.current_database,
            settings={name: value for name, value in settings.items() if name not in _NOT_SHIPPED},
            initiator=self._initiator,
            entry_version=version,
            shared_uuid=self._env.new_uuid(),
            allow_distributed_ddl=asked.user.allow_distributed_ddl,
            replicated_ddl_enabled=self._commands.is_replicated_ddl_enabled,
            initiator_user=asked.user.name if self._names_user else "",
        )
        if asked.settings or not await self._is_one_statement(asked.sql):  # what the real parser says
            await asked.check_syntax()
        await self._queues.holder.get(timeout_s=KEEPER_WAIT_S)
        submission = await self._queues.client(queue).submit(prepared)
        rows = result_stream(
            self._queues.holder,
            self._env,
            queue.paths,
            submission.entry,
            mode=mode,
            timeout_s=timeout_s,
        )
        columns = output_columns(mode) if mode.has_rows and timeout_s != 0 else None
        return HostsAnswer(asked, rows, columns=columns, format=statement.format or asked.format)


def _have_own_database(topology: Topology, cluster: str) -> bool:
    """Whether names without a database mean those of the hosts' own `default_database`."""
    found = topology.clusters.get(cluster)
    return found is not None and any(replica.default_database for replica in found.replicas)


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name)
    if text is None:
        return default
    try:
        return whole_number_of(text)
    except ValueError:
        raise SqlError(Code.CANNOT_PARSE_TEXT, f"Setting {name}: '{text}' is not a number") from None
