"""What to load, and how the Spark application is told.

A request names the days by date, both ends included, in UTC. Repeating it gives the same tables:

    overwrite   replaces the months that hold the days, as a whole, however often it is done, and once for
                each job id; the default id is another one when the raw files have changed
    append      adds rows, once for each job id; the default id follows from cluster, days and mode, so that
                the same request twice adds the rows once
"""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from engine.errors import ConfigError

_JOB_ID = re.compile(r"[A-Za-z0-9_.:+-]{1,200}")
_NOT_IN_JOB_IDS = re.compile(r"[^A-Za-z0-9_.:+-]+")


class LoadMode(enum.StrEnum):
    """What happens to rows that are there already."""

    OVERWRITE = "overwrite"
    APPEND = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The days `first` to `last` of the raw files in `source` (None: the package with the sample data).

    `job_id` makes a load that is repeated the same load. Raises ConfigError for what cannot be meant.
    """

    cluster: str
    first: date
    last: date
    mode: LoadMode = LoadMode.OVERWRITE
    source: Path | None = None
    job_id: str = ""

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ConfigError(
                f"The last day, {self.last}, is before the first, {self.first}.",
                hint="Give the earlier day first; one day alone is the same date twice.",
            )
        if self.source is not None and not self.source.is_dir():
            raise ConfigError(f"There is no folder {self.source} to read raw files from.")
        if not self.job_id:
            object.__setattr__(self, "job_id", self._own_job_id())
        elif not _JOB_ID.fullmatch(self.job_id):
            raise ConfigError(
                f"{self.job_id!r} is no job id.",
                hint="Up to 200 letters, digits and the characters _ . : + -",
            )

    def _own_job_id(self) -> str:
        facts = (self.cluster, self.first.isoformat(), self.last.isoformat(), self.mode.value)
        # Rows of changed files that are appended under another id would be there twice.
        files = files_of(self.source) if self.mode is LoadMode.OVERWRITE else ""
        digest = hashlib.sha256("\n".join((*facts, str(self.source or ""), files)).encode()).hexdigest()
        return f"{self.mode}-{self.first}-{self.last}-{digest[:8]}"

    def arguments(self, *, config: Path, report: Path) -> list[str]:
        """For the application, after its file's name. `report` is the file that it is to write."""
        arguments = ["--config", str(config), "--cluster", self.cluster]
        arguments += ["--from", self.first.isoformat(), "--to", self.last.isoformat()]
        arguments += ["--mode", self.mode.value, "--job-id", self.job_id, "--report", str(report)]
        if self.source is not None:
            arguments += ["--source", str(self.source.absolute())]
        return arguments


def files_of(source: Path | None) -> str:
    """Eight characters that are others when the raw files of a folder have changed; none for the package's.

    By size and time of change: a file that was only touched is loaded again, which changes nothing.
    """
    if source is None:
        return ""
    seen = []
    for file in sorted(source.glob("*.csv*")):
        stat = file.stat()
        seen.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:8]


def job_id_from(name: str) -> str:
    """A job id out of a name that has other characters, such as that of a run; two names stay two."""
    plain = _NOT_IN_JOB_IDS.sub("_", name)
    if plain == name and _JOB_ID.fullmatch(name):
        return name
    return f"{plain[:150]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def parse_day(text: str, *, what: str) -> date:
    """A date as YYYY-MM-DD. Raises ConfigError that says which of the days it was."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{what} is no date: {text!r}.", hint="Write it as 2013-01-31.") from None


def parse_mode(text: str) -> LoadMode:
    """Raises ConfigError that names the modes."""
    try:
        return LoadMode(text)
    except ValueError:
        names = ", ".join(LoadMode)
        raise ConfigError(f"There is no mode {text!r}.", hint=f"The modes are: {names}.") from None
