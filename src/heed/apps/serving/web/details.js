// A sentence's details: other translations, and attention

function select(sentence) {
  selected?.element.setAttribute("aria-pressed", "false");
  selected = sentence;
  cancel("alternatives");
  by("others").hidden = !sentence;
  by("others-hint").hidden = Boolean(sentence);
  if (!sentence) {
    by("alternatives").replaceChildren();
    follow();
    return;
  }
  sentence.element.setAttribute("aria-pressed", "true");
  by("details").hidden = false;
  by("prefix").value = "";
  loadAlternatives(sentence);
  follow();
}

async function loadAlternatives(sentence) {
  by("others-note").textContent = "…";
  offerAlternatives(sentence, [sentence.translation]);
  try {
    if (!settings.maxAlternatives) throw new Refused(0, "this server gives no alternatives");
    const response = await post("alternatives", "v1/translate", {
      q: sentence.source, source: sentence.language, target: sentence.target, alternatives: settings.maxAlternatives,
      prefix: by("prefix").value,
    });
    const found = [];
    for await (const line of linesOf(response)) {
      if (line.error) throw new Refused(0, line.error);
      if (!line.done) found.push(line);
    }
    if (selected !== sentence) return;
    const texts = found.length === 1 ? [found[0].translation, ...(found[0].alternatives ?? [])] : [];
    offerAlternatives(sentence, [...new Set([...texts, sentence.translation])]);
    by("others-note").textContent = texts.length > 1 ? "" : "The model has no other translation.";
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    by("others-note").textContent = error instanceof Gone ? "The server cannot be reached." : `Not now: ${error.message}.`;
  }
}

function offerAlternatives(sentence, texts) {
  by("alternatives").replaceChildren(...texts.map(text => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text, dir: "auto", lang: sentence.target });
    button.setAttribute("aria-pressed", text === sentence.translation);
    button.onclick = () => {
      preferred.set(nameFor(sentence), text);
      Object.assign(sentence, { translation: text, alignment: null });
      paint(sentence);
      by("alternatives").querySelectorAll("button").forEach(other => other.setAttribute("aria-pressed", other === button));
      follow();
    };
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

let drawing = null, drawnOf = "";

// That which was chosen, else that in which the cursor stands.
function sentenceToFollow() {
  const standing = sentences.filter(sentence => !sentence.stale);
  return selected ?? standing.find(sentence => sentence.end >= box.selectionStart) ?? standing.at(-1) ?? null;
}

async function follow() {
  followed = sentenceToFollow();
  by("of").textContent = followed ? followed.source : "";
  by("of").hidden = !selected && by("attention").hidden;
  if (by("attention").hidden || !followed) return;
  const sentence = followed, name = JSON.stringify([nameFor(sentence), sentence.translation]);
  if (name === drawnOf) return;
  const longest = Math.max([...sentence.source].length, [...sentence.translation].length);
  if (longest > settings.maxAttentionChars) {
    return hidePicture(`A sentence of more than ${settings.maxAttentionChars} characters is too long to look at.`);
  }
  try {
    const response = await post("attention", "v1/attention", {
      q: sentence.source, translation: sentence.translation, source: sentence.language, target: sentence.target,
    });
    const found = await response.json(), views = {};
    for (const view of ["encoder", "decoder", "cross"]) {
      const { queries, keys, weights } = found[view];
      const bytes = Uint8Array.from(weights.flat(3), weight => Math.round(weight * 255));
      views[view] = { queries, keys, layers: weights.length, heads: weights[0].length, weights: bytes };
    }
    by("drawing").hidden = by("attention-hint").hidden = false;
    by("attention-note").textContent = "";
    if (drawing) {
      drawing.show(views, { ...drawing.shown, word: null });
    } else {
      drawing = attentionDrawing(by("drawing"), settings.colours);
      drawing.show(views, { view: "cross", layer: views.cross.layers - 1, heads: Array(views.cross.heads).keys(), word: null });
    }
    drawnOf = name;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    hidePicture(error instanceof Gone ? "The server cannot be reached." : `The server says: ${error.message}.`);
  }
}

function hidePicture(message) {
  by("attention-note").textContent = message;
  by("drawing").hidden = by("attention-hint").hidden = true;
  drawnOf = "";
}

function toggleAttention() {
  by("attention").hidden = !by("attention").hidden;
  by("attention-toggle").setAttribute("aria-expanded", !by("attention").hidden);
  render();
  follow();
}
