"""JSON that is damaged is told in one line."""

import pytest
from tests.runtime.conftest import one_line

from heed.errors import HeedError
from heed.runtime.json_files import read_json


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"null",
        b"",
        b'{"a": ',
        b"\xff\xfe",
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * (2**24 + 1),
    ],
    ids=["list", "null", "empty", "cut", "no UTF-8", "long integer", "deep", "long"],
)
def test_json_of_any_other_form_is_one_line(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(HeedError) as error:
        read_json(path)
    one_line(error, path)
