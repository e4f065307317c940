"""What a run trains a model for: each task reads its own text, validates and scores in its own way."""
