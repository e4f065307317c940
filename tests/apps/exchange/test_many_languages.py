"""Models of several languages as Hugging Face has them: M2M100, NLLB, SMaLL-100, mBART-50, small, of random weights.

Logits, ids, greedy and beam outputs with their scores are those of transformers.
"""

import io
import json
import shutil
import unicodedata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.apps.exchange.folders import ENGLISH, exported, imported
from tests.apps.exchange.test_huggingface import assert_same_logits, theirs
from tests.text.test_sentencepiece import GERMAN

import heed
from heed.apps.exchange.many_languages import LISTS
from heed.errors import HeedError
from heed.model_folder import load_model

transformers = pytest.importorskip("transformers")
FAMILIES = ("m2m100", "nllb", "small100", "mbart50")
SHAPE = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "scale_embedding": True, "dropout": 0.0,
    "max_position_embeddings": 300, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
THEIR_CODES = {"nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en_XX", "de_DE")}


def sentencepiece(kind: str) -> bytes:
    """A model with the special pieces of fairseq's: <unk>, <s>, </s>."""
    import sentencepiece as library

    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter([*ENGLISH, *GERMAN] * 3), model_writer=model, vocab_size=120, model_type=kind,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def family(folder: Path, name: str) -> Path:
    """What a download has: a tokenizer of so few pieces, all the languages, and random weights that all count."""
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece("unigram" if name == "mbart50" else "bpe"))
    if name in ("m2m100", "small100"):
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(i) for i in range(3, len(model)))]
        (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
        tokenizer = transformers.M2M100Tokenizer(folder / "vocab.json", folder / "sentencepiece.bpe.model")
        n_rows = len(pieces) + len(LISTS["m2m100"]) + 8
    elif name == "nllb":
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder, extra_special_tokens=LISTS["nllb200"])
        n_rows = len(tokenizer) + 2
    else:
        tokenizer = transformers.MBart50Tokenizer.from_pretrained(folder)
        n_rows = len(tokenizer)
    tokenizer.save_pretrained(str(folder))
    if name == "small100":
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        settings |= {"tokenizer_class": "SMALL100Tokenizer"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if name == "mbart50":
        kinds = transformers.MBartConfig, transformers.MBartForConditionalGeneration
    else:
        kinds = transformers.M2M100Config, transformers.M2M100ForConditionalGeneration
    activation = "gelu" if name == "mbart50" else "relu"
    model = kinds[1](kinds[0](vocab_size=n_rows, activation_function=activation, **SHAPE)).eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(spread * torch.randn_like(parameter))
        # Outputs that do not repeat the last id, and end.
        model.model.shared.weight.mul_(0.35)
        model.model.shared.weight[2].mul_(1.3)
        model.model.decoder.layer_norm.weight.mul_(3)
    model.generation_config = transformers.GenerationConfig(
        num_beams=5, early_stopping=True, max_length=200, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2
    )
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """A family's name, its folder, and Heed's."""
    parent = tmp_path_factory.mktemp(request.param)
    folder = family(parent / "theirs", request.param)
    return request.param, folder, imported(folder, parent / "ours", "huggingface")


def test_logits_are_the_same(both):
    _, folder, ours = both
    assert_same_logits(load_model(ours).model, theirs(folder))


def languages_of(name: str) -> tuple[str, str]:
    """English and German as the family names them."""
    return THEIR_CODES.get(name, ("en", "de"))


def their_sources(name: str, folder: Path, lines: list[str]) -> list[list[int]]:
    """Ids with eos, by their tokenizer; of SMaLL-100, whose class is none of transformers', by M2M100's."""
    kind = transformers.M2M100Tokenizer if name == "small100" else transformers.AutoTokenizer
    tokenizer = kind.from_pretrained(str(folder))
    tokenizer.src_lang = languages_of(name)[name == "small100"]
    return [tokenizer(line).input_ids for line in lines]


def test_ids_are_those_of_its_tokenizer_with_the_language_in_front(both):
    name, folder, ours = both
    translator = heed.load(ours, precision="fp32").between("en", "de")
    lines = [*ENGLISH[:40], "日本 two", "spaces  within", "<s> __de__ de_DE </s>"]
    found = [[*ids, 2] for ids in translator.source_ids(lines)]
    expected = their_sources(name, folder, lines[:-1])
    assert found[:-1] == expected
    special = {0, 1, 2, *range(min(load_model(ours).card.languages["ids"].values()), len(translator.tokenizer))}
    assert not special & set(found[-1][1:-1]), "a text that spells a language or a special symbol is text"


def test_letters_apart_from_their_marks_are_read_as_sentencepiece_reads_them(both):
    """In NFD, that is. tokenizers, which transformers has for NLLB and mBART-50, drops the second of two marks."""
    name, folder, ours = both
    apart = [unicodedata.normalize("NFD", line) for line in ("ǖ é", "한국어")]
    found = heed.load(ours, precision="fp32").between("en", "de").source_ids([*apart, "ǖ é", "한국어"])
    assert found[:2] == found[2:]
    of_theirs = their_sources(name, folder, [apart[0], "ǖ é"])
    assert (of_theirs[0] == of_theirs[1]) == (name in ("m2m100", "small100"))


def n_same_as_generates(name: str, folder: Path, ours: Path, found, n_beams: int, **options) -> int:
    """Asserts that generate writes the same with the same scores; returns how many outputs could be compared."""
    loaded, model, n_compared = load_model(ours), theirs(folder), 0
    forced = None if name == "small100" else loaded.card.languages["ids"]["de"]
    for ids, translation in zip(their_sources(name, folder, ENGLISH[: len(found)]), found, strict=True):
        expected = model.generate(
            torch.tensor([ids]), num_beams=n_beams, max_new_tokens=30, forced_bos_token_id=forced, max_length=None,
            early_stopping=n_beams > 1, bad_words_ids=[[1], [3]], return_dict_in_generate=True, output_scores=True,
            forced_eos_token_id=None, **options,
        )  # fmt: skip
        written = [i for i in expected.sequences[0].tolist()[2 if forced else 1 :] if i not in (1, 2)]
        if translation.ended and expected.sequences[0, -1] != 2:
            continue  # generate prefers an output that was cut to one that ended; Heed does not
        n_compared += 1
        assert loaded.tokenizer.token_ids(translation.tokens) == written
        if n_beams > 1:
            assert translation.score == pytest.approx(float(expected.sequences_scores[0]), abs=1e-4)
    return n_compared


@pytest.mark.parametrize("n_beams", [1, 4])
def test_outputs_and_scores_are_those_of_generate_that_forces_the_target_language(both, n_beams):
    name, folder, ours = both
    found = heed.load(ours, precision="fp32", beam_size=n_beams, max_tokens=30).translate(
        ENGLISH[:24], source="eng", target="deu_Latn"
    )
    n_compared = n_same_as_generates(name, folder, ours, found, n_beams)
    assert len({translation.tokens for translation in found}) > 5
    assert n_compared > 12 and (name != "nllb" or any(translation.ended for translation in found))


def test_languages_are_named_by_any_code_and_a_wrong_one_is_refused_with_the_nearest(both):
    name, _, ours = both
    translator = heed.load(ours, beam_size=1, max_tokens=3)
    if name == "nllb":
        assert translator.between("zho_Hant", "srp_Cyrl").languages == ("zh-Hant", "sr")
    expected = translator.translate("two", source="en", target="de")
    for source, target in (("eng", "deu"), ("EN-GB", "DE"), ("en_XX", "de_DE"), ("eng_Latn", "German")):
        assert translator.translate("two", source=source, target=target) == expected
    with pytest.raises(HeedError, match="'germn' is no target language of this model; did you mean de"):
        translator.between("en", "germn")
    with pytest.raises(HeedError, match=r"name the target language \(--to CODE"):
        translator.translate("two", source="en")
    if name != "small100":  # whose sources say no language
        with pytest.raises(HeedError, match=r"name the source language \(--from CODE"):
            translator.translate("two", target="de")


def test_every_part_of_a_long_line_is_told_the_languages(both):
    _, _, ours = both
    translator = heed.load(ours, beam_size=1, max_tokens=3).between("en", "de")
    parts = translator.pieces([" ".join(ENGLISH[:200])])[0]
    assert len(parts) > 2 and {part[0] for part in parts} == {*translator.direction.before}


def test_a_pair_is_scored_as_the_search_that_wrote_it(both):
    _, _, ours = both
    translator = heed.load(ours, precision="fp32", beam_size=4, max_tokens=30).between("en", "de")
    found = [one for one in translator.translate(ENGLISH[:8]) if one.ended]
    log_probs = translator.log_probs([one.source for one in found], [one.tokens for one in found])
    assert [sum(each) for each in log_probs] == pytest.approx([one.log_prob for one in found], abs=1e-4)
    assert all(link is not None for link in translator.alignments(["two hundred"], ["zwei"]))
    weights = translator.attention("two hundred", "zwei")
    assert weights.cross.shape[-1] == len(translator.source_ids(["two hundred"])[0]) + 1


def test_the_tokenizer_of_another_model_is_refused(both, tmp_path):
    name, folder, _ = both
    shutil.copytree(folder, tmp_path / "theirs")
    if name in ("m2m100", "small100"):
        table = json.loads((folder / "vocab.json").read_text("utf-8"))
        table |= {f"more{i}": len(table) + i for i in range(20)}
        (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
        match = "its tokenizer is another model's"
    else:
        (tmp_path / "theirs" / "sentencepiece.bpe.model").unlink()
        (tmp_path / "theirs" / "tokenizer.json").unlink()
        match = "holds neither sentencepiece.bpe.model nor tokenizer.json"
    with pytest.raises(HeedError, match=match):
        imported(tmp_path / "theirs", tmp_path / "out", "huggingface")
    if name == "mbart50":  # mBART-25 starts with the target language
        config = json.loads((folder / "config.json").read_text("utf-8")) | {"decoder_start_token_id": 140}
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (tmp_path / "theirs" / "tokenizer_config.json").unlink()
        with pytest.raises(HeedError, match="its tokenizer is of the kind 'mbart'; of models of several"):
            imported(tmp_path / "theirs", tmp_path / "out", "huggingface")


def test_without_the_sentencepiece_model_tokenizer_json_gives_the_same_ids(both, tmp_path):
    name, folder, ours = both
    if name in ("m2m100", "small100"):
        return  # they have no tokenizer.json
    shutil.copytree(folder, tmp_path / "theirs")
    (tmp_path / "theirs" / "sentencepiece.bpe.model").unlink()
    again = load_model(imported(tmp_path / "theirs", tmp_path / "out", "huggingface")).tokenizer
    lines = [*ENGLISH, *GERMAN[:500], "ﬁve  hundred", "日本"]
    assert again.encode_lines(lines) == load_model(ours).tokenizer.encode_lines(lines)


@pytest.mark.parametrize("n_beams", [1, 3])
def test_repetition_is_punished_as_generate_does_it(both, n_beams):
    """By the kernels, and by PyTorch's operations."""
    name, folder, ours = both
    options = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3}
    translator = heed.load(ours, precision="fp32", beam_size=n_beams, max_tokens=30, **options).between("en", "de")
    found = translator.translate(ENGLISH[:8])
    plain = heed.load(ours, precision="fp32", beam_size=n_beams, max_tokens=30).between("en", "de")
    assert [one.tokens for one in plain.translate(ENGLISH[:8])] != [one.tokens for one in found]
    assert n_same_as_generates(name, folder, ours, found, n_beams, **options) > 4
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("heed.backends.cpu.search.usable", lambda: False)
        by_torch = heed.load(ours, precision="fp32", beam_size=n_beams, max_tokens=30, **options).between("en", "de")
        assert [one.tokens for one in by_torch.translate(ENGLISH[:8])] == [one.tokens for one in found]


def test_a_model_that_returns_is_the_same(both, tmp_path):
    name, folder, ours = both
    exported(ours, tmp_path / "hf", "huggingface")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    for key, tensor in second.items():
        expected = first.get(key, torch.zeros_like(tensor))  # a bias of logits that is zero may be left out
        rows = slice(2, None) if "embed_positions" in key else slice(None)
        assert torch.equal(tensor[rows], expected[rows]), key
    assert_same_logits(load_model(ours).model, theirs(tmp_path / "hf"))
    lines = ENGLISH[:20]
    assert their_sources(name, tmp_path / "hf", lines) == their_sources(name, folder, lines)
    again = imported(tmp_path / "hf", tmp_path / "again", "huggingface")
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (again / file).read_bytes() == (ours / file).read_bytes()


def test_an_export_of_nllb_keeps_ids_of_languages_that_follow_the_pieces(both, tmp_path):
    """As in Meta's own folders; those that transformers 5 makes anew have the mask between."""
    name, folder, _ = both
    if name == "nllb":
        shutil.copytree(folder, tmp_path / "theirs", ignore=shutil.ignore_patterns("tokenizer.json"))
        ours = imported(tmp_path / "theirs", tmp_path / "ours", "huggingface")
        exported(ours, tmp_path / "hf", "huggingface")
        expected = heed.load(ours).between("en", "de").source_ids(ENGLISH[:9])
        assert [ids[:-1] for ids in their_sources(name, tmp_path / "hf", ENGLISH[:9])] == expected


def test_ctranslate2_writes_the_same(both, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    name, _, ours = both
    exported(ours, tmp_path / "ct2", "ctranslate2")
    translator = heed.load(ours, precision="fp32", beam_size=1, max_tokens=20).between("en", "de")
    names = json.loads((tmp_path / "ct2" / "shared_vocabulary.json").read_text("utf-8"))
    target = None if name == "small100" else names[translator.direction.forced.ids[0]]
    assert target is None or target in ("__de__", "deu_Latn", "de_DE")
    model, lines = ctranslate2.Translator(str(tmp_path / "ct2")), ENGLISH[:12]
    sources = [[names[i] for i in ids] for ids in translator.source_ids(lines)]
    found = model.translate_batch(
        sources, beam_size=1, max_decoding_length=20, target_prefix=[[target]] * len(sources) if target else None,
        suppress_sequences=[[names[1]], [names[3]]], disable_unk=True,
    )  # fmt: skip
    for result, translation in zip(found, translator.translate(lines), strict=True):
        written = [names.index(piece) for piece in result.hypotheses[0]][0 if target is None else 1 :]
        assert written == translator.tokenizer.token_ids(translation.tokens)
