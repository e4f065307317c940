"""Backends run the network of model/: PyTorch on any device, or fused kernels on a CPU."""
