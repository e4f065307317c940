"""Translation: parallel text in, BLEU, chrF and perplexity out."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from heed.data.corpora.download import Corpora, NotHere, Report, fetch
from heed.data.mix import Mix
from heed.data.preparation.job import SHARDS
from heed.data.preparation.plan import read_plan
from heed.data.preparation.tags import language_tag, tagged_languages
from heed.data.preparation.vocabulary import TOKENIZER
from heed.data.reading.columns import holds_both_sides
from heed.data.reading.files import refuse_both_sides, training_files
from heed.data.reading.pairs import FilePair, TrainingText, count_pairs, read_sides
from heed.data.reading.text_files import TextFiles, TextPart
from heed.decoding.direction import Direction
from heed.decoding.loading import load_models, no_report, ready_models
from heed.decoding.source_queue import longest_source
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.evaluation.bleu import bleu, chrf
from heed.evaluation.tokenization import Tokenization, choose_tokenization
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, read_config
from heed.model_folder.card import EXAMPLES
from heed.runs.recipe import EvaluationSettings, Recipe
from heed.runs.tasks.evaluation import LONGEST_PAIR, Evaluation, evaluate_translations
from heed.runs.tasks.shell_commands import command, with_input
from heed.text.tokenizer_kinds import AnyTokenizer
from heed.training.checkpoint import state_names
from heed.training.distributed import ALONE, Workers

MAX_EXAMPLE = 100  # characters of a source that a card shows
HELD_OUT = "held out"  # on the card


class TranslationTask:
    """Learns from a named corpus or from one's own files; validates by BLEU, or also by chrF."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self._reported: set[str] = set()  # lines that are said once
        self._languages: dict[str, tuple[str, str]] = {}  # of evaluation sets that are not in the own text's

    @property
    def ranked_by(self) -> str:
        """BLEU, unless training.best_by asks for chrF."""
        return "chrf" if self.recipe.training.best_by == "chrf" else "bleu"

    def text_files(self, run: Path, corpora: Corpora) -> TextFiles:
        """The recipe's own files, or those of its corpus, downloaded if they are not there.

        With teachers, their translations in the run folder come last.
        """
        files = self.given_files(run, corpora)
        return replace(files, train=(*files.train, *self.taught_pairs(files, run).values()))

    def given_files(self, run: Path, corpora: Corpora) -> TextFiles:
        """Returns the recipe's files without its teachers' translations."""
        files = self._text_files(corpora, fetching=True)
        if files.dev_split is None:
            return files
        return self._as_begun(replace(files, dev=_split_off(run / "data")), run)

    def _as_begun(self, files: TextFiles, run: Path) -> TextFiles:
        """The files with the rule of dev by which the run was begun.

        Runs of earlier versions split dev off the first file if they were prepared whole, and left out of the text
        itself dev's pairs alone.
        """
        assert files.dev_split is not None
        plan = read_plan(run / "data" / SHARDS)
        names = state_names(run / "checkpoints")
        if plan is not None:
            either_side, in_shards = plan.settings.either_side or not (run / "data" / TOKENIZER).exists(), True
        elif (run / "data" / TOKENIZER).exists():
            either_side, in_shards = False, False
        else:  # RUN/data may have been deleted
            trained_on = read_config(run / "checkpoints" / names[-1]).card.trained_on if names else {HELD_OUT: ""}
            either_side = HELD_OUT in trained_on
            in_shards = self.recipe.data.shard_pairs is not None or any(map(holds_both_sides, files.train[0]))
        split = replace(files.dev_split, either_side=either_side)
        return replace(files, dev_split=split, n_given=files.n_given if either_side or in_shards else 1)

    def taught_pairs(self, files: TextFiles, run: Path) -> dict[Path, FilePair]:
        """Returns, by file of sources, these and their teachers' translations; nothing without teachers."""
        if not self.recipe.training.n_teachers:
            return {}
        folder, pairs = run / "teachers", dict[Path, FilePair]()
        for number, src in enumerate(dict.fromkeys(src for src, _ in files.train), start=1):
            sources = folder / f"sources-{number}" if holds_both_sides(src) else src
            pairs[src] = sources, folder / f"translations-{number}"
        return pairs

    def count_pairs(self, corpora: Corpora) -> int | None:
        """Number of training pairs, the teachers' translations among them; None if the corpus is not downloaded yet.

        Reads all text and changes nothing.
        """
        try:
            files = self._text_files(corpora, fetching=False)
        except NotHere as missing:
            data = self.recipe.data
            options = ["--src", data.src, "--tgt", data.tgt, "--variant", data.variant, *corpora.options()]
            command = shlex.join(["heed", "data", "get", str(data.corpus), *options])
            corpora.report(f"{missing} The run will do that (or {command}).")
            return None
        text = TrainingText(files.train, self.recipe.data.column_names)
        counts = text.rows
        n_dev = 0
        if files.dev_split is not None:
            given = partial(text.pairs, files.n_given)
            n_dev = sum(1 for _ in files.dev_split.pairs(given, name=files.name_of_given))
            corpora.report(f"{n_dev:,} of the training pairs will be split off for dev.")
        if mix := self.recipe.data.mixture:
            rest = iter(counts)
            sizes = [sum(islice(rest, part.n_files)) for part in files.parts]
            sizes[0] -= n_dev
            for part, size in zip(mix.parts, sizes, strict=True):
                corpora.report(f"Part {part.name} of the mix: {size:,} pairs.")
            for line in mix.lines(sizes):
                corpora.report(f"Mix: {line}.")
        n_sources = {src: n for (src, _), n in zip(files.train, counts, strict=True)}
        n_translations = sum(n_sources.values()) if self.recipe.training.n_teachers else 0
        for pair in files.pairs[len(files.train) :]:
            count_pairs(pair, self.recipe.data.column_names)
        corpora.report(f"{sum(counts) - n_dev:,} training pairs; both sides of every file have as many lines.")
        if n_translations:
            corpora.report(f"{n_translations:,} translations by the teachers will be added.")
        return sum(counts) - n_dev + n_translations

    def _text_files(self, corpora: Corpora, *, fetching: bool) -> TextFiles:
        data = self.recipe.data
        added = [_file_pair(data.added, "data.added")] if data.added else []
        for file in chain(*added, *chain(*self._files_of_parts(corpora).values())):  # before a corpus is downloaded
            if not file.is_file():
                raise HeedError(f"{file}: no such file.")
        if data.corpus is not None:
            files = fetch(
                data.corpus, src=data.src, tgt=data.tgt, variant=data.variant, corpora=corpora, fetching=fetching
            )
        else:
            assert data.train is not None and data.dev is not None  # Recipe checks it
            tests = {name: _file_pair(names, f"data.tests.{name}") for name, names in data.tests.items()}
            dev = _file_pair(data.dev, "data.dev") if isinstance(data.dev, list) else _split_off(Path())
            train = training_files(
                data.train, src=data.src, tgt=data.tgt, report=partial(self._say_once, corpora.report)
            )
            files = TextFiles(train=train, dev=dev, tests=tests, dev_split=data.dev_split)
        files = replace(files, n_given=len(files.train))
        files = replace(files, train=(*files.train, *added))
        return files if data.mixture is None else self._with_parts(files, data.mixture, corpora, fetching=fetching)

    def _say_once(self, report: Report, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            report(line)

    def _files_of_parts(self, corpora: Corpora) -> dict[str, Sequence[FilePair]]:
        """The files of the parts of a mix that name some."""
        data, report = self.recipe.data, partial(self._say_once, corpora.report)
        return {
            part.name: training_files(part.train, src=src, tgt=tgt, setting="data.mix", report=report)
            for part in data.mix
            if part.train is not None
            for src, tgt in (data.languages_of(part) or (data.src, data.tgt),)
        }

    def _with_parts(self, files: TextFiles, mix: Mix, corpora: Corpora, *, fetching: bool) -> TextFiles:
        """The files with those of the mix's other parts behind them."""
        data, tests = self.recipe.data, dict(files.tests)
        train, parts, of_parts = list(files.train), [], self._files_of_parts(corpora)
        for part in mix.parts:
            pairs: Sequence[FilePair] = files.train
            if part.train is not None:
                pairs = of_parts[part.name]
            elif part.corpus is not None:
                src, tgt = data.languages_of(part) or (data.src, data.tgt)
                of_corpus = fetch(
                    part.corpus, src=src, tgt=tgt, variant=part.variant, corpora=corpora, fetching=fetching
                )
                pairs = of_corpus.train
                if part.has_languages:
                    named = of_corpus.evaluation_sets.items()
                    tests |= {f"{name} {src}-{tgt}": pair for name, pair in named}
            languages = data.languages_of(part)
            if languages is not None:
                if any(holds_both_sides(src) for src, _ in pairs):
                    raise HeedError(f"{part.name} of data.mix: a mix of languages needs two files of each part.")
                names = {f"{name} {'-'.join(languages)}": files for name, files in part.tests.items()}
                tests |= {name: _file_pair(files, f"data.mix: {name}") for name, files in names.items()}
                self._languages |= {name: languages for name in tests if name.endswith(f" {'-'.join(languages)}")}
            train += [] if part.is_own_text else pairs
            tag = part.tag if languages is None else language_tag(languages[1])
            parts.append(TextPart(len(pairs), tag, languages))
        return replace(files, train=tuple(train), parts=tuple(parts), tests=tests)

    def card(self, files: TextFiles) -> ModelCard:
        """Languages, search settings, name of the corpus, three sources of dev."""
        sources, _ = read_sides(files.dev, self.recipe.data.column_names)
        data, n_teachers = self.recipe.data, self.recipe.training.n_teachers
        return ModelCard(
            data.src,
            data.tgt,
            decoding=self.recipe.decoding.model_dump(),
            trained_on={"corpus": data.corpus_name, EXAMPLES: _examples(sources), LONGEST_PAIR: data.max_tokens}
            | ({HELD_OUT: "pairs that share a side with dev"} if files.holds_out_sides else {})
            | ({"teachers": f"{n_teachers}, whose cost is not included here"} if n_teachers else {}),
        )

    def validator(
        self, files: TextFiles, tokenizer: AnyTokenizer, report: Report = no_report, *, workers: Workers = ALONE
    ) -> Callable[[Transformer], dict[str, float]]:
        """BLEU of greedy translations of dev; their chrF too if training.best_by asks for it."""
        sources, references = read_sides(files.dev, self.recipe.data.column_names)
        tokenize = self._tokenization(references, report)
        greedy = self.recipe.decoding.model_copy(update={"beam_size": 1})
        card = self.card(files)
        if files.directions:
            card = replace(card, languages=tagged_languages(tokenizer, files.directions))
        direction = Direction.of(card, tokenizer) if card.languages else None
        longest_source(self.recipe.model, greedy)  # settings that leave no room for a target show before training

        def validate(model: Transformer) -> dict[str, float]:
            translator = Translator(model, tokenizer, greedy, direction=direction)

            def translate(some: list[str]) -> list[str]:
                return [translation.text for translation in translator.translate(some)]

            texts = workers.map(translate, sources)
            if not workers.first:
                return {}
            scores = {"bleu": bleu(texts, references, tokenize=tokenize).value}
            if self.recipe.training.best_by == "chrf":
                scores["chrf"] = chrf(texts, references).value
            return scores

        return validate

    def evaluate(
        self, model_folder: Path, sets: Mapping[str, FilePair], *, title: str, report: Report
    ) -> Iterator[Evaluation]:
        """BLEU, chrF and perplexity on each set in turn."""
        loaded = load_models([model_folder])
        models, precision = ready_models(loaded, "auto", device=None, report=no_report)  # it is named below
        tokenizer = loaded[0].tokenizer
        direction = Direction.of(loaded[0].card, tokenizer) if loaded[0].card.languages else None
        own = Translator(
            models, tokenizer, self.recipe.decoding, precision=precision, report=report, direction=direction
        )
        scores: dict[str, list[float]] = {}
        for name, pair in sets.items():
            report(f"Translating {name} with the {title} in {own.precision}.")
            sources, references = read_sides(pair, self.recipe.data.column_names)
            translator = own.between(*self._languages[name]) if name in self._languages else own
            tokenize = self._tokenization(references, report, language=translator.languages[1])
            max_tokens = self.recipe.data.max_tokens
            evaluation = evaluate_translations(
                translator, sources, references, name=name, tokenize=tokenize, max_tokens=max_tokens
            )
            scores.setdefault(name.partition(" ")[0], []).append(evaluation.scores["bleu"].value)
            yield evaluation
        for name, of_pairs in scores.items():
            if self._languages and len(of_pairs) > 1:
                report(f"{name}: BLEU {sum(of_pairs) / len(of_pairs):.2f}, the mean of {len(of_pairs)} pairs.")

    def _tokenization(self, references: list[str], report: Report, *, language: str = "") -> Tokenization:
        """BLEU's for a target language, by default the recipe's. Whatever there is to say of it is reported once."""
        target, choice = language or self.recipe.data.tgt, self.recipe.evaluation.tokenize
        return choose_tokenization(choice, references, language=target, report=partial(self._say_once, report))

    def next_commands(self, model_folder: Path, files: TextFiles) -> list[str]:
        """To translate a sentence, to score the translations of a set, to serve the model."""
        src, ref = next(iter(files.tests.values()), files.dev)
        tokenize = self.recipe.evaluation.tokenize
        options = [] if tokenize == EvaluationSettings().tokenize else ["--tokenize", tokenize]
        return [
            with_input(src, "heed", "translate", model_folder),
            command("heed", "evaluate", model_folder, "--src", src, "--ref", ref, *options),
            command("heed", "serve", model_folder),
        ]


def _examples(sources: Sequence[str]) -> list[str]:
    """Three of them, from short to middling, that show a reader what the text is like."""
    known = sorted(
        {line.strip() for line in sources if 0 < len(line.strip()) <= MAX_EXAMPLE}, key=lambda x: (len(x), x)
    )
    return list(dict.fromkeys(known[len(known) * tenths // 10] for tenths in (1, 3, 5))) if known else []


def _split_off(folder: Path) -> FilePair:
    """The files of a dev set that `prepare` splits off the training text. Languages may not be names of files."""
    return folder / "dev.src", folder / "dev.tgt"


def _file_pair(files: list[str], setting: str) -> FilePair:
    """HeedError if they are neither two files of text nor one that holds both sides."""
    pair = Path(files[0]), Path(files[-1])
    refuse_both_sides(pair, setting)
    return pair
