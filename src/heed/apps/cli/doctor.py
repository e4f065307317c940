"""heed doctor: what this machine offers, and what would make Heed faster on it."""

from heed.apps.cli.terminal import JSON, print_json, show
from heed.runtime.process_tuning import import_torch, torch_folder


def doctor(as_json: JSON = False) -> None:
    """Show what Heed uses on this machine, and what would make it faster: a line or two for a report of a fault.

    Compiles Heed's kernels if they did not come with Heed and that has not happened yet.
    """
    if torch_folder() is not None:
        import_torch()
    from heed import __version__
    from heed.apps.bench.diagnosis import diagnosis

    facts = diagnosis(__version__)
    if as_json:
        print_json(facts)
        return
    for title, content in facts.items():
        show(f"{title}:" if content else f"{title}: {'nothing' if title == 'faster' else 'none'}")
        rows = content.items() if isinstance(content, dict) else (("", item) for item in content)
        for name, value in rows:
            shown = (", ".join(value) or "none") if isinstance(value, list) else value
            show(f"  {name}: {shown}" if name else f"  {shown}")
