"""The process and its machine: device, memory, switches, signals, files."""
