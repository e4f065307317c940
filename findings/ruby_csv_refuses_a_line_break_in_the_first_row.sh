#!/usr/bin/env bash
# Ruby's CSV on a table as spreadsheets write it: rows end in CR LF, a break inside a quoted cell is LF, and one stands
# in the first row, such as a heading of two lines.
# Expected: the table, as if the break stood in any other row.
# Happens: CSV finds out how rows end from the first break of the file, inside quotes or not, takes LF for it and raises
# MalformedCSVError ("Unquoted fields do not allow new line"). The other way round, CR LF in a quoted cell of a file whose
# rows end in LF, it does so too. The same cell in the second row is read; row_sep: "\r\n" reads both.
# Seen with Ruby 3.1.2, csv 3.2.2 (Debian 12: apt-get install ruby).
set -euo pipefail
ruby - <<'EOR'
require "csv"

def read(text, **options)
  CSV.parse(text, **options)
rescue CSV::MalformedCSVError => error
  error.message
end

first = "\"English\ntext\",German\r\none,eins\r\n"
found = [
  read(first), read("\"English\r\ntext\",German\none,eins\n"),
  read("en,de\r\n\"two\nlines\",zwei\r\n"), read(first, row_sep: "\r\n"),
]
puts RUBY_VERSION, CSV::VERSION, found.map(&:inspect)
exit 1 unless found[0].is_a?(String) && found[1].is_a?(String) && found[0].include?("Unquoted fields")
exit 1 unless found[2] == [["en", "de"], ["two\nlines", "zwei"]] && found[3].length == 2
EOR
