"""Unknown names lead to what was meant: by meaning, by likeness, by what lies beside."""

import os
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command

from heed.apps.cli.guesses import VERBS
from heed.apps.commands import app as commands
from heed.config import known_names
from heed.runs.recipe import Recipe
from heed.suggestions import ADVICE, SYNONYMS, did_you_mean, names_meant

SETTINGS = known_names(Recipe)


def verbs(command):
    for inner in getattr(command, "commands", {}).values():
        yield from verbs(inner)
    if not hasattr(command, "commands"):
        yield command


def test_every_synonym_leads_to_settings_or_options_that_exist_and_is_none_itself():
    app = get_command(commands)
    options = {o.removeprefix("--") for verb in [app, *verbs(app)] for each in verb.params for o in each.opts}
    known = [*SETTINGS, "preset", *(name.replace("-", "_") for name in options)]
    lasts = {name.rpartition(".")[2] for name in known}
    for ours, theirs in SYNONYMS.items():
        assert lasts.issuperset(ours.split()), ours
        assert names_meant(theirs.split()[0], known), theirs
    for table in (SYNONYMS, ADVICE):
        words = [word for theirs in table.values() for word in theirs.split()]
        assert len(words) == len(set(words))
        # Other programs' early_stopping is patience, and their max_tokens a batch.
        assert set(words) & {name.rpartition(".")[2] for name in SETTINGS} <= {"early_stopping", "max_tokens"}
    for verb in (each for names in VERBS for each in [names.split()[0]] if not each.startswith("-")):
        assert verb in app.commands


LINES = "".join(f"line {i}\n" for i in range(20))


@pytest.mark.parametrize(
    "command, answer",
    [
        ("translate M text.en", "heed translate M < text.en"),
        ("translate M text.en out.de", "heed translate M < text.en > out.de"),
        ("translate text.en", "heed translate MODEL < text.en"),
        ("translate M 'hello world'", "echo 'hello world' | heed translate M"),
        ("translate M -i text.en -o text.de", "heed translate MODEL < IN > OUT"),
        ("translate --model M", "MODEL stands without an option: heed translate MODEL"),
        ("translate -model M -src text.en", "No such option: -model; MODEL stands without an option"),
        ("translate M --batch-size 8", "Heed forms batches itself"),
        ("translate opus-mt-en-de", "heed import opus-mt-en-de"),
        ("parse M text.en", "heed parse M < text.en"),
        ("train text.en text.de", "heed train --src text.en --tgt text.de"),
        ("train --src text.en --tgt text.de --gpus 2", "torchrun --nproc-per-node"),
        ("train --src text.en --tgt text.de --preset big", "--set preset=…"),
        ("train --src text.en --tgt text.de --resume", "a run resumes when the same command is given again"),
        ("train --src text.en --tgt text.de --out m", "did you mean --run?"),
        ("train --src text.en --tgt text.de --from english", "give a code such as en"),
        ("train --src text.de --tgt text.en --from en --to de", "exchange --src and --tgt"),
        ("train --src text.en --tgt text.de --set model.positions=rope", "'sinusoid-t2t' or 'learned'"),
        ("train --src text.en --tgt text.de --set training.weight_decay=0.1", "there is no weight decay"),
        ("train --src text.en --tgt text.de --set training.optimizer=sgd", "training.adam_beta1"),
        (
            "train --src text.en --tgt text.de --set training.checkpoint_every=900",
            'steps, epochs, minutes, as "900 steps"',
        ),
        ("evaluate M text.en text.de", "heed evaluate M --src text.en --ref text.de"),
        ("evaluate text.de text.en", "heed evaluate --hyp text.de --ref text.en"),
        ("score M text.en text.de", "heed score M --src text.en --tgt text.de"),
        ("import nothing", "no such file or folder"),
        ("translate M/tokenizer.json", "name the folder: heed translate M"),
        ("info M/model.safetensors", "name the folder: heed info M"),
        ("translate M --temperature 0.5", "did you mean --sample?"),
        ("evaluate M --src text.en --ref text.de --metric comet", "heed compare --comet MODEL"),
        ("import opus-mt-en-de --offline", "HF_HUB_OFFLINE=1"),
        ("train base", "--set preset=base"),
        ("train demo", "heed demo"),
        ("train wmt14-de-en-base", "wmt14-en-de-base trains the other direction with --set data.src=de"),
        ("train multi30k-de-en", "multi30k-en-de trains the other direction with --set data.src=de"),
        ("train iwslt14", "for text of your own: heed train --src corpus.en --tgt corpus.de"),
        ("train text", "for text of your own: heed train --src text.de --tgt text.en"),
        ("train en-de", "did you mean multi30k-en-de, multi30k-en-de-fr, multi30k-en-de-raw, wmt14-en-de-base or"),
        ("train my.yaml", "a recipe is a TOML file"),
        ("train multi30k-en-de --set model.layer=3", "heed: multi30k-en-de: unknown setting model.layer"),
        ("train --src nothing.en --tgt nothing.de --set training.lr=1", "unknown setting training.lr; did you mean"),
        ("train --src text.en --tgt text.de --early-stopping 5", "--set training.patience=…"),
        ("train --config my.toml", "RECIPE stands without an option"),
        ("train --src text.en --tgt text.de --track trackio", "pip install 'heed-mt[track]'"),
        ("train multi30k-en-de --set training.lr_scheduler=cosine", "did you mean training.schedule?"),
        (
            "train multi30k-en-de --set training.scheduler=x",
            "did you mean training.learning_rate, training.schedule, training.warmup",
        ),
        ("train multi30k-en-de --set optimizer.lr=1", "did you mean training.learning_rate or training.learning_rate_"),
        ("train multi30k-en-de --set model.hidden_size=3", "did you mean model.d_model?"),
        ("train multi30k-en-de --max-steps 5", "No such option: --max-steps; did you mean --set training.max_steps=…?"),
        (
            "train multi30k-en-de --batch-size 5",
            "did you mean --set training.batch_tgt_tokens=… or --set training.batch_src_tokens=…?",
        ),
        ("eval M", "did you mean heed evaluate?"),
        ("download multi30k", "did you mean heed data get"),
        ("lm", "no language models"),
        ("data ls", "did you mean heed data list?"),
        ("data get wmt14", "did you mean wmt14-en-de or wmt14-en-fr?"),
        ("--verbose", "messages are on standard error"),
        ("serve M --api-keys", "Option '--api-keys' requires an argument"),
        ("evaluate M", "Example: heed evaluate"),
    ],
)
def test_a_command_as_it_is_guessed_leads_on(heed, tmp_path, command, answer):
    (tmp_path / "M").mkdir()
    for name in ("text.en", "text.de", "M/model.safetensors"):
        (tmp_path / name).write_text(LINES)
    done = heed(*shlex.split(command), cwd=tmp_path)
    assert done.returncode in (1, 2) and answer in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["M", "text.de", "text.en"]


