#!/usr/bin/env bash
# EbookLib reads an EPUB in Arabic and writes it again, as programs that translate books do; nothing is changed between.
# Expected: the same pages.
# Happens: each page is built anew from the elements of its body. Text that stands in the body itself, before the first
# element, is gone. So are title, style and style sheet, and dir="rtl" and other attributes of <html> and <body>; lang is
# "en" on every page, though the book says "ar". Names of SVG lose their capitals (viewBox), so pictures change. Nothing
# is said. Programs that change the files in the archive themselves keep all of it.
# Seen with EbookLib 0.20, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q EbookLib==0.20
venv/bin/python - <<'EOP'
import zipfile

from ebooklib import epub

PAGE = """<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml" lang="ar" xml:lang="ar" dir="rtl">
<head><title>Chapter</title><style>p {color: green}</style><link rel="stylesheet" href="a.css" type="text/css"/></head>
<body class="chapter">Loose words<p>A paragraph<br/>and</p> a tail
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text>mark</text></svg></body></html>"""
BOOK = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">urn:x</dc:identifier>
<dc:title>Book</dc:title><dc:language>ar</dc:language>
<meta property="dcterms:modified">2026-01-01T00:00:00Z</meta></metadata>
<manifest><item id="page" href="page.xhtml" media-type="application/xhtml+xml"/>
<item id="css" href="a.css" media-type="text/css"/>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/></manifest>
<spine><itemref idref="page"/></spine></package>"""
NAV = """<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><head><title>Contents</title>
</head><body><nav epub:type="toc"><ol><li><a href="page.xhtml">Chapter</a></li></ol></nav></body></html>"""
ROOT = """<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="E/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""

files = {"mimetype": "application/epub+zip", "META-INF/container.xml": ROOT, "E/book.opf": BOOK}
files |= {"E/page.xhtml": PAGE, "E/nav.xhtml": NAV, "E/a.css": "p {margin: 0}"}
with zipfile.ZipFile("in.epub", "w") as archive:
    for name, content in files.items():
        archive.writestr(name, content)
epub.write_epub("out.epub", epub.read_epub("in.epub"))
with zipfile.ZipFile("out.epub") as archive:
    page = archive.read("EPUB/page.xhtml").decode()
    book = archive.read("EPUB/content.opf").decode()
print(page)
lost = ("Loose words", "<title", "<style", "a.css", "rtl", 'class="chapter"', "viewBox", 'lang="ar"')
kept = ("A paragraph", "a tail", "mark", "viewbox", 'lang="en"')
assert all(part in PAGE and part not in page for part in lost) and all(part in page for part in kept)
assert "<dc:language>ar</dc:language>" in book
EOP
