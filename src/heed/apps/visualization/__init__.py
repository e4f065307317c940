"""Attention, traced for a pair and drawn as in the figures 3 to 5."""
