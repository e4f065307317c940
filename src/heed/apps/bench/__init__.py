"""Throughput of training and beam search on this machine, and what a run will cost."""
