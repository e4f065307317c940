"""Text as pairs of lines: lines, columns, pairs, and the files that names stand for."""
