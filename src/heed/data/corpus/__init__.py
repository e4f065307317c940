"""Ids on disk: a shard, and a corpus of many."""
