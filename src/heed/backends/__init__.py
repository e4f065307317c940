"""What runs the network of model/: PyTorch anywhere, or fused kernels on a CPU."""
