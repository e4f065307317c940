"""What a command line that is wrong may have meant: a verb, option or setting of that meaning, or the whole line."""

import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from heed.errors import HeedError
from heed.suggestions import advice, did_you_mean, names_meant, names_of_meaning

# A verb → what people call it.
VERBS = {
    "train": "fit learn finetune fine-tune resume continue start run sweep tune",
    "translate": "predict generate decode decoder infer inference interactive test-translate",
    "evaluate": "eval test validate bleu sacrebleu chrf metrics",
    "compare": "ter comet significance bootstrap paired-bs",
    "recipe list": "list ls recipes presets models",
    "recipe show": "cat new init config",
    "data list": "list ls corpora corpus datasets",
    "data get": "download fetch",
    "data check": "clean filter",
    "prepare": "preprocess tokenize binarize build-vocab vocab bpe",
    "serve": "server web app ui gui api webui",
    "import": "install download pull hub",
    "export": "convert save release-model",
    "info": "show inspect describe summary params parameters count",
    "attention": "visualize visualise view trace heatmap align alignment",
    "plot": "curves tensorboard loss log logs",
    "average": "avg checkpoint-average average-checkpoints merge",
    "back-translate": "backtranslate backtranslation",
    "doctor": "check env environment diagnose gpu status system",
    "translate-file": "document docx file",
    "--version": "version",
    "--help": "help docs tutorial",
}
# How files are named, for verbs of which people expect that they take them in this order.
FORMS = {
    "train": ("heed train --src {} --tgt {}",),
    "evaluate": ("heed evaluate --hyp {} --ref {}", "heed evaluate {} --src {} --ref {}"),
    "score": ("heed score {} --src {} --tgt {}",),
    "translate": ("heed translate {} < {}", "heed translate {} < {} > {}"),
    "parse": ("heed parse {} < {}", "heed parse {} < {} > {}"),
}
MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
READERS = ("translate", "parse")  # of standard input
INPUT = "i in input src source file text input-file src-file".split()
OUTPUT = "o out output hyp tgt output-file".split()


def refuse_misplaced_files(verb: str, positional: Sequence[str]) -> None:
    """HeedError with the command that names them, if files or a text stand where the verb takes models or a recipe."""
    for file in positional:
        folder, name = os.path.split(file)
        if name in MODEL_FILES and os.path.isfile(os.path.join(folder, MODEL_FILES[0])):
            folder = shlex.quote(folder or ".")
            raise HeedError(f"{file} is a file of a model folder; name the folder: heed {verb} {folder}")
    if verb not in FORMS or not positional:
        return
    given = [shlex.quote(each) for each in positional]
    texts = [each for each in positional if os.path.isfile(each) and not each.endswith(".toml")]
    if verb != "evaluate" and texts[:1] == [positional[0]]:  # evaluate can do without a model, train has none
        given = [*given, "TRANSLATIONS"][:2] if verb == "train" else ["MODEL", *given]
    if verb in ("evaluate", "score") and len(given) == 2 and os.path.isdir(positional[0]):
        given.append("TRANSLATIONS")
    if verb in READERS and len(given) == 2 and not os.path.exists(positional[-1]) and os.path.isdir(positional[0]):
        raise HeedError(
            f"{positional[1]}: no such file or folder; text comes from standard input: echo {given[1]} | heed {verb} "
            f"{given[0]}"
        )
    if texts and (form := next((form for form in FORMS[verb] if form.count("{}") == len(given)), None)):
        source = "text comes from standard input" if verb in READERS else "text files are named by options"
        raise HeedError(f"{texts[0]} is a text file; {source}: {form.format(*given)}")


def verb_meant(name: str, group: str, known: Sequence[str]) -> str:
    """ "did you mean heed VERB?", or advice; empty if unknown. known: the verbs of the group, "" for all of Heed's."""
    word = name.lower().replace("_", "-")
    meant = [verb for verb, names in VERBS.items() if verb.startswith(group) and word in names.split()]
    meant = [verb for verb in meant if verb.startswith("--") or verb.removeprefix(group).split()[0] in known]
    return did_you_mean(f"heed {verb}" for verb in [f"{group}{word}"] * (word in known) or meant) or advice(name)


def option_meant(option: str, command: Any) -> str:
    """What to write in place of an option that a verb, or a group, lacks: another, a setting, or advice; else empty."""
    word = option.lstrip("-").lower()
    for argument in (each for each in command.params if each.param_type_name == "argument"):
        if names_of_meaning(word, [argument.name.removesuffix("s")]):
            name = argument.metavar or argument.name.upper()
            return f"{name} stands without an option: heed {command.name} {name}"
    ours = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
    if command.name in READERS and word in (*INPUT, *OUTPUT):
        return f"text comes from standard input: heed {command.name} MODEL < IN > OUT"
    if by_meaning := names_of_meaning(word, [name[2:].replace("-", "_") for name in ours]):
        return did_you_mean(f"--{name.replace('_', '-')}" for name in by_meaning)
    if "--set" in ours:
        from heed.config import known_names
        from heed.runs.recipe import Recipe

        settings = ["preset", *(name for name in known_names(Recipe) if "." in name)]
        if meant := names_meant(option, settings, cutoff=0.9):
            return did_you_mean(f"--set {name}=…" for name in meant)
    return advice(word) or did_you_mean(names_meant(f"--{word}", ours, cutoff=0.7))


def complete_recipe(incomplete: str) -> list[str]:
    """Recipes that come with Heed; without one, the shell completes files."""
    from heed.runs.recipes import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """NAME= of each setting of a recipe."""
    from heed.config import known_names
    from heed.runs.recipe import Recipe

    return [f"{name}=" for name in known_names(Recipe) if "." in name and name.startswith(incomplete)]


def complete_corpus(incomplete: str) -> list[str]:
    """Corpora that have a name."""
    from heed.data.corpora.catalogue import catalogue

    return [corpus.name for corpus in catalogue() if corpus.name.startswith(incomplete)]


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Completes one of these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]
