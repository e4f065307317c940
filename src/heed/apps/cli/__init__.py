"""The command line itself: the process, the terminal, progress, and options that commands share."""
