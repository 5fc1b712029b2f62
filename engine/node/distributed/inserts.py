"""INSERT into a Distributed table, in every form that a client can send it.

Safety argument. Rows are written by chDB into a stage that nobody else sees (`stage`), split by shard. Only
when the statement has ended well are they delivered, or put into the spool; an error or a crash before that
leaves nothing. Each block has a token before it is first sent: of the INSERT's own token if it has one, so
that a client that repeats an INSERT writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.distributed.delivery import DEPTH_SETTING, TOKEN_SETTING, Block, Deliveries, Policy
from engine.distributed.inserter import ForegroundInsert, ShardBlocks
from engine.distributed.peers import PeerShard
from engine.distributed.replica_choice import LoadBalancing
from engine.distributed.spool_file import FileHead
from engine.distributed.spool_names import all_replicas, one_replica
from engine.distributed.spool_table import SpoolBlock
from engine.env import Env
from engine.errors import Code, SqlError
from engine.node.distributed.spools import Spools
from engine.node.distributed.stage import Stage, StagedPart, Stages
from engine.node.distributed.tables import DistributedTable, DistributedTables
from engine.node.replicated.insert_sql import InsertSql
from engine.node.replicated.waiting import flag, number
from engine.node.staged_insert import StagedInserts, Write, streaming
from engine.node.statement import Answer, Asked, WholeAnswer

MAX_DEPTH = 5

_NOT_FOR_THE_STAGE = ("insert_quorum", "insert_deduplicate", "deduplicate_insert", TOKEN_SETTING)
_PASSED_ON = ("insert_quorum", "insert_quorum_timeout", "insert_quorum_parallel", "insert_deduplicate")

ShardsOf = Callable[[str], Sequence[PeerShard]]
"""The shards of the cluster of this name. Raises SqlError 701."""


class DistributedInserts(StagedInserts):
    """INSERT into Distributed tables."""

    streaming_settings = streaming(block_bytes=64 << 20)

    def __init__(
        self,
        tables: DistributedTables,
        *,
        stages: Stages,
        deliveries: Deliveries,
        spools: Spools,
        shards_of: ShardsOf,
        env: Env,
    ) -> None:
        self._tables = tables
        self._stages = stages
        self._deliveries = deliveries
        self._spools = spools
        self._shards_of = shards_of
        self._env = env

    async def insert_into_stage(self, asked: Asked, text: InsertSql, write: Write) -> Answer | None:
        if text.table is None or not len(self._tables):
            return None
        table = await self._tables.find_for(asked, text.table)
        if table is None:
            return None
        settings = {**asked.session.settings, **asked.settings, **text.settings}
        depth = int(number(settings, DEPTH_SETTING, MAX_DEPTH))
        if depth == 1:
            raise SqlError(Code.TOO_LARGE_DISTRIBUTED_DEPTH, "Maximum distributed depth exceeded")
        shards = self._shards_of(table.definition.cluster)
        owner = await self._owner(table, shards, settings)
        is_foreground = _is_foreground(settings)
        if not is_foreground:
            await self._spools.check(table)
        async with self._stages.open(table, owner) as stage:
            staged = replace(
                asked,
                settings={
                    **{n: v for n, v in asked.settings.items() if n not in _NOT_FOR_THE_STAGE},
                    "async_insert": "0",
                    "max_partitions_per_insert_block": "0",
                },
            )
            try:
                result = await write(staged, text.into(stage.table))
            except SqlError as error:
                message = error.message.replace(stage.table.quoted, table.name.quoted)
                message = message.replace(str(stage.table), str(table.name))
                raise SqlError(error.code, message, hint=error.hint, name=error.name) from error
            await self._deliver(table, shards, stage, settings, is_foreground=is_foreground)
        return WholeAnswer(result, format=asked.format)

    async def _owner(
        self, table: DistributedTable, shards: Sequence[PeerShard], settings: Mapping[str, str]
    ) -> str:
        """SQL for the index of the shard of a row. Raises SqlError 577, 55, 53, 18."""
        chosen = int(number(settings, "insert_shard_id", 0))
        if chosen > len(shards):
            raise SqlError(Code.INVALID_SHARD_ID, "Shard id should be range from 1 to shard number")
        if chosen:
            return f"toUInt32({chosen - 1})"
        weights = [shard.weight for shard in shards]
        if len(shards) == 1:
            return "toUInt32(0)"
        if not table.definition.sharding_key:
            if flag(settings, "insert_distributed_one_random_shard", False) and sum(weights) > 0:
                [index] = self._env.rng.choices(range(len(shards)), weights)
                return f"toUInt32({index})"
            raise SqlError(
                Code.STORAGE_REQUIRES_PARAMETER,
                "Method write is not supported by storage Distributed with more than one shard and no "
                "sharding key provided",
                hint="Give the table a sharding key, or set insert_shard_id or "
                "insert_distributed_one_random_shard.",
            )
        return await self._stages.owner_expression(table, weights)

    async def _deliver(
        self,
        table: DistributedTable,
        shards: Sequence[PeerShard],
        stage: Stage,
        settings: Mapping[str, str],
        *,
        is_foreground: bool,
    ) -> None:
        parts = await stage.parts()
        token = settings.get(TOKEN_SETTING) or self._env.new_uuid().hex
        passed_on = {name: settings[name] for name in _PASSED_ON if name in settings}
        depth = int(number(settings, DEPTH_SETTING, MAX_DEPTH))
        if depth > 0:
            passed_on[DEPTH_SETTING] = str(depth - 1)
        if is_foreground:
            passed_on["insert_distributed_sync"] = "1"  # the name that servers of all versions know
        by_shard: dict[int, list[Block]] = {}
        for part in parts:
            blocks = by_shard.setdefault(part.shard, [])
            # Shards do not know each other's tokens, so one may serve all. A second block needs its own.
            own = f"{token}_{len(blocks)}" if blocks else token
            blocks.append(_block(table, stage, part, own, passed_on))
        work = [ShardBlocks(shards[index], blocks) for index, blocks in by_shard.items()]
        policy = policy_of(settings)
        later: list[SpoolBlock] = []
        if not is_foreground:
            split = [_split(part, prefers_local=policy.prefer_localhost) for part in work]
            work = [now for now, _ in split if now is not None]
            later = [block for _, blocks in split for block in blocks]
        timeout_s = number(
            settings,
            "insert_distributed_timeout",
            number(settings, "distributed_background_insert_timeout", 0),
        )
        insert = ForegroundInsert(self._deliveries, self._env, policy=policy, timeout_s=timeout_s)
        await insert.write(work)
        if later:
            await self._spools.put(table, later)


def _is_foreground(settings: Mapping[str, str]) -> bool:
    if number(settings, "insert_shard_id", 0):
        return True
    old = flag(settings, "insert_distributed_sync", False)
    return flag(settings, "distributed_foreground_insert", old)


def _split(work: ShardBlocks, *, prefers_local: bool) -> tuple[ShardBlocks | None, list[SpoolBlock]]:
    """What is written at once, because this node is the replica, and what is kept to be sent."""
    shard = work.shard
    here = tuple(peer for peer in shard.peers if prefers_local and peer.is_local)
    now = ShardBlocks(replace(shard, peers=here), work.blocks) if here else None
    if shard.internal_replication:
        directories: tuple[str, ...] = () if here else (all_replicas(shard),)
    else:
        directories = tuple(one_replica(peer) for peer in shard.peers if peer not in here)
    if not directories:
        return now, []
    return now, [
        SpoolBlock(
            directories,
            FileHead(block.token, block.columns, block.rows, block.settings),
            block.body(),
        )
        for block in work.blocks
    ]


def _block(
    table: DistributedTable, stage: Stage, part: StagedPart, token: str, settings: Mapping[str, str]
) -> Block:
    return Block(
        database=table.definition.database,
        table=table.definition.table,
        columns=table.sent_columns,
        token=token,
        body=lambda: stage.rows(part),
        rows=part.rows,
        settings=settings,
    )


def policy_of(settings: Mapping[str, str]) -> Policy:
    """How the settings of a statement order replicas. Raises SqlError 36."""
    name = settings.get("load_balancing", LoadBalancing.RANDOM.value)
    try:
        balancing = LoadBalancing(name.lower())
    except ValueError:
        known = ", ".join(policy.value for policy in LoadBalancing)
        raise SqlError(
            Code.BAD_ARGUMENTS, f"Setting load_balancing = '{name}' is unknown.", hint=f"There are: {known}."
        ) from None
    return Policy(
        load_balancing=balancing,
        first_offset=int(number(settings, "load_balancing_first_offset", 0)),
        max_ignored_errors=int(number(settings, "distributed_replica_max_ignored_errors", 0)),
        prefer_localhost=flag(settings, "prefer_localhost_replica", True),
    )
