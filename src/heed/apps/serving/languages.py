"""Languages by code, and their names."""

from collections.abc import Collection

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
