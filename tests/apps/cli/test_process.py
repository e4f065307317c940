"""What the command line refuses before a verb runs."""

import pytest
import typer

from heed.apps.cli.process import FILES, Verb
from heed.apps.commands import app
from heed.errors import HeedError


def verbs(command, path=()):
    """Each verb with its place in the command line."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*path, name))
    if path and not hasattr(command, "commands"):
        yield pytest.param(command, id=" ".join(path))


VERBS = list(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_given_twice_is_refused_where_only_one_counts(verb):
    assert isinstance(verb, Verb)
    for option in verb.params:
        for name in FILES & set(option.opts):
            given = [name, "one", name, "another"]
            if option.multiple:
                assert verb.make_parser(typer.Context(verb)).parse_args(args=given)[0][option.name] == [
                    "one",
                    "another",
                ]
                continue
            with pytest.raises(HeedError, match=f"{option.opts[0]} is given 2 times, and only one counts"):
                verb.make_context("heed", given)


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_an_example_in_one_line(verb):
    text = verb.get_help(typer.Context(verb, info_name=verb.name))
    assert text.startswith("Example: heed ") or text.startswith("Example: echo "), text
    assert "\n\nUsage: " in text and text.count("Example: ") == 1


def test_the_files_of_translations_are_all_among_them():
    found = {name for verb in VERBS for option in verb.values[0].params for name in option.opts}
    assert {"--src", "--tgt", "--hyp", "--ref", "--out", "--run"} <= FILES & found
    assert found >= FILES


@pytest.mark.parametrize("group", ["", "recipe", "data", "bench", "paper"])
def test_the_help_of_a_group_cuts_no_line(group):
    command = typer.main.get_command(app)
    command = command.commands[group] if group else command
    text = command.get_help(command.make_context("heed", ["recipe"], resilient_parsing=True))
    assert len(text.splitlines()) > 8
    assert "..." not in text.partition("\n")[2]
