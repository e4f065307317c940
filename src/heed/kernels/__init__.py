"""The CPU's share of a training step that is no large matrix product, each chain of operations in one pass."""
