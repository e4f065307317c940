"""The network of section 3."""
