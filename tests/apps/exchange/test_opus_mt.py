"""OPUS-MT's models, as Hugging Face has them: their logits, ids and greedy outputs, and the ways on to others."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.apps.exchange.folders import ENGLISH, exported, imported
from tests.apps.exchange.test_huggingface import assert_same_logits, theirs, tokenizer_of, with_search
from tests.text.test_sentencepiece import GERMAN, trained

from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import load_model
from heed.text.sentencepiece_model import SentencePieceModel

transformers = pytest.importorskip("transformers")
SMALL = {"d_model": 32, "layers": 2, "attention_heads": 4, "ffn_dim": 64}
WHOLE = {"d_model": 512, "layers": 6, "attention_heads": 8, "ffn_dim": 2048}


def opus_mt(
    folder: Path, *, d_model: int, vocab_size: int | None = None, safe: bool = True, codes: str = "fra", **stacks: int
) -> Path:
    """What a download has: random weights, of which every one counts; the pad's embedding, with which a decoder starts,
    is zero."""
    folder.mkdir()
    pieces = {f">>{code}<<" for code in codes.split()}
    for side, lines in (("source", ENGLISH), ("target", GERMAN)):
        (folder / f"{side}.spm").write_bytes(trained(lines, vocab_size=200))
        pieces |= set(SentencePieceModel.read(folder / f"{side}.spm").pieces[2:])
    table = ["</s>", "<unk>", *sorted(pieces)]
    table += [f"word{i}" for i in range((vocab_size or 0) - len(table) - 1)] + ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    pad = len(table) - 1
    torch.manual_seed(3)
    config = transformers.MarianConfig(
        vocab_size=len(table), d_model=d_model, activation_function="swish", scale_embedding=True,
        **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in stacks.items()},
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, bos_token_id=0, forced_eos_token_id=0,
        static_position_embeddings=True, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    torch.manual_seed(3)  # again: how many numbers a new model draws depends on the version
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                spread = 0.2 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
                parameter.add_(spread * torch.randn_like(parameter))
        model.final_logits_bias.copy_(0.3 * torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 0] += 2  # outputs end
        model.model.shared.weight[pad] = 0
    model.generation_config = transformers.GenerationConfig(
        bad_words_ids=[[pad]], num_beams=1, max_length=512, forced_eos_token_id=0,
        pad_token_id=pad, eos_token_id=0, bos_token_id=0, decoder_start_token_id=pad,
    )  # fmt: skip
    model.save_pretrained(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses is recommended, and not used
        tokenizer = transformers.MarianTokenizer(
            *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
            source_lang="en", target_lang="de" if codes == "fra" else "mul",
        )  # fmt: skip
    tokenizer.save_pretrained(str(folder))
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, Path]:
    """OPUS-MT's folder, and Heed's."""
    parent = tmp_path_factory.mktemp("opus-mt")
    folder = opus_mt(parent / "theirs", **SMALL)
    return folder, imported(folder, parent / "ours", "huggingface")


def test_logits_are_the_same(small):
    folder, ours = small
    loaded = load_model(ours)
    assert loaded.model.arch.activation == "swish" and loaded.model.arch.share == "all"
    assert loaded.model.arch.attention_bias and loaded.model.arch.output_bias
    assert (loaded.card.src, loaded.card.tgt) == ("en", "de")
    assert_same_logits(loaded.model, theirs(folder))


def test_ids_and_texts_are_those_of_its_tokenizer(small):
    folder, ours = small
    tokenizer, reference = load_model(ours).tokenizer, tokenizer_of(folder)
    for text in [*ENGLISH[:50], ">>fra<< two hundred", "日本 two", " spaces  within "]:
        ids = tokenizer.encode(text)
        assert [*ids, 0] == reference(text).input_ids
        (tgt,) = tokenizer.encode_targets([text])
        assert tokenizer.decode(tgt) == reference.decode(tgt, skip_special_tokens=True)


def test_greedy_outputs_are_those_of_generate_that_writes_no_unk(small):
    folder, ours = small
    loaded = load_model(ours)
    sources = loaded.tokenizer.encode_lines(ENGLISH)
    options = DecodingSettings(beam_size=1, max_tokens=40, max_extra_tokens=100)
    found = [hypotheses[0] for hypotheses in beam_search(loaded.model, sources, loaded.tokenizer.special, options)]
    assert len({hypothesis.ids for hypothesis in found}) > 20 and any(hypothesis.ended for hypothesis in found)
    pad, unk = loaded.tokenizer.special.pad, loaded.tokenizer.special.unk
    batch = tokenizer_of(folder)(ENGLISH, return_tensors="pt", padding=True)
    rows = theirs(folder).generate(**batch, max_length=41, bad_words_ids=[[pad], [unk]], forced_eos_token_id=None)
    expected = [[i for i in row if i not in (pad, 0)] for row in rows.tolist()]
    assert [list(hypothesis.ids) for hypothesis in found] == expected


def test_a_model_that_returns_has_the_same_weights_tokenizer_and_logits(small, tmp_path):
    folder, ours = small
    exported(ours, tmp_path / "hf", "huggingface")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    positions = {name for name in first if "embed_positions" in name}
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert first.keys() - positions <= second.keys()
    assert_same_logits(load_model(ours).model, theirs(tmp_path / "hf"))
    one, other = tokenizer_of(folder), tokenizer_of(tmp_path / "hf")
    assert one(ENGLISH[:20]).input_ids == other(ENGLISH[:20]).input_ids
    again = imported(tmp_path / "hf", tmp_path / "again", "huggingface")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (again / name).read_bytes() == (ours / name).read_bytes()


@pytest.mark.parametrize("as_before_1_6", [False, True])
def test_a_pickle_of_tensors_is_the_same_model(small, tmp_path, as_before_1_6):
    _, ours = small
    folder = opus_mt(tmp_path / "theirs", **SMALL, safe=False)
    if as_before_1_6:
        weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
        weights = {name: torch.nn.Parameter(weight) for name, weight in weights.items()}
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    found = imported(folder, tmp_path / "ours", "huggingface")
    assert (found / "model.safetensors").read_bytes() == (ours / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """Heed's folder of a model with three target languages."""
    parent = tmp_path_factory.mktemp("opus-mt-mul")
    return imported(opus_mt(parent / "theirs", **SMALL, codes="fra deu por"), parent / "ours", "huggingface")


