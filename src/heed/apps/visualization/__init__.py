"""What attends to what: traces of a pair, drawn as in the figures 3 to 5."""
