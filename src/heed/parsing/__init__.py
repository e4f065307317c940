"""Constituency parsing (section 6.3): trees as sequences of symbols, EVALB's score, the parser."""
