"""PowerPoint's .pptx: the paragraphs of slides and notes, tables among them; all other files keep their bytes."""

from heed.apps.documents.formats.office_parts import drawn_texts, parts_of_types, types_of
from heed.apps.documents.formats.packages import check_length, read_files, write_files
from heed.apps.documents.formats.xml_tokens import parts_job, read_parts
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError


def pptx_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The presentation in the other language. HeedError, which calls it `name`, if it is damaged or hostile."""
    files = read_files(content, name=name, kind=".pptx")
    parts = parts_of_types(files, ("slide+xml", "notesSlide+xml"), name)
    if not parts and not any("presentationml" in kind for kind in types_of(files, name).values()):
        raise HeedError(f"{name}: no .pptx document: it holds no slides.")
    check_length(files, parts, max_text, name)
    documents = read_parts(files, parts, name)
    texts = {part: (document, list(drawn_texts(document, options))) for part, document in documents.items()}
    return write_files(files, (yield from parts_job(texts, options)))
