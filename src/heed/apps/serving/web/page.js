// The address, the clipboard, the theme; what is done with each element; the beginning.

// The address that LibreTranslate's page has, too: ?source=en&target=de&q=a+text
function readAddress() {
  const asked = new URLSearchParams(location.search), select = by("source-language");
  const source = asked.get("source"), target = asked.get("target");
  if ([...select.options].some(option => option.value === source)) select.value = source;
  offerTargets(target ?? by("target-language").value);
  if (asked.has("q")) box.value = asked.get("q");
  const missing = [[source, select.value], [target, by("target-language").value]].filter(([wanted, is]) => wanted && wanted !== is);
  if (missing.length) say(`This server does not translate ${missing.map(([code]) => code).join(" into ")}.`, "warn");
}

async function copy() {
  const text = outputText();
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // only a page from this machine or by HTTPS may use the clipboard
    const holder = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(holder);
    holder.select();
    document.execCommand("copy");
    holder.remove();
  }
  by("copy").textContent = "Copied";
  clearTimeout(timers.copied);
  timers.copied = setTimeout(() => { by("copy").textContent = "Copy"; }, 1500);
}

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
function dress(theme = remembered("localStorage", "heed-theme") ?? (systemIsDark.matches ? "dark" : "light")) {
  document.documentElement.dataset.theme = theme;
  by("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawing?.layOut();
}

// A browser may refuse to keep anything; then the page does without.
function remembered(storage, name) {
  try { return window[storage].getItem(name); } catch { return null; }
}

function remember(storage, name, value) {
  try { window[storage].setItem(name, value); } catch {}
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("localStorage", "heed-theme", theme);
  dress(theme);
}

box.addEventListener("input", event => { if (!event.isComposing) textChanged(); });
box.addEventListener("compositionend", textChanged);
document.addEventListener("selectionchange", () => { if (document.activeElement === box && !selected && finished) follow(); });
by("source-language").onchange = () => { showDetected(null); offerTargets(by("target-language").value); startAfresh(); };
by("target-language").onchange = () => { offerTargets(by("target-language").value); startAfresh(); };
by("swap").onclick = swap;
by("clear").onclick = () => { box.value = ""; startAfresh(); box.focus(); };
by("retry").onclick = translateNow;
by("text-tab").onclick = () => showMode("text");
by("documents-tab").onclick = () => showMode("documents");
document.querySelector(".tabs").addEventListener("keydown", event => {
  if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const other = by(event.target.id === "text-tab" ? "documents-tab" : "text-tab");
  other.click();
  other.focus();
});
by("files").onchange = () => { addDocuments(by("files").files); by("files").value = ""; };
addEventListener("dragover", event => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  showMode("documents");
  by("desk").classList.add("dragging");
});
addEventListener("dragleave", event => { if (!event.relatedTarget) by("desk").classList.remove("dragging"); });
addEventListener("drop", event => {
  by("desk").classList.remove("dragging");
  if (!holdsFiles(event)) return;
  event.preventDefault();
  addDocuments(event.dataTransfer.files);
});
by("copy").onclick = copy;
by("theme").onclick = switchTheme;
by("attention-toggle").onclick = toggleAttention;
by("key").value = key;
by("key").oninput = () => {
  key = by("key").value.trim();
  remember("sessionStorage", "heed-key", key);
  clearTimeout(timers.translate);
  timers.translate = setTimeout(translateNow, 2 * PAUSE);
};
by("prefix").oninput = () => {
  clearTimeout(timers.prefix);
  timers.prefix = setTimeout(() => selected && loadAlternatives(selected), PAUSE);
};
systemIsDark.onchange = () => dress();

by("desk").addEventListener("pointermove", event => { pointer = [event.clientX, event.clientY]; lightUnderPointer(); });
by("desk").addEventListener("pointerleave", () => { pointer = null; clearTimeout(timers.glance); unlight(); });
output.addEventListener("click", event => {
  const sentence = recordOf.get(event.target.closest(".sentence"));
  if (sentence && !sentence.stale) select(sentence === selected ? null : sentence);
});
output.addEventListener("keydown", event => {
  const sentence = recordOf.get(event.target);
  if (!sentence || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Enter" || event.key === " ") { if (!sentence.stale) select(sentence === selected ? null : sentence); }
  else if (event.key === "ArrowRight") stepThrough(sentence, 1);
  else if (event.key === "ArrowLeft") stepThrough(sentence, -1);
  else return;
  event.preventDefault();
});
output.addEventListener("focusin", event => { unlight(); if (recordOf.has(event.target)) near(recordOf.get(event.target)); });
output.addEventListener("focusout", unlight);

document.addEventListener("keydown", event => {
  if (event.isComposing) return;
  const withAlt = { KeyX: swap, KeyC: copy, KeyA: toggleAttention, KeyL: switchTheme };
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translateNow();
  else if (event.key === "Escape") { select(null); box.focus(); }
  else if (event.altKey && event.ctrlKey === onApple && !event.metaKey && withAlt[event.code]) withAlt[event.code]();
  else return;
  event.preventDefault();
});

if (onApple) {
  for (const hint of document.querySelectorAll("kbd")) hint.textContent = hint.textContent.replace("Alt ", "⌃⌥");
  by("swap").title = by("swap").title.replace("Alt+", "⌃⌥");
  for (const button of document.querySelectorAll("[aria-keyshortcuts^=Alt]"))
    button.setAttribute("aria-keyshortcuts", "Control+" + button.getAttribute("aria-keyshortcuts"));
}
dress();
count();
render();
loadSettings().then(() => { readAddress(); if (box.value) startAfresh(); }, fail);
