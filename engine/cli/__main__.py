"""`python -m engine.cli` is `oncluster`."""

from engine.cli.main import main

main()
