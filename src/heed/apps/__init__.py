"""Applications: the command line, the server, documents, other formats, the paper, measurements."""
