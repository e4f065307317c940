"""Section 6.1."""
