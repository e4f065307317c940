"""The network on a CPU by fused C++ kernels: packed sequences in training, many steps per call in a search.

With AMX the large matrix products of training are the kernels' as well. search.py and what it imports work on numpy's
arrays and need no PyTorch; training.py and what it imports take PyTorch's tensors.
"""
