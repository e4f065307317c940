"""The fields of requests: a model for each endpoint says what is checked, and what /spec tells of it.

A validator raises HTTPError where pydantic's own message would not do.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from heed.apps.documents.text.atoms import kept_patterns
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.specification import BYTES, COUNT, TEXT, TEXTS

MAX_CODE = 100  # characters of a language's code


class MayBeEmpty:
    """Marks a field in which "" is a text, not a field that is left out."""


class Fields(BaseModel):
    """The fields of an endpoint. Others are ignored; null and "" are as if the field were left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        empty = _may_be_empty(cls)
        return {name: value for name, value in fields.items() if value is not None and (value != "" or name in empty)}


@cache
def _may_be_empty(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if MayBeEmpty in field.metadata}


Asked = TypeVar("Asked", bound=BaseModel)


def read(model: type[Asked], fields: Mapping[str, Any], *, max_alternatives: int = 0) -> Asked:
    """The fields, checked. HTTPError, in one line, for the first that is missing or wrong."""
    try:
        return model.model_validate(fields, context=max_alternatives)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_input=False)[0]
    name = error["loc"][0]
    if error["type"] == "missing":
        raise HTTPError(400, f"Invalid request: missing {name} parameter")
    if error["type"] == "literal_error":
        raise HTTPError(400, f"{name} must be {error['ctx']['expected']}".replace("'", ""))
    raise HTTPError(400, f"Invalid request: {name} parameter is not a text")


def check_text(text: str, name: str) -> str:
    """The text, if UTF-8 can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise HTTPError(400, f"Invalid request: {name} parameter holds half a surrogate pair") from None
    return text


def _check_text(text: str, info: ValidationInfo) -> str:
    return check_text(text, info.field_name or "")


def _check_code(code: str) -> str:
    """The code, if it is not too long for one: it is looked up for each of a request's texts."""
    if len(code) > MAX_CODE:
        raise HTTPError(400, f"{code[:20]} is not supported")
    return code


def as_list(value: Any) -> list[Any]:
    """A list of one, unless it is a list."""
    return value if isinstance(value, list) else [value]


def _n_alternatives(value: Any, info: ValidationInfo) -> int:
    """A count, as a number or in digits, perhaps with a fraction of zeros; cut to the most, which is info.context."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 9:
            raise ValueError
        number = int(value) if isinstance(value, int) else _whole(float(value))
    except (ValueError, OverflowError):
        raise HTTPError(400, f"Invalid request: {info.field_name} parameter is not a whole number") from None
    most: Any = info.context
    if number < 0:
        raise HTTPError(400, f"Invalid request: {info.field_name} ({number}) is negative")
    return int(min(number, most))


def _whole(value: float) -> int:
    """The integer that a client without integers writes as 2.0. ValueError if it is not one."""
    if value != int(value):
        raise ValueError
    return int(value)


def _are_expressions(keep: tuple[str, ...]) -> tuple[str, ...]:
    """The expressions. HeedError if one may be slow, or is none."""
    kept_patterns(keep)
    return keep


class File(NamedTuple):
    """A file of a multipart form."""

    name: str
    content: bytes


Text = Annotated[str, AfterValidator(_check_text)]
# Without FailFast pydantic would describe each wrong part of a list, of which one is reported.
Texts = Annotated[list[Text], FailFast(), BeforeValidator(as_list), WithJsonSchema(TEXTS), MayBeEmpty]
Code = Annotated[Text, AfterValidator(_check_code)]
Keep = Annotated[
    tuple[Text, ...],
    BeforeValidator(as_list),
    AfterValidator(_are_expressions),
    WithJsonSchema(TEXTS),
    Field(description="Regular expressions of what stays as it is; the guide says which are allowed."),
]
Attributes = Annotated[
    Literal["all", "none"],
    Field(description="Whether words that readers see in the markup are translated. Default: all."),
]
GLOSSARY_ID: Any = Field(default="", description="A glossary of the two languages, which have to be given.")
Source = Annotated[Code, Field(description='Code of its language, or "auto".')]
Target = Annotated[Code, Field(description="Code of the language to translate into.")]
Alternatives = Annotated[int, BeforeValidator(_n_alternatives), WithJsonSchema(COUNT)]
Upload = Annotated[InstanceOf[File], WithJsonSchema(BYTES)]
# Already checked, in its header or in one of three fields.
Key = Annotated[Any, WithJsonSchema(TEXT), Field(description="The client's key, if the server asks for one.")]
