#!/usr/bin/env bash
# i18next with the two plural forms of Spanish, item_one and item_other, as gettext, Rails and most translation tools
# know them, and the count 1,000,000.
# Expected: item_other, as for 2 or 999,999.
# Happens: Unicode's rules give Spanish, French, Italian and Portuguese a third form for whole millions, and i18next does
# not fall back to "other" for it: it shows the form of the fallback language (here English), or, without one, the key.
# Seen with i18next 25.10.10, Node 20.20.2 (ICU 78.2).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit i18next@25.10.10 > /dev/null
cat > show.cjs <<'EOJ'
const i18next = require('i18next');

const resources = {
  es: { translation: { item_one: '{{count}} archivo', item_other: '{{count}} archivos' } },
  en: { translation: { item_one: '{{count}} file', item_other: '{{count}} files' } },
};
(async () => {
  const found = [];
  for (const fallbackLng of ['en', false]) {
    const shown = i18next.createInstance();
    await shown.init({ lng: 'es', fallbackLng, resources, showSupportNotice: false });
    for (const count of [2, 999999, 1000000]) found.push(shown.t('item', { count }));
  }
  console.log(found);
  const expected = ['2 archivos', '999999 archivos', '1000000 files', '2 archivos', '999999 archivos', 'item'];
  process.exit(JSON.stringify(found) === JSON.stringify(expected) ? 0 : 1);
})();
EOJ
node show.cjs
