"""Translation: parallel text in, BLEU, chrF and perplexity out."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from heed.data.lines import FilePair, count_pairs, read_sides
from heed.data.sources import DownloadProgress, NotHere, Report, fetch
from heed.data.text_files import TextFiles
from heed.decoding.loading import load_models
from heed.decoding.scoring import perplexity
from heed.decoding.stream import longest_source
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.evaluation.bleu import Tokenization, bleu, chrf
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard
from heed.recipe import Recipe
from heed.tasks.evaluation import Evaluation
from heed.text.loading import AnyTokenizer


class TranslationTask:
    """Learns from a named corpus or from one's own files; validates by BLEU."""

    ranked_by = "bleu"

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def text_files(
        self,
        run: Path,
        *,
        directory: Path,
        mirror: str | None,
        report: Report,
        progress: DownloadProgress | None = None,
    ) -> TextFiles:
        """The recipe's own files, or those of its corpus, downloaded into `directory` if they are not there.

        With teachers, their translations in the run folder come last.
        """
        files = self.given_files(run, directory=directory, mirror=mirror, report=report, progress=progress)
        return replace(files, train=(*files.train, *self.taught_pairs(files, run)))

    def given_files(
        self,
        run: Path,
        *,
        directory: Path,
        mirror: str | None,
        report: Report,
        progress: DownloadProgress | None = None,
    ) -> TextFiles:
        """As `text_files`, without the teachers' translations."""
        files = self._text_files(directory, mirror, report, progress, fetching=True)
        return replace(files, dev=_split_off(run / "data")) if files.dev_split else files

    def taught_pairs(self, files: TextFiles, run: Path) -> list[FilePair]:
        """Each source file to learn from, with the file of its teachers' translations; none without teachers."""
        if not self.recipe.training.n_teachers:
            return []
        sources = dict.fromkeys(src for src, _ in files.train)
        return [(src, run / "teachers" / f"translations-{number}") for number, src in enumerate(sources, start=1)]

    def count_pairs(self, *, directory: Path, mirror: str | None, report: Report) -> int | None:
        """Number of training pairs, the teachers' translations among them; None if the corpus is not downloaded yet.

        Reads all text and changes nothing.
        """
        try:
            files = self._text_files(directory, mirror, report, None, fetching=False)
        except NotHere as missing:
            data = self.recipe.data
            options = {"--src": data.src, "--tgt": data.tgt, "--variant": data.variant, "--dir": str(directory)}
            options |= {} if mirror is None else {"--mirror": mirror}
            command = shlex.join(["heed", "data", "get", str(data.corpus), *chain.from_iterable(options.items())])
            report(f"{missing} The run will do that (or {command}).")
            return None
        counts = [count_pairs(pair) for pair in files.train]
        n_dev = 0
        if files.dev_split is not None:
            n_dev = sum(1 for _ in files.dev_split.pairs(files.train[0]))
            report(f"{n_dev:,} of the training pairs will be split off for dev.")
        n_sources = {src: n for (src, _), n in zip(files.train, counts, strict=True)}
        n_translations = sum(n_sources.values()) if self.recipe.training.n_teachers else 0
        for pair in files.pairs[len(files.train) :]:
            count_pairs(pair)
        report(f"{sum(counts) - n_dev:,} training pairs; both sides of every file have as many lines.")
        if n_translations:
            report(f"{n_translations:,} translations by the teachers will be added.")
        return sum(counts) - n_dev + n_translations

    def _text_files(
        self, directory: Path, mirror: str | None, report: Report, progress: DownloadProgress | None, *, fetching: bool
    ) -> TextFiles:
        data = self.recipe.data
        for file in data.added or ():  # before a corpus is downloaded
            if not Path(file).is_file():
                raise HeedError(f"{file}: no such file.")
        if data.corpus is not None:
            files = fetch(
                data.corpus,
                src=data.src,
                tgt=data.tgt,
                variant=data.variant,
                directory=directory,
                mirror=mirror,
                report=report,
                progress=progress,
                fetching=fetching,
            )
        else:
            assert data.train is not None and data.dev is not None  # Recipe checks it
            tests = {name: _file_pair(names) for name, names in data.tests.items()}
            dev = _file_pair(data.dev) if isinstance(data.dev, list) else _split_off(Path())
            files = TextFiles(train=(_file_pair(data.train),), dev=dev, tests=tests, dev_split=data.dev_split)
        return replace(files, train=(*files.train, _file_pair(data.added))) if data.added else files

    def card(self, files: TextFiles) -> ModelCard:
        """Languages, search settings, name of the corpus."""
        data, n_teachers = self.recipe.data, self.recipe.training.n_teachers
        return ModelCard(
            data.src,
            data.tgt,
            decoding=self.recipe.decoding.model_dump(),
            trained_on={"corpus": data.corpus_name}
            | ({"teachers": f"{n_teachers}, whose cost is not included here"} if n_teachers else {}),
        )

    def validator(self, files: TextFiles, tokenizer: AnyTokenizer) -> Callable[[Transformer], tuple[str, float]]:
        """("bleu", of greedy translations of dev)."""
        sources, references = read_sides(files.dev)
        greedy = self.recipe.decoding.model_copy(update={"beam_size": 1})
        longest_source(self.recipe.model, greedy)  # settings that leave no room for a target show before training

        def validate(model: Transformer) -> tuple[str, float]:
            translator = Translator(model, tokenizer, greedy)
            texts = [translation.text for translation in translator.translate(sources)]
            return "bleu", bleu(texts, references, tokenize=self.recipe.evaluation.tokenize).value

        return validate

    def evaluate(
        self, model_folder: Path, sets: Mapping[str, FilePair], *, title: str, report: Report
    ) -> Iterator[Evaluation]:
        """BLEU, chrF and perplexity on each set in turn."""
        (loaded,) = load_models([model_folder], device=None)
        translator = Translator(loaded.model, loaded.tokenizer, self.recipe.decoding, copy=False)
        for name, pair in sets.items():
            report(f"Translating {name} with the {title} in {translator.precision}.")
            sources, references = read_sides(pair)
            tokenize = self.recipe.evaluation.tokenize
            yield evaluate_translations(translator, sources, references, name=name, tokenize=tokenize)


