#!/usr/bin/env bash
# A slide of PowerPoint in which one text box, and the title of another slide, have a formula in their text, read with
# python-pptx and with markitdown, which builds on it.
# Expected: the text box with its words, without the formula or with some sign for it; python-docx reads a paragraph of
# Word with a formula so.
# Happens: the whole box is missing from slide.shapes, with all its words, and shapes.title is None. PowerPoint puts a
# shape with a formula into mc:AlternateContent, beside a picture of it for versions before 2010, and python-pptx looks
# at the direct children of the slide alone. Nothing is raised or logged: a lecture that is translated, or read for a
# corpus, loses just the texts with mathematics. The words are in the XML.
# Seen with python-pptx 1.0.2, markitdown 0.1.9, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q python-pptx==1.0.2 markitdown==0.1.9
venv/bin/python - <<'EOP'
import copy

import markitdown
import pptx
from pptx.oxml import parse_xml
from pptx.util import Inches

DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
DRAWING_2010 = "http://schemas.microsoft.com/office/drawing/2010/main"
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"
CHOICES = "http://schemas.openxmlformats.org/markup-compatibility/2006"


def with_formula(shape):
    """Puts the shape where PowerPoint puts one with a formula: beside one without it, for programs older than 2010."""
    element = shape._element
    choices = parse_xml(
        f'<mc:AlternateContent xmlns:mc="{CHOICES}"><mc:Choice xmlns:a14="{DRAWING_2010}" Requires="a14"/>'
        "<mc:Fallback/></mc:AlternateContent>"
    )
    element.addprevious(choices)
    choices[1].append(copy.deepcopy(element))
    choices[0].append(element)
    choices[1].find(f".//{{{DRAWING}}}t").text = " "
    element.find(f".//{{{DRAWING}}}p").append(
        parse_xml(
            f'<a14:m xmlns:a14="{DRAWING_2010}" xmlns:m="{MATH}"><m:oMath><m:r><m:t>E</m:t></m:r></m:oMath></a14:m>'
        )
    )


show = pptx.Presentation()
for title, words in (("Energy", "A body at rest has an energy of "), ("On ", "no formula")):
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = title
    slide.shapes.add_textbox(Inches(1), Inches(2), Inches(5), Inches(1)).text_frame.text = words
with_formula(show.slides[0].shapes[1])
with_formula(show.slides[1].shapes.title)
show.save("a.pptx")
slides = pptx.Presentation("a.pptx").slides
found = [[shape.text_frame.text for shape in slide.shapes] for slide in slides]
text = markitdown.MarkItDown().convert("a.pptx").text_content
print(found, slides[1].shapes.title, text, sep="\n")
assert found == [["Energy"], ["no formula"]] and slides[1].shapes.title is None
assert "Energy" in text and "no formula" in text and "rest" not in text and "On" not in text
assert b"A body at rest" in slides[0].part.blob
EOP
