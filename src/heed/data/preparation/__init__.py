"""Text → tokenizer and ids on disk: plan, rules, vocabulary, shards."""
