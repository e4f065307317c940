"""An implementation of "Attention Is All You Need": train translation models, score them and translate.

    heed.train("multi30k-en-de", "runs/first")
    heed.load("runs/first/model").translate("a dog runs .").text

Public names are loaded on first use: `import heed` imports no torch and changes nothing in the process (`tune_process`
does, for a program that wants the speed of Heed's commands).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of _HOMES, for type checkers and editors
    from heed.api import TrainedRun as TrainedRun
    from heed.api import average as average
    from heed.api import evaluate as evaluate
    from heed.api import load as load
    from heed.api import train as train
    from heed.apps.comparison.statistics import Comparison as Comparison
    from heed.apps.comparison.statistics import compare as compare
    from heed.apps.exchange.convert import export as export
    from heed.apps.exchange.convert import import_ as import_
    from heed.decoding.beam import Hypothesis as Hypothesis
    from heed.decoding.beam import beam_search as beam_search
    from heed.decoding.settings import DecodingSettings as DecodingSettings
    from heed.decoding.settings import SamplingSettings as SamplingSettings
    from heed.decoding.translation import Translation as Translation
    from heed.decoding.translator import Translator as Translator
    from heed.errors import HeedError as HeedError
    from heed.errors import Stopped as Stopped
    from heed.evaluation.bleu import Score as Score
    from heed.evaluation.bleu import bleu as bleu
    from heed.evaluation.bleu import chrf as chrf
    from heed.model.architecture import Architecture as Architecture
    from heed.model.attention_weights import AttentionWeights as AttentionWeights
    from heed.model.transformer import Transformer as Transformer
    from heed.parsing.parser import Parse as Parse
    from heed.parsing.parser import Parser as Parser
    from heed.parsing.trees import Tree as Tree
    from heed.runs.recipe import Recipe as Recipe
    from heed.runs.recipe import read_recipe as read_recipe
    from heed.runs.tasks.evaluation import Evaluation as Evaluation
    from heed.runtime.process_tuning import tune_process as tune_process
    from heed.text.tokenizer import SpecialIds as SpecialIds
    from heed.text.tokenizer import Tokenizer as Tokenizer
    from heed.text.tokenizer import TokenizerSettings as TokenizerSettings
    from heed.text.tokenizer import train_tokenizer as train_tokenizer
    from heed.training.callbacks import StepRecord as StepRecord
    from heed.training.callbacks import ValidationRecord as ValidationRecord
    from heed.training.settings import TrainingSettings as TrainingSettings

    __version__: str

_HOMES = {
    "Architecture": "heed.model.architecture",
    "AttentionWeights": "heed.model.attention_weights",
    "Comparison": "heed.apps.comparison.statistics",
    "DecodingSettings": "heed.decoding.settings",
    "Evaluation": "heed.runs.tasks.evaluation",
    "HeedError": "heed.errors",
    "Hypothesis": "heed.decoding.beam",
    "Parse": "heed.parsing.parser",
    "Parser": "heed.parsing.parser",
    "Recipe": "heed.runs.recipe",
    "SamplingSettings": "heed.decoding.settings",
    "Score": "heed.evaluation.bleu",
    "SpecialIds": "heed.text.tokenizer",
    "StepRecord": "heed.training.callbacks",
    "Stopped": "heed.errors",
    "Tokenizer": "heed.text.tokenizer",
    "TokenizerSettings": "heed.text.tokenizer",
    "TrainedRun": "heed.api",
    "TrainingSettings": "heed.training.settings",
    "Transformer": "heed.model.transformer",
    "Translation": "heed.decoding.translation",
    "Translator": "heed.decoding.translator",
    "Tree": "heed.parsing.trees",
    "ValidationRecord": "heed.training.callbacks",
    "average": "heed.api",
    "beam_search": "heed.decoding.beam",
    "bleu": "heed.evaluation.bleu",
    "chrf": "heed.evaluation.bleu",
    "compare": "heed.apps.comparison.statistics",
    "evaluate": "heed.api",
    "export": "heed.apps.exchange.convert",
    "import_": "heed.apps.exchange.convert",
    "load": "heed.api",
    "read_recipe": "heed.runs.recipe",
    "train": "heed.api",
    "train_tokenizer": "heed.text.tokenizer",
    "tune_process": "heed.runtime.process_tuning",
}
_OF_TRANSLATOR = ("translate", "score", "pipeline", "Model")  # names that people look for here
__all__ = [*sorted(_HOMES), "__version__"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a checker that saw it would take any misspelt name for an Any

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        elif name == "__version__":
            value = _version()
        else:
            hint = "; see heed.load(FOLDER).translate and .log_probs" if name in _OF_TRANSLATOR else ""
            raise AttributeError(f"module 'heed' has no attribute {name!r}{hint}")
        globals()[name] = value
        return value


def _version() -> str:
    """The installed version, or "0+unknown" where the code runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("heed-mt")
    except PackageNotFoundError:
        return "0+unknown"
