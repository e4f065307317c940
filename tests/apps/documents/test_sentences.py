"""Where sentences end: one a bar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.apps.documents.text.sentences import splitter
from heed.apps.documents.words import table

TEXTS = """
en: See Vol. 4 and Figs. 1 and 2. | Ask Lt. Gen. Hale or Mrs. Dale. | We met at St. Ann's on Dec. 5.
en: The train leaves at 7 p.m. Friday. | It comes at 9 a.m. | They wait in the U.S. Capitol. | J. K. Rowling wrote.
en: All is well. | (So they say.) | [Really?] | "Yes." | He said (twice): "No." | That was 1999. | In 2000, it ended.
en: They sat with me. | She saw pp. 3-5 of fn. 7. | 1. First we cook. | Plan B. | Then we eat.
de: Der 1. Weltkrieg endete am 11. November 1918. | Der König war Friedrich II. Preußens Heer. | Er kam auf Platz 3.
de: Dann ging Prof. Dr. Weiß in die Bahnhofstr. 5 im 2. Stock. | Siehe Abb. 1 auf S. 4, z. B. da. | Es war 5.
fr: M. Petit et Mme Roche, p. ex. Anne, habitent ici. | J.-C. Roux vient. | Voir chap. 2, no. 3 et p. 4. | Il part.
es: El Sr. Gil y la Dra. Paz llegan a las 5 p. m. del lunes. | Véase la pág. 3. | D. Luis vino. | ¿Quién? | ¡Yo!
it: Il Dott. Neri e l'on. Verdi parlano. | Vedi pag. 5 e l'art. 7. | S. Chiara vive in via Po n. 3. | Chi è? | Io.
pt: O Sr. Reis e a Dra. Lima falam. | Veja a pág. 8 e o cap. 2. | V. Exa. sabe, p. ex. hoje. | D. Ana mora na Av. Sul.
cs: V roce 1848. a dne 5. května žil v XIX. století. | „Ano.“ řekl. | Bylo jich 7. | Pak odešli.
lv: Tas bija 21. gadsimtā. | Sv. Pētera baznīca ir liela.
pl: Ks. Lis mieszka przy ul. Długiej. | Dn. 7. czerwca śpi.
nl: Dhr. en Mw. Vos zijn er niet. | 's Avonds ziet Ds. Kok blz. 5 en 6. | 't Is laat.
ro: Dna. Ene vine la str. Lungă nr. 5. | E târziu.
sv: Frk. Ek läser kap. 3. | ”Hej!” sa Eva. | Sedan gick hon.
vi: PGS.TS. Lan ở TP. Huế. | ThS. Minh đọc tr. 5.
id: Bpk. Budi tinggal di Jl. Merdeka No. 7. | Lihat hlm. 3.
hi: प्रो. वर्मा और पं. नेहरू आए। | पृ. ५ देखो।
bn: ড. দাস ও মোঃ. করিম এলেন। | তারা গেলেন।
mr: प्रा. पाटील व सौ. मीरा आल्या. | पृ. ५ पहा.
sr: Проф. Илић и г. Марић су овде. | Др. Кос није.
km: គាត់ទិញត្រី សាច់ ។ល។ | គាត់ទៅផ្ទះ៕
bo: ང་ལ་དེབ་ཡོད། | ཁྱེད་རང་ག་རེ་གནང་།
ja: 父は「行くよ！」と叫んだ。 | 「何？」って母が聞いた。 | 「うん。」 | 「そう。」
zh: “你好。”他说。 | 他走了。 | “来！” | “好。”
"""


@pytest.mark.parametrize("line", TEXTS.strip().splitlines())
@pytest.mark.parametrize("white_space", [" ", "\n", "\n\n", "  "])
def test_sentences_end_where_readers_end_them(line, white_space):
    language, text = line.split(": ", 1)
    sentences = [sentence.replace(" ", white_space) for sentence in text.split(" | ")]
    text = white_space.join(sentences)
    assert [text[start:end] for start, end in splitter(language)(text)] == sentences


PIECES = st.sampled_from(
    "The dog runs. (A cat.) [ ] ( ) \" ' Mr. 2. II. 犬。 「はい。」 と 说 ។ e.g. ... ? ! The he U.S. 3".split()
)


@given(
    st.sampled_from([*table("abbreviations"), "ja", "xx", "en-GB"]),
    st.lists(st.tuples(PIECES, st.sampled_from(["", " ", "\n", "\u00a0"])).map("".join)).map("".join),
)
def test_nothing_but_white_space_is_between_sentences(language, text):
    last = 0
    for start, end in splitter(language)(text):
        assert last <= start < end and not text[last:start].strip()
        assert text[start:end] == text[start:end].strip()
        last = end
    assert not text[last:].strip()
