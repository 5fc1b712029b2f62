"""How many files and connections the node's process may have open."""

from __future__ import annotations

import logging
import resource

from engine.errors import TOO_FEW_DESCRIPTORS

log = logging.getLogger(__name__)

_FEW = 4096
"""A node with a hundred tables and as many clients has some hundreds open; a query, one for each file."""


def take_all_descriptors() -> None:
    """Make the hard limit of open files the process's own, as ClickHouse does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # on systems whose hard limit is more than a process may have
        log.info("node.descriptors limit=%d error=%s", soft, error)
        hard = soft
    if hard != resource.RLIM_INFINITY and hard < _FEW:
        log.warning("node.few_descriptors limit=%d hint=%s", hard, TOO_FEW_DESCRIPTORS)
