"""What a CPU's training step and search do besides large matrix products, each chain of operations in one pass; with AMX
also those products."""
