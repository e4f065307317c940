"""The recipe of two text files: what `heed train --src a.en --tgt a.de` writes and runs."""

import os
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from heed.config import shown, toml_text
from heed.data.reading.pairs import count_pairs
from heed.errors import HeedError
from heed.text.printable import check_language

BASE_PAIRS = 200_000  # from here on the preset base; docs/guides/few-pairs.md
MAX_DEV, DEV_PART = 500, 10  # dev pairs: one in DEV_PART, MAX_DEV at most
CHECKPOINT_PAIRS = 10_000  # that a small corpus trains on between two checkpoints, in whole epochs
COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".lzma"}
# A language in a file's name: en, deu, zh-Hans, pt_BR, eng_Latn.
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
NO_LANGUAGES = {"txt", "src", "tgt", "trg", "ref", "hyp", "raw", "tok", "bpe", "csv", "tsv", "log", "out", "old", "new"}


@dataclass(frozen=True)
class OwnRecipe:
    """A recipe that is not written yet."""

    name: str
    text: str  # TOML

    @property
    def path(self) -> Path:
        """Where it is written: in the current folder."""
        return Path(f"{self.name}.toml")

    def is_written(self) -> bool:
        """Whether it is there already, unchanged. HeedError if another file is in the way, which is never replaced."""
        if not os.path.lexists(self.path):
            return False
        try:
            unchanged = self.path.read_bytes() == self.text.encode()
        except OSError:
            unchanged = False
        if not unchanged:
            raise HeedError(
                f"./{self.path} exists already and is another recipe; to train, or resume, that one: heed train "
                f"./{self.path}. Move it away to have it written anew."
            )
        return True

    def write(self) -> None:
        """HeedError if it cannot be written."""
        try:
            with self.path.open("x", encoding="utf-8") as file:
                file.write(self.text)
        except OSError as error:
            raise HeedError(f"./{self.path}: cannot be written ({error.strerror}).") from None


def own_recipe(
    src_file: Path,
    tgt_file: Path,
    *,
    src: str | None = None,
    tgt: str | None = None,
    start_from: tuple[str, float] | None = None,
) -> OwnRecipe:
    """A recipe that trains on these files, which are read to the end, and splits dev off them.

    src, tgt: languages; by default the suffixes of the files. start_from: a model to fine-tune, and the rate for it.
    HeedError if a language is missing, if the files cannot be read, or if they do not have the same number of lines.
    """
    if os.path.exists(src_file) and os.path.exists(tgt_file) and os.path.samefile(src_file, tgt_file):
        raise HeedError(f"--src {src_file} and --tgt {tgt_file} are the same file; name the text and its translation.")
    given = src, tgt
    src, tgt = _language(src_file, src, "--from"), _language(tgt_file, tgt, "--to")
    if src == tgt and given == (None, None):
        raise HeedError(f"{src_file} and {tgt_file} are both in {src}; if so, say it: --from {src} --to {tgt}.")
    if src != tgt and (language_of(src_file), language_of(tgt_file)) == (tgt, src):
        raise HeedError(f"{src_file} is in {tgt} by its name, and {tgt_file} in {src}: exchange --src and --tgt.")
    for file in (src_file, tgt_file):
        if os.fsencode(file).decode(errors="replace") != str(file) or not str(file).isprintable():
            raise HeedError(f"{shown(str(file))}: this name is not printable UTF-8; rename the file.")
    n_pairs = count_pairs((src_file, tgt_file))
    name = _name(src_file, tgt_file, src, tgt)
    n_epochs = max(1, round(CHECKPOINT_PAIRS / max(1, n_pairs)))
    preset, max_steps, checkpoint_every, n_kept = (
        ("tiny", "20_000", f"{n_epochs} epochs", 20) if n_pairs < BASE_PAIRS else ("base", "100_000", "10 minutes", 5)
    )
    start = ""
    if start_from is not None:
        folder, rate = start_from
        start = f"""\
start_from = {_quote(folder)}
schedule = "constant"  # after a short warm-up
learning_rate = {rate:.1e}  # for fine-tuning; that of training from nothing would undo what the model has learned
warmup_steps = 100
"""
    n_dev = min(MAX_DEV, max(1, n_pairs // DEV_PART))
    text = f"""\
# Written by heed train --src … --tgt …; yours to change. To train it, or to resume: heed train ./{name}.toml
preset = "{preset}"  # for {n_pairs:,} pairs; {BASE_PAIRS:,} or more: base

[data]
src = {_quote(src)}
tgt = {_quote(tgt)}
# One sentence per line; line N of one file is the translation of line N of the other. Relative to this file.
train = [{_quote(str(src_file))}, {_quote(str(tgt_file))}]
# This many pairs are split off to choose the best model by, and not trained on. Or two files: ["dev.x", "dev.y"]
dev = {n_dev}
# tests.NAME = ["test.x", "test.y"]  # text to report scores on: any number of test sets

[training]
{start}max_steps = {max_steps}  # the longest that it trains
checkpoint_every = "{checkpoint_every}"  # and a validation
keep_checkpoints = {n_kept}
patience = 10  # it ends earlier after this many validations without a lower dev loss
average_last = "best"  # the average of checkpoints that scores best on dev
"""
    return OwnRecipe(name, text)


def _language(file: Path, given: str | None, option: str) -> str:
    if given is not None:
        try:
            if LANGUAGE.fullmatch(given):
                return check_language(given)
            raise ValueError("not the code of a language")
        except ValueError as error:
            raise HeedError(f"{option} {shown(given)}: {error}; give a code such as en.") from None
    language = language_of(file)
    if language is None:
        raise HeedError(f"{file}: the name does not end in a language, as .en does; give its code: {option} en.")
    return language


def language_of(file: Path) -> str | None:
    """The language in which a file's name ends; None if it does not."""
    code = _without_compression(file).suffix.removeprefix(".")
    return code if LANGUAGE.fullmatch(code) and code.lower() not in NO_LANGUAGES else None


def _name(src_file: Path, tgt_file: Path, src: str, tgt: str) -> str:
    """The common part of the files' names, and the languages: corpus.en, corpus.de → corpus-en-de."""
    stems = [_without_compression(file).stem for file in (src_file, tgt_file)]
    prefix = "".join(one for one, _ in takewhile(lambda both: both[0] == both[1], zip(*stems, strict=False)))
    common = re.sub(r"^\W+|\W+$", "", prefix)
    has_languages = stems[0] == stems[1] and {src, tgt} <= set(re.split(r"\W+|_", common))  # Europarl.de-en.en
    name = common if has_languages else "-".join(filter(None, (common, src, tgt)))
    return re.sub(r"[^\w.+-]", "-", name)


def _without_compression(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in COMPRESSED else file


def _quote(text: str) -> str:
    """The text as a TOML string."""
    return toml_text({"_": text}).removeprefix("_ = ").rstrip("\n")