def test_every_part_of_a_line_gets_the_code_that_the_line_begins_with(several):
    translator = Translator.load(several, precision="fp32", beam_size=1, max_tokens=8)
    table = translator.tokenizer.src.pieces
    long = ">>fra<< " + " ".join(ENGLISH[:150])
    parts = translator.pieces([long])[0]
    assert len(parts) == 3 and {table[part[0]] for part in parts} == {">>fra<<"}
    [whole] = translator.translate([long])
    assert whole.n_pieces == len(parts)
    plain = translator.pieces([">>fra<< two hundred"])
    for space in (" ", "\u00a0", "\t \u3000"):
        assert translator.pieces([f"{space}>>fra<< two hundred"]) == plain
    assert translator.between(target="fr").pieces([" two hundred"]) == plain
    assert translator.between(target="fra").pieces([long[len(">>fra<<") :]])[0] == parts
    # Behind the first code, and where the language is chosen for all texts, a code is text.
    for ids in translator.pieces([">>fra<< >>deu<< two"]) + translator.between(target="pt").pieces([">>deu<< two"]):
        assert ">>deu<<" not in [table[i] for i in ids[0]]


def test_a_text_without_a_code_or_with_an_unknown_one_is_refused(several):
    translator = Translator.load(several, beam_size=1, max_tokens=8)
    for text in ("two hundred", ">>xyz<< two hundred", "two >>fra<< hundred"):
        with pytest.raises(HeedError, match=r"into 3 languages, .* such as >>deu<<.*--to CODE"):
            translator.translate(text)
    with pytest.raises(HeedError, match="'fro' is no target language of this model; did you mean fr"):
        translator.translate("two", target="fro")
    with pytest.raises(HeedError, match="'es' is no source language"):
        translator.translate("two", source="es", target="fr")
    assert translator.translate(["", "  "])[1].text == ""


def saved(folder: Path, out: Path, *, n_more_rows: int = 0, shard_size: str = "1GB") -> Path:
    """The folder as transformers saves it again."""
    model = theirs(folder)
    if n_more_rows:
        model.resize_token_embeddings(model.config.vocab_size + n_more_rows, mean_resizing=False)
    model.save_pretrained(str(out), max_shard_size=shard_size)
    tokenizer_of(folder).save_pretrained(str(out))
    return out


