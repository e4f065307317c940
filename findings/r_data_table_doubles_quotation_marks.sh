#!/usr/bin/env bash
# R's data.table writes pairs of sentences as a table with tabs (fwrite) and reads the file again (fread).
# Expected: the texts that were written; at least for a file of its own.
# Happens: fwrite puts a text with a quotation mark between quotation marks and doubles the mark, as CSV asks for; fread
# takes the outer marks off and leaves the doubled ones: He said "no". becomes He said ""no"". There is no warning, and
# each further round doubles them again. It also takes blanks off both ends of a text, and "NA" for a missing value.
# With quote = "" in both functions (and strip.white = FALSE, na.strings = NULL) the texts stay; R's own read.csv reads
# fwrite's marks.
# Seen with data.table 1.14.8, R 4.2.2 (Debian 12: apt-get install r-cran-data.table).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
cat >round.R <<'R'
suppressPackageStartupMessages(library(data.table))
pairs <- data.table(en = c("He said \"no\".", "plain"), de = c("Er sagte \"nein\".", "\"Ja\" steht da"))
fwrite(pairs, "once.tsv", sep = "\t")
once <- fread("once.tsv", sep = "\t")
fwrite(once, "twice.tsv", sep = "\t")
twice <- fread("twice.tsv", sep = "\t")
fwrite(pairs, "bare.tsv", sep = "\t", quote = FALSE)
bare <- fread("bare.tsv", sep = "\t", quote = "")
base <- read.csv("once.tsv", sep = "\t")
print(packageVersion("data.table")); print(once); print(twice); print(bare)
stopifnot(once$en[1] == "He said \"\"no\"\".", once$de[2] == "\"\"Ja\"\" steht da")
stopifnot(twice$en[1] == "He said \"\"\"\"no\"\"\"\".")
stopifnot(all(bare == pairs), all(base == as.data.frame(pairs)))
R
Rscript round.R
