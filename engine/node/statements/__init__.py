"""Statements of clients on their way through the node; `router.py` is where they come in."""
