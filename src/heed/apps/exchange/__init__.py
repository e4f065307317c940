"""Models that leave Heed for other programs, and other programs' models that enter: a file a format."""
