"""Which language a text is in, by the package py3langid of the extra `serve`."""

from collections.abc import Iterable

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from heed.runtime.files import no_temporary_files


class LanguageDetector:
    """Tells in which of some languages a text is."""

    def __init__(self, languages: Iterable[str]):
        """HeedError if the folder of temporary files has no room for what it knows."""
        self._languages = sorted(set(languages))
        try:  # which is unpacked into a temporary file
            self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        except OSError as error:
            raise no_temporary_files(error) from None
        self._known = [language for language in self._languages if language in set(self._identifier.labels)]

    def rank(self, text: str) -> list[tuple[str, float]]:
        """The languages with their probabilities among all that the detector knows, the most probable first.

        A text in another language has low ones. Languages that the detector does not know come last, with 0; so does
        every language for a text without letters.
        """
        if not any(c.isalpha() for c in text) or not self._known:
            return [(language, 0.0) for language in self._languages]
        # The detector knows words by the spaces around them, and hardly any in capitals.
        padded = f" {text.lower() if text.isupper() else text} "
        found = [(str(language), float(p)) for language, p in self._identifier.rank(padded) if language in self._known]
        return found + [(language, 0.0) for language in self._languages if language not in self._known]

    def most_probable(self, text: str) -> tuple[str, float]:
        """The language of a text among all that the detector knows, and its probability; ("", 0) without letters."""
        if not any(c.isalpha() for c in text):
            return "", 0.0
        language, probability = self._identifier.classify(text)
        return str(language), float(probability)

    def unknown(self) -> list[str]:
        """The languages that the detector does not know."""
        return [language for language in self._languages if language not in self._known]
