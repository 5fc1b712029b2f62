"""What is merged and mutated, and when; `assigner.py` writes it into the log."""
