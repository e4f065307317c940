"""Documents in and out with their layout: plain text, Markdown, subtitles, HTML, .docx."""