def evaluate_translations(
    translator: Translator,
    sources: list[str],
    references: list[str],
    *others: list[str],
    name: str,
    tokenize: Tokenization,
) -> Evaluation:
    """BLEU and chrF of the model's translations, and its perplexity per token of the references.

    others: further references, which count for BLEU and chrF.
    Perplexity leaves out references with a symbol that the vocabulary lacks, as preparation leaves them out of dev; if
    none is left, there is none.
    """
    found = zip(references, translator.log_probs(sources, references), strict=True)  # what it refuses shows at once
    started = time.perf_counter()
    texts = [translation.text for translation in translator.translate(sources)]
    seconds = time.perf_counter() - started
    has_symbols = bool(translator.tokenizer.symbols)
    log_probs = [values for line, values in found if not (has_symbols and line.strip() and len(values) == 1)]
    n_tokens = sum(map(len, log_probs))
    ppl = perplexity(-sum(map(sum, log_probs)) / n_tokens) if n_tokens else None
    scores = {"bleu": bleu(texts, references, *others, tokenize=tokenize), "chrf": chrf(texts, references, *others)}
    return Evaluation(name, len(sources), scores, ppl, translator.precision, seconds)


def _split_off(folder: Path) -> FilePair:
    """The files of a dev set that `prepare` splits off the training text. Languages may not be names of files."""
    return folder / "dev.src", folder / "dev.tgt"


def _file_pair(files: list[str]) -> FilePair:
    src, tgt = files
    return Path(src), Path(tgt)