def test_weights_in_shards_are_the_same_model(small, tmp_path):
    folder = saved(small[0], tmp_path / "theirs", shard_size="40KB")
    shards = sorted(path.name for path in folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and not (folder / "model.safetensors").exists()
    assert (imported(folder, tmp_path / "ours", "huggingface") / "model.safetensors").read_bytes() == (
        small[1] / "model.safetensors"
    ).read_bytes()
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name, shard = next(iter(content["weight_map"].items()))
    other = next(file for file in shards if file != shard)
    for wrong, message in (
        ({name: "../model.safetensors"}, "expected a file in the same folder"),
        ({name: 7}, "expected a file in the same folder"),
        ({name: other}, "also holds '.*', unlike model.safetensors.index.json|lacks '.*', unlike"),
        ({name: "absent.safetensors"}, "absent.safetensors: missing; model.safetensors.index.json lists it"),
    ):
        index.write_text(json.dumps({"weight_map": content["weight_map"] | wrong}))
        with pytest.raises(HeedError, match=message):
            imported(folder, tmp_path / "wrong", "huggingface")
    index.write_text("{}")
    with pytest.raises(HeedError, match="has no weight_map"):
        imported(folder, tmp_path / "wrong", "huggingface")


def test_rows_that_pad_the_vocabulary_have_no_piece(small, tmp_path):
    folder = saved(small[0], tmp_path / "theirs", n_more_rows=5)
    ours = imported(folder, tmp_path / "ours", "huggingface")
    loaded = load_model(ours)
    assert len(loaded.tokenizer) == len(load_model(small[1]).tokenizer) + 5
    assert_same_logits(loaded.model, theirs(folder))
    for text in ENGLISH[:10]:
        assert loaded.tokenizer.encode(text) == load_model(small[1]).tokenizer.encode(text)
    assert Translator.load(ours, max_tokens=20).translate(["two hundred"])[0].text
    exported(ours, tmp_path / "back", "huggingface")
    again = imported(tmp_path / "back", tmp_path / "again", "huggingface")
    assert (again / "tokenizer.json").read_bytes() == (ours / "tokenizer.json").read_bytes()


def test_what_differs_between_vocabulary_and_weights_is_named(small, tmp_path):
    folder = saved(small[0], tmp_path / "theirs")
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(pieces | {"more": len(pieces)}), encoding="utf-8")
    with pytest.raises(HeedError, match=rf"vocab.json: has ids up to {len(pieces)}, .* has {len(pieces)} rows"):
        imported(folder, tmp_path / "ours", "huggingface")
    folder = saved(small[0], tmp_path / "padded", n_more_rows=1)
    (folder / "added_tokens.json").write_text(json.dumps({"<sep>": len(pieces), "</s>": 0}))
    with pytest.raises(HeedError, match=r"added_tokens.json: adds the token '<sep>', which transformers cuts out"):
        imported(folder, tmp_path / "ours", "huggingface")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": ["u"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"number": "u"}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["u"]}),
        ("tokenizer_config.json", {"mask_token": {"__type": "AddedToken", "content": "u"}}),
        ("tokenizer_config.json", {"number_token": "u"}),
        ("special_tokens_map.json", {"sep_token": "u"}),
    ],
)
def test_tokens_that_transformers_cuts_out_of_a_text_are_refused(small, tmp_path, file, content):
    shutil.copytree(small[0], tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if file == path.name:
        config |= content
    else:  # as older versions wrote them: without added_tokens_decoder, the other file counts
        del config["added_tokens_decoder"]
        (tmp_path / "theirs" / file).write_text(json.dumps(content))
    path.write_text(json.dumps(config))
    text = "two hundred"
    assert tokenizer_of(tmp_path / "theirs")(text).input_ids != tokenizer_of(small[0])(text).input_ids
    with pytest.raises(HeedError, match=f"{file}: adds the token 'u', which transformers cuts out of a text before"):
        imported(tmp_path / "theirs", tmp_path / "ours", "huggingface")


def test_limits_of_the_search_are_those_of_generate(small, tmp_path):
    (english,) = ENGLISH[:1]
    for n, settings in enumerate(
        (
            {"max_length": 9},
            {"max_length": 100, "min_length": 90},
            {"max_length": 40, "min_new_tokens": 30, "min_length": 3},
            {"max_new_tokens": 12, "max_length": 50},
        )
    ):
        folder = with_search(small[0], tmp_path / f"theirs{n}", forced_eos_token_id=None, **settings)
        messages: list[str] = []
        ours = imported(folder, tmp_path / f"ours{n}", "huggingface", messages=messages)
        batch = tokenizer_of(folder)([english], return_tensors="pt")
        pad, unk = load_model(ours).tokenizer.special.pad, load_model(ours).tokenizer.special.unk
        expected = theirs(folder).generate(**batch, bad_words_ids=[[pad], [unk]])[0].tolist()
        translator = Translator.load(ours, precision="fp32")
        (ids,) = translator.tokenizer.encode_lines([english])
        (found,) = beam_search(translator.models[0], [ids], translator.tokenizer.special, translator.settings)
        assert list(found[0].ids) == [i for i in expected if i not in (pad, 0)] and not messages
        assert translator.translate([english])[0].text


def test_settings_of_generate_that_heed_lacks_are_named_and_come_back_in_an_export(small, tmp_path):
    lacking = {"renormalize_logits": True, "bad_words_ids": [[3, 4]]}
    kept = {"early_stopping": "never", "forced_eos_token_id": 0, "max_length": 700, "num_beams": 3, "min_new_tokens": 2}
    kept |= {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5}
    neutral = {"diversity_penalty": 0.0, "num_beam_groups": 1, "do_sample": False, "suppress_tokens": []}
    folder = with_search(small[0], tmp_path / "theirs", **lacking, **kept, **neutral)
    messages: list[str] = []
    ours = imported(folder, tmp_path / "ours", "huggingface", messages=messages)
    assert len(messages) == 1 and "its translations differ from those of transformers" in messages[0]
    assert all(name in messages[0] for name in lacking) and not any(name in messages[0] for name in {**kept, **neutral})
    exported(ours, tmp_path / "back", "huggingface")
    found = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert {name: found[name] for name in kept} == kept
    assert found["renormalize_logits"] and [3, 4] in found["bad_words_ids"]

    # config.json counts only without generation_config.json, as in transformers.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_beams": 9}))
    assert load_model(imported(folder, tmp_path / "with", "huggingface")).card.decoding["beam_size"] == 3
    (folder / "generation_config.json").unlink()
    assert load_model(imported(folder, tmp_path / "without", "huggingface")).card.decoding["beam_size"] == 9


def test_it_goes_on_to_ctranslate2(small, tmp_path):
    pytest.importorskip("ctranslate2")
    assert "the same log-probabilities" in exported(small[1], tmp_path / "ct2", "ctranslate2")[-1]
    readme = (tmp_path / "ct2" / "README.md").read_text(encoding="utf-8")
    assert """translate_batch([[">>fra<<"] + src.encode("A sentence.", out_type=str)], beam_size=""" in readme
    assert "`>>fra<<` is one of the languages that the model knows" in readme


def test_documents_are_translated(small):
    """Which asks for the characters that each piece stands for."""
    translator = Translator.load(small[1], max_tokens=20)
    (found,) = translator.translate_aligned([">>fra<< two hundred"])
    assert found.text and len(found.alignment) == len(translator.tokenizer.encode_targets([found.text])[0])
    unseen = "\u200b"  # of which the tokenizer leaves nothing
    assert translator.alignments([unseen, "two"], [found.text, unseen]) == [None, None]


def test_marian_has_other_positions_than_hugging_faces_model(small, tmp_path):
    with pytest.raises(HeedError, match="positions = sinusoid-halves, not sinusoid-t2t, which Marian cannot express"):
        exported(small[1], tmp_path / "marian", "marian")


@pytest.mark.slow
def test_a_model_of_the_whole_size(tmp_path):
    folder = opus_mt(tmp_path / "theirs", **WHOLE, vocab_size=58_101)
    loaded = load_model(imported(folder, tmp_path / "ours", "huggingface"))
    assert loaded.tokenizer.special.pad == loaded.tokenizer.special.bos == 58_100
    assert_same_logits(loaded.model, theirs(folder))
