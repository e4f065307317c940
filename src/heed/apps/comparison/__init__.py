"""Which of several translations of a text is better, by how much, and where."""
