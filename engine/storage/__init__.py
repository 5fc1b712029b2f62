"""Local SQL: chDB in this process, and throw-away chDBs in processes of their own."""

from engine.storage.chdb_pool import ChdbPool
from engine.storage.chdb_session import ChdbSession
from engine.storage.disk_reserve import DiskReserve
from engine.storage.layout import ChdbSettings
from engine.storage.result_stream import ResultStream
from engine.storage.scope import QueryResult, Scope

__all__ = ["ChdbPool", "ChdbSession", "ChdbSettings", "DiskReserve", "QueryResult", "ResultStream", "Scope"]
