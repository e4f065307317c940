"""Running the network on a GPU."""
