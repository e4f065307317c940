"""heed recipe: the recipes that come with Heed. heed --version."""

from typing import Annotated

import typer

from heed.apps.cli.guesses import complete_recipe
from heed.apps.cli.process import Verb, VerbGroup
from heed.apps.cli.terminal import JSON, print_json, show

recipe_app = typer.Typer(
    cls=VerbGroup, help="Recipes that come with Heed.", no_args_is_help=True, rich_markup_mode=None
)


@recipe_app.command("list", cls=Verb, epilog="Example: heed recipe list")
def recipe_list(as_json: JSON = False) -> None:
    """List the names that heed train knows."""
    from heed.runs.recipes import recipe_names, recipe_title

    titles = {name: recipe_title(name) for name in recipe_names()}
    if as_json:
        print_json([{"name": name, "title": title} for name, title in titles.items()])
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        show(f"{name:{width}}  {title}")


@recipe_app.command("show", cls=Verb, epilog="Example: heed recipe show multi30k-en-de > my.toml")
def recipe_show(
    name: Annotated[str, typer.Argument(help="A name that `heed recipe list` shows.", autocompletion=complete_recipe)],
) -> None:
    """Print a recipe, as a starting point for your own."""
    from heed.runs.recipes import recipe_text

    print(recipe_text(name), end="")


def _print_version(wanted: bool) -> None:
    if wanted:
        from heed import __version__

        print(f"heed {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print Heed's version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""
