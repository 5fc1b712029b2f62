"""What a replica tidies up by itself; `turns.py` says when."""
