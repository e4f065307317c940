#!/usr/bin/env bash
# i18next-conv turns a gettext file into a JSON locale of i18next, and a locale into a gettext file; both have plurals.
# Expected: plural forms under the suffixes that i18next reads today (_one, _other), and back again as msgid_plural.
# Happens: by default the second form is written under _plural, which i18next no longer reads: it shows the singular for 5.
# The other way, _one and _other are taken for contexts: `file_other` becomes an entry with msgctxt "other" and without
# plural forms, so a translator never sees a plural, and a list becomes one text with line ends.
# Seen with i18next-conv 15.1.2 and i18next 27.1.5, Node; compatibilityJSON: "v4" mends the first direction alone.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm init -y >/dev/null && npm install --silent i18next-conv@15.1.2 i18next@27.1.5 >/dev/null
cat > convert.mjs <<'EOF'
import assert from "node:assert";
import i18next from "i18next";
import { gettextToI18next, i18nextToPo } from "i18next-conv";

const po = `msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "file"
msgid_plural "files"
msgstr[0] "eine Datei"
msgstr[1] "{{count}} Dateien"
`;
async function shown(options) {
  const translation = JSON.parse(await gettextToI18next("de", po, options));
  const instance = i18next.createInstance();
  await instance.init({ lng: "de", resources: { de: { translation } } });
  return [Object.keys(translation).join(" "), instance.t("file", { count: 5 })];
}
const byDefault = await shown({}), asV4 = await shown({ compatibilityJSON: "v4" });
console.log("by default:", byDefault, "as v4:", asV4);
assert.deepEqual(byDefault, ["file file_plural", "eine Datei"]);
assert.deepEqual(asV4, ["file_one file_other", "5 Dateien"]);

const locale = { file_one: "eine Datei", file_other: "{{count}} Dateien", days: ["Mo", "Di"] };
const back = (await i18nextToPo("de", JSON.stringify(locale))).toString();
console.log(back);
assert(back.includes('msgctxt "other"\nmsgid "file"\nmsgstr "{{count}} Dateien"') && !back.includes("msgid_plural"));
assert(back.includes('msgid "days"\nmsgstr ""\n"Mo\\n"\n"Di"'));
EOF
node convert.mjs
