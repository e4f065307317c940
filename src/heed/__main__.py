"""`python -m heed` is the command `heed`."""

from heed.apps.cli import main

main()
