"""Large corpora: prepared in shards by many workers, and read without memory that grows with them."""
