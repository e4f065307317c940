"""A translation server: one search a model for all requests, under the interfaces that existing clients speak."""
