"""Languages by code: their names, and which of them a text is in."""

from collections.abc import Collection, Iterable

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from heed.runtime.files import no_temporary_files

# fmt: off
NAMES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer",
    "kn": "Kannada", "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lo": "Lao",
    "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål", "ne": "Nepali", "nl": "Dutch",
    "nn": "Norwegian Nynorsk", "no": "Norwegian", "oc": "Occitan", "pa": "Punjabi", "pl": "Polish", "ps": "Pashto",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian",
    "so": "Somali", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil",
    "te": "Telugu", "tg": "Tajik", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese", "zu": "Zulu",
}
# fmt: on


def language_name(code: str) -> str:
    """Its English name; the code itself if there is none here."""
    return NAMES.get(code, code)


def known_code(code: str, known: Collection[str]) -> str:
    """The known code that a client means by this one, or `code` in lower case if there is none.

    Case and the kind of hyphen make no difference, and a region is only needed to tell codes apart: EN, en-US and en_GB
    all mean en, unless en-US is known too; pt means pt-BR if no other Portuguese is known.
    """
    wanted = _normalize(code)
    language = wanted.partition("-")[0]
    names = {_normalize(name): name for name in known}
    regions = [name for name in names if name.partition("-")[0] == language]
    if wanted in names:
        return names[wanted]
    if language in names:
        return names[language]
    return names[regions[0]] if wanted == language and len(regions) == 1 else wanted


def _normalize(code: str) -> str:
    return code.strip().lower().replace("_", "-")


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
        found = [(str(language), float(p)) for language, p in self._identifier.rank(text) if language in self._known]
        return found + [(language, 0.0) for language in self._languages if language not in self._known]
