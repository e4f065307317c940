"""What a CPU's training step and search do besides large matrix products, each chain of operations in one pass.

With AMX those products of a training step as well.
"""
