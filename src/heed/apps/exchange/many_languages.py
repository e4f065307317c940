"""Models of several languages in Hugging Face's form: M2M100, NLLB-200, SMaLL-100, mBART-50.

fairseq trained them. Its ids are those of SentencePiece shifted by one, or of a table; languages follow the pieces, and
words that were made up fill the embedding's rows.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from heed.apps.exchange.tokenizers import optional_json
from heed.config import shown, validated
from heed.errors import HeedError
from heed.runtime.json_files import write_json
from heed.text.languages import Languages, short_codes
from heed.text.piece_table import read_table
from heed.text.sentencepiece import EOS, PAD, UNK, SentencePieceTokenizer, Vocabulary
from heed.text.sentencepiece_model import CONTROL, NORMAL, UNKNOWN, SentencePieceModel
from heed.text.tokenizer import SpecialIds
from heed.text.tokenizer_file import read_tokenizer_file

BOS, MASK = "<s>", "<mask>"
MODEL_FILE = "sentencepiece.bpe.model"
SPECIAL = SpecialIds(pad=1, bos=2, eos=2, unk=3)
SPECIAL_PIECES = [BOS, PAD, EOS, UNK]  # ids 0 to 3
OF_SENTENCEPIECE = [UNK, BOS, EOS]  # its ids 0 to 2
MOST_SPARE_ROWS = 128  # of the embedding behind the languages: a mask, made-up words, padding
FLORES = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
LISTS: dict[str, list[str]] = {
    name: codes.split()
    for name, codes in tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8")).items()
}
# The class of a tokenizer → the list of its languages.
CLASSES = {"nllb": "nllb200", "mbart50": "mbart50", "m2m100": "m2m100", "small100": "m2m100"}


def tokens_of(languages: Languages) -> tuple[str, dict[str, int]]:
    """The list that a model's languages are those of, and the ids by the tokens that its tokenizer has for them.

    Of no list: an empty name, and tokens such as <2de>.
    """
    for name, codes in LISTS.items():
        plain = [code.partition("_")[0] for code in codes] if name == "mbart50" else codes
        short = short_codes(plain)
        if list(short) == sorted(languages.ids, key=languages.ids.__getitem__):
            form = "__{}__" if name in ("m2m100", "wmt21") else "{}"
            ids = (languages.ids[code] for code in short)
            return name, {form.format(code): i for code, i in zip(codes, ids, strict=True)}
    return "", {f"<2{code}>": i for code, i in languages.ids.items()}


def write_vocabularies(
    tokenizer: SentencePieceTokenizer, languages: Languages, out: Path, *, max_positions: int
) -> None:
    """The files that `AutoTokenizer` loads. HeedError for languages or a tokenizer that none of its classes has."""
    name, tokens = tokens_of(languages)
    model, pieces = tokenizer.tgt.model, tokenizer.tgt.pieces
    has_merges = name != "nllb200" or (model is not None and model.kind == "bpe")
    if not (name and has_merges) or model is None or pieces is None or tokenizer.special != SPECIAL:
        raise HeedError("its tokenizer and languages are not those of M2M100, NLLB, SMaLL-100 or mBART-50.")
    (out / MODEL_FILE).write_bytes(model.protobuf())
    config: dict[str, Any] = {"tokenizer_class": "MBart50Tokenizer", "model_max_length": max_positions}
    if name == "nllb200":
        write_json(out / "tokenizer.json", _nllb_json(model, pieces, tokens))
        config |= {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": list(tokens)}
    elif name != "mbart50":
        write_json(out / "vocab.json", {piece: i for i, piece in enumerate(pieces) if piece is not None})
        config |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}
    write_json(out / "tokenizer_config.json", config)


def _nllb_json(model: SentencePieceModel, pieces: Sequence[str | None], languages: Mapping[str, int]) -> dict[str, Any]:
    """The content of NLLB's tokenizer.json, from which alone transformers takes the ids of languages.

    It numbers them anew, without gaps: the mask, which Heed does not keep, takes the first free id.
    """
    ids = {piece: i for i, piece in enumerate(pieces) if piece is not None}
    free = [i for i, piece in enumerate(pieces) if piece is None and i not in languages.values()]
    added = {piece: ids[piece] for piece in SPECIAL_PIECES} | dict(languages) | dict(zip([MASK], free, strict=False))
    flags = {"single_word": False, "rstrip": False, "special": True}
    # SentencePiece merges any two neighbours that are a piece together; the higher its score, the sooner.
    of_model = zip(model.pieces, model.scores, model.types, strict=True)
    scored = sorted(((piece, score) for piece, score, kind in of_model if kind == NORMAL), key=lambda one: -one[1])
    halves = ((piece[:n], piece[n:]) for piece, _ in scored for n in range(1, len(piece)))
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    if model.normalizer:
        normalizers.insert(0, {"type": "Precompiled", "precompiled_charsmap": model.normalizer})
    merges = [f"{left} {right}" for left, right in halves if left in ids and right in ids]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": piece, **flags, "lstrip": piece == MASK, "normalized": piece == MASK}
            for piece, i in sorted(added.items(), key=itemgetter(1))
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": {"type": "BPE", "unk_token": UNK, "fuse_unk": True, "vocab": ids, "merges": merges},
    }


class Vocabularies(NamedTuple):
    """The tokenizer of such a model, and its languages by the tokens that stand for them."""

    tokenizer: SentencePieceTokenizer
    tokens: dict[str, int]
    languages: Languages


def vocabularies(folder: Path, config: Mapping[str, Any], *, n_rows: int) -> Vocabularies:
    """The vocabularies of a folder. n_rows: of the embedding. HeedError names what is missing or does not fit."""
    settings = optional_json(folder / "tokenizer_config.json")
    name = _list_of(folder, config, settings)
    model = _model(folder)
    if (folder / "vocab.json").is_file():
        pieces = read_table(folder / "vocab.json")
    else:
        if model.pieces[:3] != OF_SENTENCEPIECE:
            begin, expected = " ".join(model.pieces[:3]), " ".join(OF_SENTENCEPIECE)
            raise HeedError(f"{folder}: its SentencePiece model begins with {begin}, expected {expected}.")
        pieces = [*SPECIAL_PIECES, *model.pieces[3:]]
    if pieces[:4] != SPECIAL_PIECES:
        raise HeedError(f"{folder}: ids begin with {' '.join(map(str, pieces[:4]))}, not {' '.join(SPECIAL_PIECES)}.")

    # Languages follow the pieces, unless a file gives their ids. No text spells them, or what the embedding has behind.
    codes = LISTS[name]
    form = "__{}__" if (folder / "vocab.json").is_file() else "{}"
    tokens = {form.format(code): len(pieces) + i for i, code in enumerate(codes)}
    given = _given_ids(folder, settings)
    tokens = {token: given.get(token, i) for token, i in tokens.items()}
    tokens |= {token: i for token, i in given.items() if FLORES.fullmatch(token) and token not in tokens}
    last = max(tokens.values())
    if len(set(tokens.values())) < len(tokens) or min(tokens.values()) < len(pieces):
        raise HeedError(f"{folder}: two tokens have one id; its files are not of one model.")
    if not last < n_rows <= last + MOST_SPARE_ROWS:
        raise HeedError(
            f"{folder}: {len(pieces):,} pieces and {len(tokens)} languages end at id {last:,}, but the embedding has "
            f"{n_rows:,} rows; its tokenizer is another model's."
        )
    vocabulary = validated(
        Vocabulary, {"model": model, "pieces": [*pieces, *[None] * (n_rows - len(pieces))]}, where=str(folder)
    )

    # Heed names them by shorter codes: mBART's regions say nothing.
    plain = {token.strip("_") if name != "mbart50" else token.partition("_")[0]: i for token, i in tokens.items()}
    ids = {short: plain[code] for short, code in short_codes(plain).items()}
    of_target = _is_small100(folder, config, settings)
    languages = Languages(ids=ids, source="target" if of_target else "source", is_forced=not of_target)
    try:
        return Vocabularies(SentencePieceTokenizer(vocabulary, vocabulary, SPECIAL), tokens, languages)
    except ValueError as error:
        raise HeedError(f"{folder}: {error}.") from None


def _list_of(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The name of the list of the model's languages. HeedError for a tokenizer that is none of these models'."""
    if isinstance(code_list := settings.get("language_codes"), str) and code_list in LISTS:
        return code_list
    kind = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or "").lower()
    kind = kind.removesuffix("fast").removesuffix("tokenizer")
    if not kind or kind == "pretrained":  # not said
        of_m2m100 = "m2m100" if (folder / "vocab.json").is_file() else "nllb"
        of_mbart = "mbart50" if config.get("decoder_start_token_id") == SPECIAL.eos else "mbart"  # of 25 languages
        kind = of_m2m100 if config.get("model_type") == "m2m_100" else of_mbart
    if kind not in CLASSES:
        raise HeedError(
            f"{folder}: its tokenizer is of the kind {shown(kind)}; of models of several languages, Heed imports those "
            "of M2M100, NLLB, SMaLL-100 and mBART-50."
        )
    return CLASSES[kind]


