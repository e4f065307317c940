"""Constituency parsing (section 6.3): a treebank in, F1 of labelled brackets out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from heed.data.corpora.download import Corpora, Report
from heed.data.reading.pairs import FilePair
from heed.data.reading.text_files import TextFiles
from heed.decoding.loading import load_models, no_report
from heed.evaluation.bleu import Score
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard
from heed.parsing.evalb import evalb
from heed.parsing.parser import Parser, ParserCard, longest_sentence
from heed.parsing.treebank import ParsingSettings, count_trees, gold_trees, read_lexicon, trees_path, write_lines
from heed.parsing.trees import Tree
from heed.runs.recipe import Recipe
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.tasks.shell_commands import command, with_input
from heed.text.tokenizer_kinds import AnyTokenizer
from heed.training.distributed import ALONE, Workers


class ParsingTask:
    """Learns from a treebank, whose lines the run keeps; validates by F1 with all gold brackets counted."""

    ranked_by = "f1_of_all_gold"

    def __init__(self, recipe: Recipe, settings: ParsingSettings):
        self.recipe, self.settings = recipe, settings

    def text_files(self, run: Path, corpora: Corpora) -> TextFiles:
        """The treebank as lines of words and lines of symbols in RUN/lines, written if they are not there."""
        return write_lines(self.settings, run / "lines", corpora)

    def count_pairs(self, corpora: Corpora) -> int:
        """Number of training trees. Reads all trees and changes nothing."""
        return count_trees(self.settings, corpora)

    def card(self, files: TextFiles) -> ModelCard:
        """How trees are sequences, the lexicon, search settings, name of the treebank."""
        return ModelCard(
            self.recipe.data.src,
            self.recipe.data.tgt,
            parsing=ParserCard(**self.settings.linearisation(), lexicon=read_lexicon(files.dev[0])).model_dump(),
            decoding=self.recipe.decoding.model_dump(),
            trained_on={"corpus": f"treebank {Path(self.settings.treebank).name}"},
        )

    def validator(
        self, files: TextFiles, tokenizer: AnyTokenizer, report: Report = no_report, *, workers: Workers = ALONE
    ) -> Callable[[Transformer], dict[str, float]]:
        """F1 of greedy parses of dev, with all gold brackets counted."""
        gold, lexicon = gold_trees(files.dev[0]), read_lexicon(files.dev[0])
        greedy = self.recipe.decoding.model_copy(update={"beam_size": 1})
        longest_sentence(self.recipe.model, greedy, self.settings)  # no room for a tree shows before training

        def validate(model: Transformer) -> dict[str, float]:
            if not workers.first:  # it parses alone
                return {}
            parser = Parser(model, tokenizer, greedy, self.settings, lexicon=lexicon, precision="auto")
            return {"f1": parsing_scores(parser, gold)[self.ranked_by].value}

        return validate

    def evaluate(
        self, model_folder: Path, sets: Mapping[str, FilePair], *, title: str, report: Report
    ) -> Iterator[Evaluation]:
        """F1 on each set in turn."""
        loaded = load_models([model_folder])
        parser = Parser.of(loaded, self.recipe.decoding, where=[model_folder])
        for name, (words, _) in sets.items():
            report(f"Parsing {name} with the {title} in {parser.precision}.")
            gold = gold_trees(words)
            yield Evaluation(name, len(gold), parsing_scores(parser, gold), precision=parser.precision)

    def next_commands(self, model_folder: Path, files: TextFiles) -> list[str]:
        """To parse a sentence, to score the parses of a set by EVALB, to see the facts of the model."""
        words, _ = next(iter(files.tests.values()), files.dev)
        parse = command("heed", "parse", model_folder)
        return [
            with_input(words, "heed", "parse", model_folder),
            f"{parse} < {command(words)} | {command('heed', 'evalb', trees_path(words), '-')}",
            command("heed", "info", model_folder),
        ]


def parsing_scores(parser: Parser, gold: Sequence[Tree]) -> dict[str, Score]:
    """f1: EVALB's, of the parser's trees over the same words; f1_of_all_gold: what EVALB leaves out counted as missed.

    EVALB leaves out a sentence as an error if, for example, its punctuation is tagged as a word. By its F1 alone, a
    parser that fails on every long sentence would be judged by the short ones.
    """
    result = evalb(zip(gold, (parse.tree for parse in parser.parse([tree.words() for tree in gold])), strict=True))
    left_out = f"{result.all.errors + result.all.skipped:,} of {result.all.sentences:,} sentences left out"
    return {
        "f1": Score("F1", result.f1, f"{result.params.signature()}; {left_out}"),
        "f1_of_all_gold": Score("all gold", result.strict_f1, "F1 with those counted as missed"),
    }
