// Translating

function say(message, kind = "", { retry = false } = {}) {
  by("status").textContent = message;
  by("status").className = kind;
  by("retry").hidden = !retry;
}

function count() {
  const length = [...box.value].length, over = length - charLimit;
  by("count").textContent = `${number.format(length)} / ${Number.isFinite(charLimit) ? number.format(charLimit) : "…"}`;
  by("count").classList.toggle("bad", over > 0);
  const excess = over > 0 ? `Too long by ${number.format(over)} ${over === 1 ? "character" : "characters"}.` : "";
  if (by("limit").textContent !== excess) by("limit").textContent = excess;
  return over;
}

// What is shown of another text, or of other languages, means nothing any more.
function startAfresh() {
  sentences = [];
  select(null);
  textChanged();
}

function textChanged() {
  keepWhatStands(translatedText, box.value);
  translatedText = box.value;
  cancel("translate");
  clearTimeout(timers.retry);
  finished = !box.value.trim();
  count();
  render();
  clearTimeout(timers.translate);
  timers.translate = setTimeout(translate, PAUSE);
}

// Sentences before and after a change keep their translations until the server has said them again.
function keepWhatStands(before, after) {
  const most = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < most && before[head] === after[head]) head++;
  while (tail < most - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const shift = after.length - before.length, from = before.length - tail;
  for (const sentence of sentences) {
    if (sentence.end < head) continue;
    if (sentence.start < from) {
      sentence.stale = true;
      sentence.start = Math.min(sentence.start, head);
      sentence.end = sentence.end >= from ? sentence.end + shift : head;
    } else {
      sentence.start += shift;
      sentence.end += shift;
    }
  }
  sentences = sentences.filter(sentence => sentence.end > sentence.start);
}

async function translate() {
  clearTimeout(timers.translate);
  clearTimeout(timers.retry);
  cancel("translate");
  const text = box.value.toWellFormed?.() ?? box.value, over = count();
  if (!text.trim()) {
    sentences = [];
    select(null);
    showDetected(null);
    settle("");
    return;
  }
  if (over > 0) {  // under a text that is not translated no earlier translation is left
    sentences = [];
    select(null);
    finished = false;
    settle("");
    return output.replaceChildren();
  }
  if (keyRequired && !key) return askForKey("This server asks for an API key.");
  if (timers.gone) return;  // what is there is translated when the server is back
  const now = ++round, offsets = offsetsOf(text);
  finished = false;
  output.classList.add("busy");
  output.setAttribute("aria-busy", "true");
  say("Translating …");
  try {
    if (!languages.length) await loadSettings();
    if (now !== round) return;  // a later call has sent its own text meanwhile
    const source = by("source-language").value, target = by("target-language").value;
    const response = await post("translate", "v1/translate", { q: text, source, target });
    let whole = false;
    for await (const line of linesOf(response)) {
      if (now !== round) return;
      if (line.error) throw new Refused(0, line.error);
      if (line.done) whole = true;
      else take(line, offsets, target);
    }
    if (!whole) throw new Gone();
    sentences = sentences.filter(sentence => sentence.round === round);
    showDetected(source === "auto" ? sentences[0]?.language : null);
    finished = true;
    refusals = 0;
    settle(...remarks());
    if (selected && !sentences.includes(selected)) select(null);
    follow();
  } catch (error) {
    if (error.name !== "AbortError" && now === round) fail(error);
  }
}

// The sentence that a line of the answer tells of, in the place of those of earlier answers.
function take(line, offsets, target) {
  const start = offsets[line.start], end = start + line.source.length;
  const sentence = {
    start, end, target, round, source: line.source, translation: line.translation, language: line.language,
    ended: line.ended, pieces: line.pieces, alignment: null, stale: false,
  };
  sentence.translation = preferred.get(nameFor(sentence)) ?? sentence.translation;
  sentence.element = Object.assign(document.createElement("span"), { className: "sentence", tabIndex: 0 });
  sentence.element.setAttribute("role", "button");
  sentence.element.setAttribute("aria-pressed", "false");
  sentence.origin = Object.assign(document.createElement("span"), { className: "origin" });
  recordOf.set(sentence.element, sentence).set(sentence.origin, sentence);
  const [replaced, others] = [[], []];
  for (const other of sentences) {
    (other.round === round || other.end <= start || other.start >= end ? others : replaced).push(other);
  }
  const same = replaced.find(other => other.source === sentence.source && other.translation === sentence.translation
    && other.language === sentence.language && other.target === target);
  if (same) sentence.alignment = same.alignment;
  sentences = [...others, sentence].sort((a, b) => a.start - b.start);
  paint(sentence);
  if (replaced.includes(selected)) {
    if (same) { selected = sentence; sentence.element.setAttribute("aria-pressed", "true"); } else select(null);
  }
  render();
  if (sentence === sentenceToFollow()) follow();
}

