"""The process and its machine: device, memory, signals, files."""
