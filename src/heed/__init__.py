"""The Transformer of "Attention Is All You Need": parallel text in, a trained model and translations out."""
