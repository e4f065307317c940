"""Words to numbers and back; needs no torch."""
