"""Does a history of replicated tables keep what ALTER promises (R8)? Pure; see `checkers`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from engine.errors import MalformedEntry
from engine.replication.columns import Columns
from engine.replication.log_actions import AlterMetadata
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName
from engine.replication.text import encode_bytes
from engine.testing.replication.history import History, Outcome
from engine.testing.replication.model import TableModel
from engine.testing.simulation_report import Violation


def check_r8(history: History, model: TableModel) -> Iterator[Violation]:
    yield from _check_versions(history, model)
    if history.definition is None:
        return
    for replica, final in sorted(history.final.items()):
        if final.definition is not None and final.definition != history.definition:
            yield Violation("R8", f"{replica} has another definition of the table than Keeper")
    table = _types(history.definition.columns)
    dropped = {name for entry in (*model.mutations, *model.killed) for name, _ in _dropped(entry)}
    for replica, final in sorted(history.final.items()):
        for part, columns in sorted(final.part_columns.items()):
            for what in _wrong_columns(part, _types(columns), table, dropped, model):
                yield Violation("R8", f"{part} on {replica} {what}")


def _check_versions(history: History, model: TableModel) -> Iterator[Violation]:
    """One after another: no version twice, and none takes back what another has done."""
    alters = [each.entry.action for each in model.log if isinstance(each.entry.action, AlterMetadata)]
    for before, after in itertools.pairwise(alters):
        if after.alter_version != before.alter_version + 1:
            yield Violation("R8", f"metadata version {after.alter_version} follows {before.alter_version}")
        changed = _types(encode_bytes(before.columns)).keys() ^ _types(encode_bytes(after.columns)).keys()
        if len(changed) > 1:  # each ALTER of the workload is about one column
            names = ", ".join(sorted(changed))
            yield Violation("R8", f"the ALTER to version {after.alter_version} changed {names}")
    done = [alter for alter in history.alters if alter.outcome is Outcome.OK]
    if len(done) > len(alters):
        yield Violation("R8", f"{len(done)} ALTERs were acknowledged, and {len(alters)} are in the log")


def _wrong_columns(
    part: PartName, has: Mapping[str, str], table: Mapping[str, str], dropped: set[str], model: TableModel
) -> Iterator[str]:
    for block in model.inside(part):
        for name in sorted((_types(block.columns).keys() & table.keys()) - has.keys() - dropped):
            yield f"has lost column {name} of {block.part}"
    for entry in model.mutations:
        number = entry.number_in(part.partition_id)
        if number is None or not part.max_block < number <= part.mutation:
            continue  # it was not rewritten for this one, or something in it came later
        for name, new_type in (*_dropped(entry), *_modified(entry)):
            if name in has and name not in table:
                yield f"has column {name}, although it was rewritten when that was dropped"
            elif name in has and table.get(name) == new_type != has[name]:
                yield f"has {name} {has[name]}, although it was rewritten when that became {new_type}"


def _dropped(entry: MutationEntry) -> Iterator[tuple[str, str]]:
    yield from ((name, "") for name in _commands(entry, "DROP COLUMN"))


def _modified(entry: MutationEntry) -> Iterator[tuple[str, str]]:
    for command in _commands(entry, "MODIFY COLUMN"):
        name, _, new_type = command.partition(" ")
        yield name, new_type


def _commands(entry: MutationEntry, verb: str) -> Iterator[str]:
    """What follows the verb in the commands that have it, as the workload writes them."""
    for command in entry.commands.split(", "):
        if command.startswith(f"{verb} "):
            yield command.removeprefix(f"{verb} ").replace("`", "")


def _types(columns: bytes) -> dict[str, str]:
    try:
        return {column.name: column.type for column in Columns.from_bytes(columns).columns}
    except MalformedEntry:
        return {}
