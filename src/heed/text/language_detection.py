"""Which language a text is in, by the package py3langid of the extra `serve`."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from heed.runtime.files import no_temporary_files
from heed.text.languages import table


@cache  # half a second to load, and nothing changes it
def _identifier() -> LanguageIdentifier:
    try:  # its model is unpacked into a temporary file
        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    except OSError as error:
        raise no_temporary_files(error) from None


class LanguageDetector:
    """Tells in which of some languages a text is.

    Their codes may be those of ISO 639, of FLORES and withdrawn ones, such as zh, zho_Hans and iw: languages.txt.
    """

    def __init__(self, languages: Iterable[str]):
        """HeedError if the folder of temporary files has no room for what it knows."""
        self._languages = sorted(set(languages))
        self._identifier = _identifier()
        self._families = {code: entry.detected_as for code, entry in table().items() if entry.detected_as}
        self._known = [language for language in self._languages if self.family(language)]

    def family(self, language: str) -> str | None:
        """The code under which `probabilities` has a language; None if the detector does not know it."""
        return self._families.get(language.replace("_", "-").partition("-")[0].lower())

    def rank(self, text: str) -> list[tuple[str, float]]:
        """The languages with their probabilities among all that the detector knows, the most probable first.

        A text in another language has low ones. Languages that the detector does not know come last, with 0; so does
        every language for a text without letters.
        """
        by_code = self.probabilities(text) if self._known else {}
        ranked = [(language, by_code.get(self.family(language) or "", 0.0)) for language in self._languages]
        return sorted(ranked, key=lambda one: -one[1])

    def probabilities(self, text: str) -> dict[str, float]:
        """Returns each language's probability, under the code of `family`; empty without letters."""
        by_code: dict[str, float] = defaultdict(float)
        # The detector knows words by the spaces around them, and hardly any in capitals.
        padded = f" {text.lower() if text.isupper() else text} "
        for label, probability in self._identifier.rank(padded) if any(map(str.isalpha, text)) else ():
            by_code[self._families.get(str(label), str(label))] += float(probability)
        return by_code

    def unknown(self) -> list[str]:
        """The languages that the detector does not know."""
        return [language for language in self._languages if language not in self._known]
