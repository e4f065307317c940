"""What a request is refused with."""

from collections.abc import Mapping

DEEPL_PATHS = ("/v2/", "/v3/")  # where errors are in DeepL's form


class HTTPError(Exception):
    """A refused request: an HTTP status and one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})
