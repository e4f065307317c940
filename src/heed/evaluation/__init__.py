"""Numbers from texts; needs no torch."""