def _is_small100(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the source says the target language. Its network is M2M100's; only names tell."""
    names = (settings.get("tokenizer_class"), settings.get("auto_map"), config.get("_name_or_path"))
    has_code = (folder / "tokenization_small100.py").is_file()
    return has_code or any("small100" in str(name).lower().replace("-", "") for name in names)


def _given_ids(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """The ids that files give to tokens that are cut out of a text."""
    ids_by_token: dict[Any, Any] = dict(optional_json(folder / "added_tokens.json"))
    listed = settings.get("added_tokens_decoder")
    for i, token in (listed if isinstance(listed, dict) else {}).items():
        if isinstance(token, dict) and str(i).isascii() and str(i).isdigit():
            ids_by_token[token.get("content")] = int(i)
    if (folder / "tokenizer.json").is_file():
        file = read_tokenizer_file(folder / "tokenizer.json")
        added = file.get("added_tokens") if isinstance(file, dict) else None
        for token in added if isinstance(added, list) else []:
            if isinstance(token, dict):
                ids_by_token[token.get("content")] = token.get("id")
    return {token: i for token, i in ids_by_token.items() if isinstance(token, str) and type(i) is int}


def _model(folder: Path) -> SentencePieceModel:
    """The SentencePiece model, or the one that tokenizer.json was made from. HeedError if neither is there."""
    if (folder / MODEL_FILE).is_file():
        return SentencePieceModel.read(folder / MODEL_FILE)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise HeedError(f"{folder}: holds neither {MODEL_FILE} nor tokenizer.json; download the whole folder.")
    file: Any = read_tokenizer_file(path)
    try:
        model, steps = file["model"], file["normalizer"]["normalizers"]
        rules = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), "")
        added = {token["content"] for token in file["added_tokens"]}
        if model["type"] == "BPE":  # a piece's score is the rank of what it is merged from
            ranks: dict[str, int] = {}
            for rank, pair in enumerate(model["merges"]):
                ranks.setdefault("".join(pair.split(" ") if isinstance(pair, str) else pair), rank)
            by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
            scores = {piece: -float(ranks.get(piece, len(ranks))) for piece in by_id}
        else:
            scores = {piece: float(score) for piece, score in model["vocab"]}
        pieces = [piece for piece in scores if piece not in added]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HeedError(f"{path}: not the tokenizer of such a model; put {MODEL_FILE} next to it.") from None
    values = {
        "kind": "bpe" if model["type"] == "BPE" else "unigram",
        "normalizer": rules or "",
        "pieces": [*OF_SENTENCEPIECE, *pieces],
        "scores": [0.0] * len(OF_SENTENCEPIECE) + [scores[piece] for piece in pieces],
        "types": [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * len(pieces),
    }
    return validated(SentencePieceModel, values, where=str(path))
