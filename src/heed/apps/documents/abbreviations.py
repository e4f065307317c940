"""Full stops that do not end a sentence, in six languages: after abbreviations, ordinals and times.

Lists beside sentencex, which knows more languages and splits behind many of these.
"""

import re
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True)
class Abbreviations:
    """The abbreviations of a language, in small letters, without the last full stop.

    titles: before a name. ambiguous: titles, or names of streets, that may also end a sentence. numbered: before a
    number. inner: always within a sentence. starters: begin a sentence, so that a full stop before them does not belong
    to an initial or an ordinal. dated: behind the times of `times`, and behind ordinals. before_ordinal: behind them, a
    number with a full stop is an ordinal (where ordinals are written so).
    """

    titles: frozenset[str]
    ambiguous: frozenset[str] = frozenset()
    numbered: frozenset[str]
    inner: frozenset[str]
    starters: frozenset[str]
    times: frozenset[str] = frozenset()
    dated: frozenset[str] = frozenset()
    before_ordinal: re.Pattern[str] | None = None


ABBREVIATIONS = {
    "en": Abbreviations(
        titles=_words(
            "mr mrs ms mx dr drs prof profs messrs mmes rev hon gen col lt sgt capt cpl maj adm cmdr pvt sen rep gov "
            "pres supt insp det atty fr bro"
        ),
        ambiguous=_words("st mt ft sr"),
        numbered=_words(
            "no nos nr vol vols fig figs p pp art arts sec secs sect ch chap chs chaps eq eqs tab tabs ex pt pts app "
            "para paras par ver v op bk ed eds col cols ll n nn fn fns ref refs approx est ca c jan feb mar apr jun "
            "jul aug sep sept oct nov dec"
        ),
        inner=_words("e.g i.e eg ie cf vs v viz approx incl esp resp al"),
        times=_words("a.m p.m"),
        dated=_words(
            "monday tuesday wednesday thursday friday saturday sunday january february march april may june july "
            "august september october november december est edt et cst cdt ct mst mdt pst pdt pt gmt bst utc cet cest"
        ),
        starters=_words(
            "a about after all also although an and another any are as at be because before both but by can did do "
            "does each even every everyone few finally first for from had has have he her here his how however i i'm "
            "if in is it it's its just later let many maybe meanwhile more most my never no nobody none nor not now of "
            "often on once one only or other our perhaps please she since so some soon still such than that that's the "
            "their then there these they this those though thus to today tomorrow two under until up was we were what "
            "when where whether which while who why will with would yes yesterday yet you your"
        ),
    ),
    "de": Abbreviations(
        titles=_words("hr fr frl dr drs prof dipl ing mag hl hll st univ geb msgr pfr"),
        numbered=_words(
            "nr nrn bd bde s abb abbs abs art kap tab ziff anm aufl jg str tel hs z zl rn rz lfg sp fig vol ca etwa "
            "max min mind par bl jan feb mär apr jun jul aug sep sept okt nov dez"
        ),
        inner=_words(
            "z.b d.h u.a i.d.r z.t u.u v.a s.a s.u s.o i.a a.d i.v ca vgl bzw sog bspw evtl ggf inkl exkl zzgl bes "
            "ehem engl frz lat griech dt insb mind max p.a"
        ),
        dated=_words(
            "januar jänner februar feber märz april mai juni juli august september oktober november dezember "
            "jahrhundert jahrhunderts jahrhunderte jh jahrtausend weltkrieg weltkriegs stock etage liga geburtstag"
        ),
        before_ordinal=re.compile(
            r"\b(?:de[rmns]|die|das|am|im|zum|zur|vom|beim|ins|ab|bis|seit|und|oder"
            r"|(?:[dms]?ein|ihr|unse?r|eue?r|jed|dies|kein|welch)(?:e[mnrs]?)?)$",
            re.IGNORECASE,
        ),
        starters=_words(
            "aber abends alle allerdings als also am an andere anders auch auf aus außerdem bei beide beim bereits "
            "bis bisher da dabei dafür dagegen daher damals damit danach daneben dann daran darauf darum das dass "
            "davon davor dazu dem den denn dennoch der deren des deshalb dessen deswegen die dies diese diesem diesen "
            "dieser dieses doch dort du durch ein eine einem einen einer eines einige endlich er erst es etwas für "
            "gegen gestern gibt hat haben hatte heute hier hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im "
            "immer in ins inzwischen ist ja jede jeder jedes jedoch jetzt kann kein keine könnte man manche manchmal "
            "mehr mein meine mit morgen nach nachdem natürlich neben nein nicht nichts nie niemand noch nun nur ob "
            "obwohl oder oft ohne schließlich schon sehr sein seine seinem seinen seiner seit sie sind so sobald "
            "sogar sonst später über um und uns unser unsere unter viele vielleicht vom von vor wann war waren warum "
            "was weder wegen weil weitere welche wenn wer wie wieder wir wird wo zu zudem zuerst zum zur zwar zwei "
            "zwischen"
        ),
    ),
    "fr": Abbreviations(
        titles=_words("m mm mme mmes mlle mlles mgr me mes dr drs pr prs st ste sts stes vve"),
        numbered=_words(
            "n no nos nr nº p pp vol vols t chap ch art arts al fig figs tabl tab ann éd ed env tél "
            "janv févr avr juil sept oct nov déc"
        ),
        inner=_words("p.ex ex c.-à-d c.à.d c-à-d cf env av apr resp vs 1er"),
        starters=_words(
            "à ainsi alors après au aucun aujourd'hui aussi autre aux avant avec car ce cela celle celui ces cet cette "
            "chaque comme comment dans de depuis des donc du elle elles en encore enfin ensuite entre est et été hier "
            "ici il ils je jamais la le les leur leurs lorsque lui ma mais malgré même mes moi mon ne ni non nos notre "
            "nous on ou où oui par parce parfois pendant personne peu plus plusieurs pour pourquoi pourtant puis quand "
            "que quel quelle qui quoi rien sa sans se selon ses si son sous souvent sur ta tandis tes toi ton toujours "
            "tous tout toute toutefois toutes très tu un une vers voici voilà vos votre vous y"
        ),
    ),
    "es": Abbreviations(
        titles=_words(
            "sr sra srta sres sras dr dra dres dras dña da dn prof profa lic ing arq gral cnel cap tte sto sta fr mons "
            "av avda excmo excma ilmo ilma pbro rvdo hno hna"
        ),
        ambiguous=_words("d ud uds vd vds s c"),
        numbered=_words(
            "n no nos nro núm núms nº pág págs p pp cap caps art arts fig figs vol vols t tomo ed tel tfno aprox apdo "
            "párr secc tab ej ene febr abr jun jul ago sept oct nov dic"
        ),
        inner=_words("p.ej ej aprox cf vs ee"),
        times=_words("a.m p.m m"),
        starters=_words(
            "a además ahora al algo alguien algunas algunos allí antes aquel aquella aquí así aún aunque ayer cada "
            "casi como cómo con cual cualquier cuando cuándo de del desde después donde dónde dos durante e el él ella "
            "ellas ellos en entonces entre era es esa esas ese eso esos esta está estaba están estas este esto estos "
            "fue fueron había hace hacia hasta hay hoy la las le les lo los luego más me mi mientras mis mucho muchos "
            "muy nada nadie ni ningún no nos nosotros nuestra nuestro nunca o otra otro para pero poco por porque "
            "primero pues que qué quien quién se según ser si sí siempre sin sino sobre solo son su sus también "
            "tampoco tan tanto te tiene toda todas todo todos tras tu tú tus un una unas uno unos usted ustedes y ya yo"
        ),
    ),
    "it": Abbreviations(
        titles=_words(
            "sig sigg sig.ra sig.na sigra sig.rina dott dott.ssa dr dr.ssa prof prof.ssa proff avv ing arch geom rag "
            "on mons don cav comm gen col cap ten serg mar egr gent spett ill.mo"
        ),
        ambiguous=_words("s ss d"),
        numbered=_words(
            "n nn nr num pag pagg p pp cap capp art artt fig figg vol voll t tab tabb ed par tel sez lett co c ca "
            "circa es gen febb apr giu lug ag sett ott nov dic"
        ),
        inner=_words("p.es es cfr ca vs ad.es"),
        starters=_words(
            "a ad adesso ai al alcune alcuni alla alle allora altri anche ancora appena avere c'è che chi ci come con "
            "così cosa da dal dalla davanti degli dei del della delle dentro di dopo dove due dunque durante e è ecco "
            "ed era erano essa esse essi fino fra fu già gli ha hanno i ieri il in infatti infine intanto invece io "
            "l la le lei lo loro lui ma mai mentre mi mia mio molte molti ne nei nel nella nessuno niente noi non "
            "nostro o ogni oggi ogni oppure ora per perché però più poi poiché prima proprio qualche qualcuno quale "
            "quando quanto quel quella quelle quelli quello questa queste questi questo qui quindi se secondo sempre "
            "senza si sì sia sono sopra sotto spesso sta su sua subito sue sul sulla suo suoi tra tu tua tutta tutte "
            "tutti tutto un una uno vi voi"
        ),
    ),
    "pt": Abbreviations(
        titles=_words(
            "sr sra srs sras srta dr dra drs dras prof profa profs eng enga arq exmo exma ilmo ilma gen cel cap ten "
            "av pe mons sto sta dep vossa exa"
        ),
        ambiguous=_words("d v r s"),
        numbered=_words(
            "n no nos nº núm pág págs pag p pp cap caps art arts fig figs vol vols t tab ed tel inc par séc aprox jan "
            "fev mar abr mai jun jul ago set out nov dez"
        ),
        inner=_words("p.ex ex cf vs aprox"),
        times=_words("a.m p.m"),
        starters=_words(
            "a agora ainda alguém alguns além ali antes ao aos apenas após aquela aquele aqui as às assim até cada com "
            "como contudo da das de depois desde do dois dos durante e é ela elas ele eles em então enquanto entre era "
            "essa esse esta está estão este eu foi foram há hoje isso isto já lá logo mais mas me mesmo meu minha "
            "muito muitos na nada não nas nem nenhum no nos nossa nosso nós nunca o onde ontem os ou outra outro para "
            "pela pelo pois por porém porque primeiro qual quando que quem se segundo sem sempre ser seu seus sim só "
            "sob sobre sua suas também tão tem tinha toda todas todo todos três tu tudo um uma umas uns você vocês"
        ),
    ),
}  # fmt: skip
_LAST_WORD = re.compile(r"(?:^|[\s(\[{\"'“„«»‚‘’])([^\s(\[{\"'“„«»‚‘’]{1,30})\.$")
_FIRST_WORD = re.compile(r"[(\[\"'“„«]?((?:[^\W\d_]|['’](?=\w))+)")
_INITIAL = re.compile(r"(?:[^\W\d_][.-]+)*[^\W\d_]")  # "J", "U.S", "J.-C"
_ROMAN = re.compile(r"[IVXLC]{1,7}")
_NUMBER = re.compile(r"[(\[]?(?:\d|[IVXLC]{1,7}\b|[A-Za-z]?[-.]?\d)")
_NUMERAL = re.compile(r"\d++(?!\.\s+[^\W\d_])")
_MARKER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)]{1,2}\s*")  # of a list: "1.", "b)"
SEEN = 40  # characters before and behind a full stop, on which the rules depend


