"""Local SQL: chDB in this process, and throw-away chDBs in processes of their own."""

from engine.storage.chdb_pool import ChdbPool
from engine.storage.chdb_session import ChdbSession, QueryResult, ResultStream, Scope
from engine.storage.layout import ChdbSettings

__all__ = ["ChdbPool", "ChdbSession", "ChdbSettings", "QueryResult", "ResultStream", "Scope"]
