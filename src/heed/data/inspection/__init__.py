"""Text described for its owner: lengths, copies, lines that look damaged."""
