"""Commands for named corpora and for checking any text."""
