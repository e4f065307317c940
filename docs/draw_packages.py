"""Draws docs/explain/packages.svg, the packages of src/heed and which imports which, from code and contract.

    python docs/draw_packages.py            # or make docs

An arrow that follows from others is left out: `cli` imports `errors`, say, but so do the packages that it imports.
"""

import tomllib
from html import escape
from pathlib import Path

import grimp

PROJECT = Path(__file__).resolve().parents[1]
PICTURE = PROJECT / "docs" / "explain" / "packages.svg"
BOX_WIDTH, BOX_HEIGHT, GAP, ROW_HEIGHT, MARGIN = 128, 34, 26, 84, 20


def layers() -> list[list[str]]:
    """The packages of each layer, highest first, as import-linter's contract has them."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (names,) = [
        contract["layers"]
        for contract in contracts["contracts"]
        if contract["type"] == "layers" and "containers" not in contract
    ]
    return [[package.strip().removeprefix("heed.") for package in layer.split("|")] for layer in names]


def imports(packages: list[str]) -> dict[str, set[str]]:
    """The packages that each package imports directly."""
    graph = grimp.build_graph("heed", cache_dir=None)
    found: dict[str, set[str]] = {package: set() for package in packages}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importer, target = (name.split(".")[1] if "." in name else "" for name in (module, imported))
            if importer != target and importer in found and target in found:
                found[importer].add(target)
    return found


def without_implied(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that do not follow from others."""

    def reachable(package: str) -> set[str]:
        return imported[package].union(*(reachable(other) for other in imported[package]))

    return {name: targets.difference(*(reachable(target) for target in targets)) for name, targets in imported.items()}


def drawn() -> str:
    """The picture as SVG."""
    rows = layers()
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP) + 2 * MARGIN
    places = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP) + GAP) / 2
        for x, package in enumerate(row):
            places[package] = (left + x * (BOX_WIDTH + GAP), MARGIN + y * ROW_HEIGHT)
    lines = []
    for name, targets in sorted(without_implied(imports(list(places))).items()):
        for target in sorted(targets):
            (x, y), (to_x, to_y) = places[name], places[target]
            x, y, to_x = x + BOX_WIDTH / 2, y + BOX_HEIGHT, to_x + BOX_WIDTH / 2
            bend = (to_y - y) / 2
            lines.append(
                f'<path d="M {x:g} {y:g} C {x:g} {y + bend:g}, {to_x:g} {to_y - bend:g}, {to_x:g} {to_y:g}"'
                ' fill="none" stroke="#7788aa" stroke-width="1.2" marker-end="url(#arrow)"/>'
            )
    for name, (x, y) in places.items():
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef2fa" stroke="#445"/>'
            f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + BOX_HEIGHT / 2 + 5:g}" text-anchor="middle">{escape(name)}</text>'
        )
    height = len(rows) * ROW_HEIGHT - ROW_HEIGHT + BOX_HEIGHT + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        ' font-family="sans-serif" font-size="14">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z" fill="#7788aa"/></marker></defs>'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
