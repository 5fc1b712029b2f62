"""Free ports, for tests: `engine.ports`."""

from engine.ports import free_ports, holder_of, is_free

__all__ = ["free_ports", "holder_of", "is_free"]
