"""Rows on their way to shards: the stage that splits them, the spool, and the senders."""
