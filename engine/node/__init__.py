"""One node process."""
