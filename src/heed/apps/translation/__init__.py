"""Commands that translate lines of text and score translations."""
