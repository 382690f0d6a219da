"""``python -m pullback``: the command line."""

from pullback.cli.main import main

main()