@pytest.mark.parametrize(
    "words, completed",
    [
        ("train multi", "multi30k-en-de"),
        ("train x --set training.pat", "training.patience="),
        ("data get multi", "multi30k"),
        ("translate M --format m", "md"),
        ("export M out --to mar", "marian"),
    ],
)
def test_a_shell_completes_recipes_settings_corpora_and_formats(words, completed):
    environment = os.environ | {
        "_HEED_COMPLETE": "complete_bash", "COMP_WORDS": f"heed {words}", "COMP_CWORD": str(len(words.split()))
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "heed"], env=environment, capture_output=True, text=True)
    assert completed in done.stdout.splitlines(), done


def test_the_named_table_goes_before_others_and_likeness_comes_last():
    assert names_meant("training.seed", SETTINGS) == ["training.seed"]
    assert names_meant("lr", SETTINGS) == ["training.learning_rate", "training.learning_rate_factor"]
    assert names_meant("training.lable_smoothing", SETTINGS) == ["training.label_smoothing"]
    assert names_meant("zzz", SETTINGS) == []
    assert did_you_mean(["a", "b", "c"]) == "did you mean a, b or c?" and did_you_mean([]) == ""


def test_a_name_leads_to_the_file_run_or_recipes_of_that_name(heed, tmp_path):
    (tmp_path / "my.toml").touch()
    model = tmp_path / "runs" / "second" / "model"
    model.mkdir(parents=True)
    (tmp_path / "runs" / "second" / "config.toml").touch()
    expected = {
        ("train", "my"): "did you mean my.toml?",
        ("train", "second"): "did you mean runs/second?",
        ("train", "multi30k"): "did you mean multi30k-en-de, multi30k-en-de-fr, multi30k-en-de-raw or multi30k-en-fr?",
        ("train", "runs/second/model"): "did you mean runs/second?",
        ("average", "runs/second/model"): "did you mean runs/second?",
        ("plot", "runs/second/model"): "did you mean runs/second?",
    }
    for arguments, meant in expected.items():
        done = heed(*arguments, cwd=tmp_path)
        assert done.returncode == 1 and meant in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
