"""Names of clusters as ids of DAGs, assets and groups of tasks."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
# Airflow's limit is 250 for a DAG's id, which has a prefix; a file's name may be longer.
_LONGEST = 200


def as_id(name: str) -> str:
    """The name where Airflow allows it as an id, by characters and length; else a like one with a digest, so
    that two stay two."""
    return _with_digest(_NOT_IN_IDS.sub("_", name), name)


def as_group_id(name: str) -> str:
    """The same for a group of tasks, whose id has no dots."""
    return _with_digest(_NOT_IN_IDS.sub("_", name).replace(".", "_"), name)


def asset_uri(cluster: str, what: str) -> str:
    """Airflow cuts off what stands behind `?` and `#`, which a folder's name may have."""
    return f"oncluster://{quote(cluster, safe='')}/{what}"


def _with_digest(plain: str, name: str) -> str:
    plain = plain[:_LONGEST]
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"
