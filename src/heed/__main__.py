"""`python -m heed` is the command `heed`."""

from heed.cli import main

main()
