"""Training runs, one verb per file: train, average, evaluate, describe, and the demo that does all of it."""
