"""The text of a document: items, what must stay in it, sentences, and their translations with the tags in place."""
