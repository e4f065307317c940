"""The tasks that a model is trained for: each reads its own text, validates and scores in its own way."""
