"""What is cleaned and how old it has to be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

BY_SERVERS = ("broken-on-start", "noquorum", "covered-by-broken")
"""Prefixes of detached parts that servers set aside by themselves and have in another form, or whose INSERT
was never acknowledged. Parts without prefix were detached by a person."""

MAYBE_ONLY_COPIES = ("clone", "ignored", "unexpected")
"""Prefixes of whole parts that a server set aside because nobody else knew them: the rows may be nowhere
else, and no name proves the contrary, since a merge passes over the numbers of parts that it does not know.
They go only when a person names the prefix."""


class CleanupKind(enum.StrEnum):
    """A kind of rubbish. Each has a file of its own."""

    DDL = "ddl"
    REPLICAS = "replicas"
    TABLES = "tables"
    DETACHED = "detached"
    SPOOL = "spool"


class BrokenFilesFate(enum.StrEnum):
    """What becomes of files of Distributed tables that were put aside as broken."""

    STAY = "stay"
    RESTORE = "restore"
    """Those that are whole are sent again."""
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class GoneHost:
    """A person's word that a host will not come back: `host`, `host:port`, or the name of its replica."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """- `gone_after_s`: a replica goes when it was inactive for so long, without one activation between.
    - `leftover_after_s`: so old has to be what a server left half made, or half removed.
    - `detached_after_s`, `detached_prefixes`: which detached parts go; an empty prefix means those that a
      person detached. Broken ones only go from replicated tables.
    - `expired_shown_s`: for so long an entry that expired for a host is a finding.
    - `gone`: hosts that are gone for good by a person's word; for them nobody waits.
    - `broken_files`: what becomes of broken files of Distributed tables; by itself nothing does.
    - `roots`: where tables are looked for in Keeper, beside the places known from servers and configuration.
    - `ddl_keep_entries`: so many finished entries stay, where that is fewer than the queue's own limit.
      Unfinished ones stay until they are over its age.
    - `most_directories`: the look through Keeper ends there.
    """

    gone_after_s: float = DAY_S
    leftover_after_s: float = HOUR_S
    detached_after_s: float = 7 * DAY_S
    detached_prefixes: tuple[str, ...] = BY_SERVERS
    expired_shown_s: float = 7 * DAY_S
    gone: tuple[GoneHost, ...] = ()
    broken_files: BrokenFilesFate = BrokenFilesFate.STAY
    roots: tuple[str, ...] = ()
    ddl_keep_entries: int | None = None
    most_directories: int = 50_000
