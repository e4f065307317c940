"""The order of training: which pairs form which step, of one text, of shards, or of a mix."""
