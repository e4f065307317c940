"""A translation server: the searches that requests to a model share, under interfaces that existing clients speak."""