def ends_sentence(before: str, after: str, words: Abbreviations) -> bool:
    """Whether a sentence may end between these texts, which white space may separate, as far as a full stop tells."""
    after = after.lstrip()
    found = _LAST_WORD.search(before[-SEEN:])
    if not found or not after:
        return True
    word, following = found[1], _FIRST_WORD.match(after[:SEEN])
    lower, first = word.lower(), following[1] if following else ""
    starts = first.lower() in words.starters or re.split("['’]", first.lower())[0] in words.starters
    if lower in words.inner or (first and lower in words.titles):
        return False
    if _NUMBER.match(after) and (lower in words.numbered or (lower.endswith("str") and "str" in words.numbered)):
        return False  # also Hauptstr. 5
    if _NUMERAL.match(after) and word.isalpha() and word.islower() and len(word) <= 4 and lower not in words.starters:
        return False  # as short as most abbreviations: few sentences begin with a number
    if lower in words.times and (first.lower() in words.dated or first[:1].islower()):
        return False
    if lower in words.ambiguous:
        return not first or starts
    if first[:1].islower():  # who writes everything in small letters ends sentences with words
        is_short = word[0].isupper() and len(word) <= 4
        is_short |= word.isdecimal() and len(word) <= 3
        return lower not in words.numbered and not is_short and not _INITIAL.fullmatch(word)
    if _INITIAL.fullmatch(word) and (first or after[0].isdigit()):
        return bool(first) and starts
    return not _is_ordinal(word, before[-SEEN:][: found.start(1)], first, starts, words)


def _is_ordinal(word: str, before: str, first: str, starts: bool, words: Abbreviations) -> bool:
    if words.before_ordinal is None or not first or starts:
        return False
    if _ROMAN.fullmatch(word):  # Friedrich II.
        return before.rstrip().rpartition(" ")[2][:1].isupper()
    if not (word.isdecimal() and len(word) <= 3):
        return False
    return first.lower() in words.dated or words.before_ordinal.search(before.rstrip()) is not None


def is_marker(text: str) -> bool:
    """Whether it is nothing but the marker of a list's item."""
    return _MARKER.fullmatch(text) is not None
