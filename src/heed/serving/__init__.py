"""A translation server: searches that all requests to a model share, under the interfaces that existing clients speak."""
