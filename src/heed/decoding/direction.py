"""From which language into which: what is chosen, what tells the model so, and codes that a text begins with."""

from dataclasses import dataclass, field, replace

from heed.config import shown
from heed.errors import HeedError, check_type
from heed.model_folder import UNKNOWN_LANGUAGES, ModelCard
from heed.text.languages import SEVERAL, Languages, find_language, is_known
from heed.text.line_rules import is_blank
from heed.text.prefix import NO_PREFIX, Prefix
from heed.text.tokenizer_kinds import AnyTokenizer


@dataclass(frozen=True)
class Direction:
    """A source and a target language. before: ids in front of every source's; forced: how every target begins.

    of_several: the languages of the model, if it has several. codes: what a text may begin with, such as >>fra<<, to
    say another target. is_open: whether a text must, or none can be translated at all.
    """

    languages: tuple[str, str]
    before: tuple[int, ...] = ()
    forced: Prefix = NO_PREFIX
    of_several: Languages | None = None
    is_open: bool = False
    codes: dict[str, int] = field(default_factory=dict)  # of a text's first word → the id

    @classmethod
    def of(cls, card: ModelCard, tokenizer: AnyTokenizer) -> "Direction":
        """That of a model's card: of several languages those that it names, if it does."""
        codes = tokenizer.language_codes
        several = Languages.model_validate(card.languages) if card.languages else None
        if several is None and len(codes) > 1:  # OPUS-MT's: the text says the target
            several = Languages.of_codes(codes, source=card.src)
        if several is None:
            return cls((card.src, card.tgt))
        open_one = cls((card.src, card.tgt), of_several=several, is_open=True, codes=codes)
        if card.tgt == SEVERAL:
            return open_one
        try:
            return replace(open_one.between(card.src, card.tgt), codes=codes)
        except HeedError:
            # A model that was trained on for another language than its vocabulary has codes of needs none.
            one_language = codes and not card.languages and is_known(card.tgt)
            return cls((card.src, card.tgt)) if one_language else open_one

    def between(self, source: str | None, target: str | None) -> "Direction":
        """These languages in place of its own. HeedError if the model does not translate between them."""
        if source is None and target is None:
            return self
        check_type(str | None, "a language's code", source=source, target=target)
        if self.of_several is None:
            for code, known in zip((source, target), self.languages, strict=True):
                if code is not None and known not in UNKNOWN_LANGUAGES and find_language(code, [known]) is None:
                    raise HeedError(f"{shown(code)}: the model translates {' → '.join(self.languages)} only.")
            return self
        own = [None if code == SEVERAL else code for code in self.languages]
        src, tgt = self.of_several.pair(source or own[0], target or own[1])
        before, forced = self.of_several.before(src, tgt), self.of_several.forced(tgt)
        return Direction((src, tgt), tuple(before), forced, self.of_several)

    def check(self) -> None:
        """HeedError if the model must be told its languages first."""
        if self.is_open and not self.codes:
            assert self.of_several is not None
            self.of_several.pair(*(None if code == SEVERAL else code for code in self.languages))

    def read(self, text: str) -> tuple[tuple[int, ...], str]:
        """The ids in front of this text's, and the text without the code that it may begin with.

        HeedError for a text without one, if that alone says the target.
        """
        if is_blank(text) or not (self.codes or self.is_open):
            return self.before, text
        rest = text.lstrip()
        code = rest[: rest.find("<<") + 2] if rest.startswith(">>") else ""
        if code not in self.codes:
            if not self.is_open:
                return self.before, text
            some = ", ".join(list(self.codes)[:8])
            raise HeedError(
                f"{shown(text[:60])}: the model translates into {len(self.codes)} languages, and the text does not "
                f"begin with one's code, such as {some}; or name it for all texts (--to CODE, in Python target=…)."
            )
        return (self.codes[code],), rest[len(code) :]
