"""Commands that parse sentences and score trees."""
