"""Guided fuzzing: one target each for documents, requests, other programs' models and model folders.

    python -m tests.fuzzing documents --seconds 1200

A target is a module with `target(data)`, which raises if Heed mishandles the input, `seeds()`, good inputs to mutate,
and WORDS, which the fuzzer inserts. Inputs that once were faults lie in finds/TARGET, and are tested in `make test`.
"""

from pathlib import Path

# Whose branches guide: heed's, and those of libraries that read the input before it.
TARGETS = {
    "documents": ("heed",),
    "requests": ("heed", "starlette", "python_multipart"),
    "exchange": ("heed", "yaml", "pickletools"),
    "folders": ("heed",),
}
FINDS = Path(__file__).parent / "finds"
