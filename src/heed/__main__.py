"""`python -m heed` is the command `heed`."""

import sys

if not sys.flags.safe_path:
    sys.path.pop(0)  # the current folder, whose json.py is the user's

from heed.apps.commands import main

main()