const nameFor = sentence => JSON.stringify([sentence.language, sentence.target, sentence.source]);

function remarks() {
  const cut = sentences.filter(sentence => !sentence.ended).length;
  const pieces = Math.max(1, ...sentences.map(sentence => sentence.pieces));
  const said = [];
  if (cut) said.push(`${cut === 1 ? "One sentence is" : cut + " sentences are"} unfinished: the model reached its limit of length.`);
  if (pieces > 1) said.push(`A sentence longer than the model knows was translated in ${pieces} pieces.`);
  return [said.join(" "), said.length ? "warn" : ""];
}

// Nothing is under way.
function settle(message, kind = "", options = {}) {
  output.classList.remove("busy");
  output.setAttribute("aria-busy", "false");
  say(message, kind, options);
  render();
}

function fail(error) {
  if (error instanceof Gone) {
    settle("The server cannot be reached. Trying to reach it again …", "bad", { retry: true });
    return waitForServer();
  }
  if (!(error instanceof Refused)) {
    settle("Something went wrong in this page.", "bad", { retry: true });
    throw error;
  }
  // As long as the server asks for, and longer each time.
  if ([429, 503].includes(error.status)) return waitForTurn(Math.max(error.retryAfter, Math.min(60, 2 ** refusals++)));
  if (error.status === 403 || (error.status === 400 && /API key/.test(error.message))) return askForKey(error.message + ".");
  settle(`The server says: ${error.message}.`, "bad", { retry: true });
}

function waitForTurn(seconds) {
  if (seconds <= 0) return translate();
  settle(`The server is busy. Trying again in ${seconds} s …`, "warn", { retry: true });
  timers.retry = setTimeout(() => waitForTurn(seconds - 1), 1000);
}

async function waitForServer(seconds = 1) {
  clearTimeout(timers.gone);
  timers.gone = setTimeout(async () => {
    try {
      await get("ready");
      await loadSettings();
    } catch (error) {
      if (error instanceof Refused) settle("The server is starting …", "warn");
      return waitForServer(Math.min(seconds + 1, 5));
    }
    timers.gone = 0;
    settle("");
    translate();
  }, 1000 * seconds);
}

function askForKey(message) {
  by("key-field").hidden = false;
  keyRequired = true;
  settle(message, "bad");
  by("key").focus();
}

function translateNow() {
  if (timers.gone) waitForServer(0);
  else translate();
}

// Showing the translation

// Offsets in UTF-16, as JavaScript counts, of each character, as the server counts.
function offsetsOf(text) {
  const offsets = [0];
  for (const character of text) offsets.push(offsets.at(-1) + character.length);
  return offsets;
}

function outputText() {
  let at = 0, text = "";
  for (const sentence of sentences) {
    text += box.value.slice(at, sentence.start) + sentence.translation;
    at = sentence.end;
  }
  return text + box.value.slice(at);
}

function render() {
  const text = box.value, target = [], source = [];
  const between = part => {
    source.push(part);
    const inner = part.trim();
    if (finished || !inner) return target.push(part);
    const pending = Object.assign(document.createElement("span"), { className: "pending", textContent: "…" });
    const at = part.indexOf(inner);
    target.push(part.slice(0, at), pending, part.slice(at + inner.length));
  };
  let at = 0;
  for (const sentence of sentences) {
    between(text.slice(at, sentence.start));
    sentence.element.classList.toggle("stale", sentence.stale);
    target.push(sentence.element);
    if (sentence.stale) source.push(text.slice(sentence.start, sentence.end));
    else source.push(sentence.origin);
    at = sentence.end;
  }
  between(text.slice(at));
  const focused = document.activeElement;
  output.replaceChildren(...(text.trim() ? target.filter(part => part !== "") : []));
  if (focused !== document.activeElement && output.contains(focused)) focused.focus();
  mirror.replaceChildren(...source, "\u200b");  // a last line that is empty has its height
  by("copy").disabled = !sentences.length;
  by("details").hidden = by("desk").dataset.mode === "documents" || (!sentences.length && by("attention").hidden);
}

// A sentence's text: as it is, or in the parts that are aligned.
function paint(sentence) {
  const { element, origin, alignment } = sentence;
  element.classList.toggle("unfinished", !sentence.ended);
  element.title = sentence.ended ? "" : "Unfinished: the model reached its limit of length.";
  const spans = (text, parts, className) => {
    const children = [];
    let at = 0;
    parts.forEach(({ start, end }, i) => {
      const span = Object.assign(document.createElement("span"), { className, textContent: text.slice(start, end) });
      span.dataset.part = i;
      children.push(text.slice(at, start), span);
      at = end;
    });
    return [...children, text.slice(at)];
  };
  element.replaceChildren(...spans(sentence.translation, alignment?.parts ?? [], "part"));
  origin.replaceChildren(...spans(sentence.source, alignment?.words ?? [], "word-of-origin"));
}
