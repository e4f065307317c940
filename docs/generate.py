"""Writes the pages of docs/ that come from the code: settings, commands, Python, the paper in code.

python docs/generate.py            # or make docs
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

import heed
from heed.apps.commands import app
from heed.config import Settings
from heed.runs.recipe import Recipe

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference"
MAX_WIDTH = 100  # characters of a signature on one line
VALUE_NAMES = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
Function = ast.FunctionDef | ast.AsyncFunctionDef

SETTINGS_HEAD = """# Settings

A recipe is a TOML file. It names a preset (`preset = "tiny"`; the default is `base`) and, in the tables below, the
settings that differ from it. `--set table.name=value` overrides one setting on the command line. File names in a recipe
are relative to the recipe; file names in `--set` are relative to the current folder. Heed refuses unknown names, wrong
types and values out of range before any work starts.

Without a preset's changes, the defaults are those of the paper's base model. "Section", "equation" and "Table" refer to
[the paper](https://arxiv.org/abs/1706.03762). [Train on your own text](../guides/train.md) shows recipes in use.
"""
COMMANDS_HEAD = """# Commands

Every command prints its results on standard output and its messages on standard error. Exit status: 0 on success, 1
for a mistake that you can correct (one line says what was found, where, and how to fix it), 2 for wrong options, 70 for
a bug in Heed, 129, 130 and 143 after SIGHUP, SIGINT and SIGTERM. `-h` or `--help` after any command prints its part of
this page.
"""
PYTHON_HEAD = """# Python

`import heed` makes the names on this page available; each is loaded on first use. What is not on this page may change
without notice. [Use Heed from Python](../guides/python.md) shows them at work.
"""
# Where a public name is explained, by the room that it lives in; the first that fits.
PYTHON_SECTIONS = {
    "heed.api": "Train and load",
    "heed.runs": "Train and load",
    "heed.training.callbacks": "Train and load",
    "heed.decoding": "Translate",
    "heed.parsing": "Parse",
    "heed.evaluation": "Evaluate",
    "heed.runs.tasks": "Evaluate",
    "heed.pipeline": "Evaluate",
    "heed.text": "Tokenize",
    "heed.data": "Tokenize",
    "heed.model": "The network",
    "heed.runs.recipe": "Recipes and settings",
    "heed.training": "Recipes and settings",
    "heed.errors": "Errors",
    "heed": "The process",
}
PAPER_HEAD = """# The paper in code

Each section and equation of [the paper](https://arxiv.org/abs/1706.03762) beside the lines of Heed that implement it,
taken from the source by `make docs`. [The model](model.md) tells what Heed does where the paper is silent.
"""
# Section, what it says, and where that is: module and name.
PAPER: list[tuple[str, str, list[tuple[str, str]]]] = [
    (
        "Section 3.1: encoder and decoder stacks",
        "Six layers each; a layer's sub-layers are added to their input and normalised: LayerNorm(x + Sublayer(x)).",
        [(f"heed.model.transformer.{name}", "forward") for name in ("AddNorm", "EncoderLayer", "DecoderLayer")],
    ),
    (
        "Section 3.2.1, equation 1: scaled dot-product attention",
        "Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V",
        [("heed.model.attention", "attention_probabilities"), ("heed.model.attention", "attention")],
    ),
    (
        "Section 3.2.2: multi-head attention",
        "MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O, where head_i = Attention(Q W_Q, K W_K, V W_V)",
        [
            ("heed.model.transformer", "_split_heads"),
            ("heed.model.transformer", "_merge_heads"),
            ("heed.model.transformer", "SelfAttention"),
        ],
    ),
    (
        "Section 3.2.3: attention to the encoder, and the mask",
        "Queries come from the decoder, keys and values from the encoder. A position attends to none after it.",
        [("heed.model.transformer.CrossAttention", "forward"), ("heed.model.attention", "causal_mask")],
    ),
    (
        "Section 3.3, equation 2: feed-forward networks",
        "FFN(x) = max(0, x W_1 + b_1) W_2 + b_2",
        [("heed.model.transformer", "FeedForward")],
    ),
    (
        "Section 3.4: embeddings and softmax",
        "Both embeddings and the last linear map share one matrix; embeddings are multiplied by √d_model.",
        [("heed.model.transformer.Transformer", "__init__"), ("heed.model.transformer.Transformer", "_embed")],
    ),
    (
        "Section 3.5: positional encoding",
        "PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))",
        [("heed.model.transformer", "sinusoid")],
    ),
    (
        "Section 4: restricted self-attention",
        "Attention to a neighbourhood of r positions costs O(r · n · d) instead of O(n² · d).",
        [("heed.model.attention", "restricted_attention")],
    ),
    (
        "Section 5.3, equation 3: optimizer",
        "Adam; lrate = d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5)",
        [("heed.training.schedule", "learning_rate"), ("heed.training.optimizer.Adam", "step")],
    ),
    (
        "Section 5.4: dropout and label smoothing",
        "Dropout on each sub-layer's output, before it is added, and on the sums of embeddings and positions (above); "
        "label smoothing of ε = 0.1.",
        [
            ("heed.model.attention.Dropout", "forward"),
            ("heed.training.loss", "smoothed_loss_"),
        ],
    ),
    (
        "Section 6.1: length penalty and averages",
        "Beam search with ((5 + length) / 6)^α, α = 0.6 (Wu et al. 2016); weights averaged over the last checkpoints.",
        [("heed.decoding.scoring", "length_penalties"), ("heed.training.checkpoint", "average_weights")],
    ),
]


def settings_page() -> str:
    """Every table of a recipe: its settings with defaults, values and meaning."""
    parts = [SETTINGS_HEAD]
    for table, field in Recipe.model_fields.items():
        kind = _settings_class(field)
        parts.append(f"## [{table}]\n\n{_docstring(kind)}\n\n{_settings_table(kind)}")
        for name, inner in kind.model_fields.items():  # lists of tables
            (of_list,) = get_args(inner.annotation) if get_origin(inner.annotation) is list else (None,)
            if isinstance(of_list, type) and issubclass(of_list, Settings):
                parts.append(f"## [[{table}.{name}]]\n\n{_docstring(of_list)}\n\n{_settings_table(of_list)}")
    return "\n".join(parts)


def commands_page() -> str:
    """Every command: its usage, arguments, options and an example."""
    parts = [COMMANDS_HEAD]
    root = typer.main.get_command(app)
    parts.append(f"## heed\n\n{root.help}\n\n{_parameters(root)}".rstrip() + "\n")
    parts += [_command_section(name, command) for name, command in _leaves(root, "heed")]
    return "\n".join(parts)


def python_page() -> str:
    """Every public name: its signature, fields, methods and docstrings."""
    sections: dict[str, list[str]] = {title: [] for title in PYTHON_SECTIONS.values()}
    for name in sorted(heed.__all__, key=str.lower):
        value = getattr(heed, name)
        if name != "__version__":
            module = value.__module__
            title = next(t for room, t in PYTHON_SECTIONS.items() if module == room or module.startswith(f"{room}."))
            sections[title].append(_public_name(name, value))
    return "\n".join(
        [PYTHON_HEAD, *(f"## {title}\n\n" + "\n".join(entries) for title, entries in sections.items() if entries)]
    )


def paper_page() -> str:
    """Each section and equation of the paper with the source of what implements it."""
    parts = [PAPER_HEAD]
    for title, text, places in PAPER:
        parts.append(f"## {title}\n\n{text}\n")
        for owner, name in places:
            value = getattr(_resolved(owner), name)
            file = Path(inspect.getsourcefile(inspect.unwrap(value)) or "").relative_to(DOCS.parent)
            shown = f"{owner.rpartition('.')[2]}.{name}" if owner.rpartition(".")[2][0].isupper() else name
            source = inspect.cleandoc("\n" + inspect.getsource(inspect.unwrap(value)))
            parts.append(f"`{shown}` in `{file}`:\n\n{_code(source)}\n")
    return "\n".join(parts)


def _resolved(name: str) -> Any:
    """A module, or a class in one."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last) if last[0].isupper() else import_module(name)


PAGES: dict[str, Callable[[], str]] = {
    "../explain/paper-in-code.md": paper_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "python.md": python_page,
}


# Settings


def _settings_class(field: FieldInfo) -> type[Settings]:
    kind = next((part for part in get_args(field.annotation) if part is not NoneType), field.annotation)
    assert isinstance(kind, type) and issubclass(kind, Settings)
    return kind


def _settings_table(kind: type[Settings]) -> str:
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        cells = (f"`{name}`", _default(field), _values(field), _cell(field.description or ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    """As a recipe would say it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _values(field: FieldInfo) -> str:
    """The type and range of a setting."""
    kind = field.annotation
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return ", ".join(_type(part, field) for part in choices if part is not NoneType)


def _type(kind: Any, field: FieldInfo) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(kind))
    metadata = [*field.metadata]
    if get_origin(kind) is Annotated:
        kind, *within = get_args(kind)
        metadata += [bound for part in within for bound in getattr(part, "metadata", [part])]
    bounds = {name: getattr(part, name) for part in metadata for name in ("ge", "gt", "le", "lt") if _has(part, name)}
    names: dict[Any, str] = {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}
    if get_origin(kind) is list:
        (of_list,) = get_args(kind)
        of_list = get_args(of_list)[0] if get_origin(of_list) is Annotated else of_list
        text = f"list of {names[of_list]}s" if of_list in names else "list of tables"
    else:
        text = names.get(kind) or "table of names"
    symbols = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{symbols[name]} {value:,}" for name, value in bounds.items()]
    return f"{text} {', '.join(limits)}" if limits else text


def _has(part: Any, name: str) -> bool:
    return getattr(part, name, None) is not None


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# Commands


def _leaves(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group with their full names, in the order of the help."""
    for name, command in group.commands.items():
        full = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _leaves(command, full)
        elif not command.hidden:
            yield full, command


def _command_section(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]", *map(_metavar, arguments)])
    parts = [f"## {name}", " ".join((command.help or "").split()), f"```text\n{usage}\n```", _parameters(command)]
    if command.epilog:
        parts.append(f"Example:\n\n```sh\n{command.epilog.removeprefix('Example: ')}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown, default = f"`{_metavar(parameter)}`", ""
        else:
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            shown = names if parameter.is_flag else f"{names} `{_value_name(command, parameter)}`"
            default = _shown(parameter)
        meaning = _cell(parameter.help or "")
        rows.append(f"| {shown} | {meaning}{default} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return (name if argument.required else f"[{name}]") + "..." * (argument.nargs != 1)


def _value_name(command: Any, option: Any) -> str:
    """What stands for an option's value: from the function's annotation, as typer's own objects differ by version."""
    kind = inspect.signature(command.callback).parameters[option.name].annotation
    kinds = set(_types(kind))
    return option.metavar or next((name for known, name in VALUE_NAMES.items() if known in kinds), "TEXT")


def _types(annotation: Any) -> Iterator[Any]:
    """The annotation and what it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def _shown(option: Any) -> str:
    if option.required:
        return " Required."
    nothing_to_say = option.default in (None, False, "", ()) or "default" in (option.help or "").lower()
    return "" if nothing_to_say else f" Default: `{option.default}`."


# Python


def _public_name(name: str, value: Any) -> str:
    node = _definition(value.__module__, value.__name__)
    parts = [f"### heed.{name}"]
    if isinstance(node, ast.ClassDef):
        parts += _class_parts(name, value, node)
    else:
        parts += [_code(_signature(f"heed.{name}", node, value.__module__)), _prose(value, node)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _class_parts(name: str, value: type, node: ast.ClassDef) -> Iterator[str]:
    methods = {child.name: child for child in node.body if isinstance(child, Function)}
    if issubclass(value, Settings):
        yield _docstring(value)
        tables = {_settings_class(field): table for table, field in Recipe.model_fields.items()}
        if value is Recipe:
            yield "Its fields are the tables of a recipe: [Settings](settings.md)."
        elif value in tables:
            yield f"Its fields are the settings of [[{tables[value]}]](settings.md#{tables[value]})."
        else:
            yield _settings_table(value).rstrip()
    elif is_dataclass(value):
        yield _code("\n".join([f"class heed.{name}:", *_fields(value, node)]))
        yield _docstring(value)
    else:
        constructor = methods.get("__init__")
        if constructor is not None:
            yield _code(_signature(f"heed.{name}", constructor, value.__module__))
        yield _docstring(value)
        if constructor is not None and ast.get_docstring(constructor):
            yield _prose(value.__init__, constructor)
    # Methods of a base that is no public name are its own for who reads this.
    bases = [base for base in value.__mro__[1:] if base.__module__.startswith("heed.decoding.")]
    inherited = {
        child.name: (base.__module__, child)
        for base in reversed(bases)
        for child in _definition(base.__module__, base.__name__).body
        if isinstance(child, Function)
    }
    own = {name: (value.__module__, child) for name, child in methods.items()}
    for method, (module, child) in (own | {name: one for name, one in inherited.items() if name not in own}).items():
        if not method.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in child.decorator_list}
            shown = f"heed.{name}.{method}" if "classmethod" in decorators else method
            is_value = decorators & {"property", "cached_property"}
            text = f"{method}: {_written(child.returns, module) if child.returns else 'Any'}" if is_value else ""
            yield f"#### {name}.{method}"
            yield _code(text or _signature(shown, child, module))
            yield _prose(inspect.getattr_static(value, method), child)


def _fields(value: type, node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass as its source has them, comments included, types' names without quotes."""
    lines = _source(value.__module__).splitlines()
    return [_unquoted(lines[child.lineno - 1]) for child in node.body if isinstance(child, ast.AnnAssign)]


def _signature(name: str, node: Function, module: str) -> str:
    """A function's parameters and result as its source has them; one parameter a line if they are many."""
    parameters = [piece for piece in _parameters_of(node.args, module) if piece not in ("self", "cls")]
    result = f" -> {_written(node.returns, module)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= MAX_WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {piece}," for piece in parameters), f"){result}"])


def _parameters_of(arguments: ast.arguments, module: str) -> Iterator[str]:
    def written(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        kind = f": {_written(argument.annotation, module)}" if argument.annotation else ""
        equals = " = " if kind else "="
        return f"{stars}{argument.arg}{kind}" + (f"{equals}{_written(default, module)}" if default else "")

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    yield from map(written, positional, defaults)
    if arguments.vararg:
        yield written(arguments.vararg, None, "*")
    elif arguments.kwonlyargs:
        yield "*"
    yield from map(written, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", _written(arguments.kwarg.annotation, module))
        assert unpacked, "keywords are those of a TypedDict"
        home = getattr(import_module(module), unpacked[1]).__module__
        fields = [child for child in _definition(home, unpacked[1]).body if isinstance(child, ast.AnnAssign)]
        yield from (f"{ast.unparse(field.target)}: {_written(field.annotation, home)} = None" for field in fields)


def _written(node: ast.expr, module: str) -> str:
    """An expression as its source has it, types' names without quotes."""
    return _unquoted(" ".join(str(ast.get_source_segment(_source(module), node)).split()))


def _unquoted(text: str) -> str:
    return re.sub(r'"([A-Z]\w*|(?:type|Callable)\[[^"]*)"', r"\1", text)


def _prose(value: Any, node: Function) -> str:
    """A function's docstring, its parameters as a list."""
    names = {argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    lines: list[str] = []
    for line in (ast.get_docstring(node) or "").splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name.strip("`") in names:
            line = f"- `{name.strip('`')}`: {rest}"
            if lines and lines[-1] and not re.match(r"- |  ", lines[-1]):
                lines.append("")
        elif lines and re.match(r"- |  ", lines[-1]) and line.strip() and not line.startswith("- "):
            line = f"  {line.strip()}"
        lines.append(line)
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _docstring(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "")


def _definition(module: str, name: str) -> Any:
    """The class or function of this name in a module's source."""
    tree = ast.parse(_source(module))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return next(node for node in tree.body if isinstance(node, kinds) and node.name == name)


@cache
def _source(module: str) -> str:
    return inspect.getsource(__import__(module, fromlist=["_"]))


if __name__ == "__main__":
    for page, text in PAGES.items():
        (REFERENCE / page).write_text(text(), encoding="utf-8")
