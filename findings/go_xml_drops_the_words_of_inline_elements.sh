#!/usr/bin/env bash
# Go's encoding/xml: a segment of TMX or XLIFF with inline elements (<hi>, <g>, <mrk>), read into a string.
# Expected: all words of the segment, as with a DOM's textContent, or an error since the element has children.
# Happens: the string has the characters that stand directly in the element alone: "Press <hi>Save</hi> now" is
# "Press  now", without an error, and a corpus read so loses just the words that were marked. `xml:",innerxml"` has
# the markup, which then must be taken apart by hand.
# Seen with Go 1.19.8 (Debian 12: apt-get install golang-go).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
go version
cat > main.go <<'EOG'
package main

import (
	"encoding/xml"
	"fmt"
	"os"
)

func main() {
	var unit struct {
		Text  string `xml:"seg"`
		Whole struct {
			Markup string `xml:",innerxml"`
		} `xml:"tuv>seg"`
	}
	text := `<tu><seg>Press <hi type="b">Save</hi> now</seg><tuv><seg>Press <hi>Save</hi></seg></tuv></tu>`
	err := xml.Unmarshal([]byte(text), &unit)
	fmt.Printf("%v %q %q\n", err, unit.Text, unit.Whole.Markup)
	if err != nil || unit.Text != "Press  now" || unit.Whole.Markup != "Press <hi>Save</hi>" {
		os.Exit(1)
	}
}
EOG
GOCACHE=$folder/cache GO111MODULE=off go run main.go
