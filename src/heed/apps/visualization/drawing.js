"use strict";

// Attention as the paper draws it, to explore: two columns of words, a line for each weight, a colour for each head.
// The page of `heed attention` and that of `heed serve` hold this script.
//
// Puts its controls and the picture into `root`. colours: one a head. changed: called whenever something else is shown.
// Gives `shown` and `show(views, asked)`: views by name, with `queries`, `keys`, `layers`, `heads` and `weights`, bytes
// [layer][head][query][key] of 255 for 1; asked: what to show of them, in the form of `shown`, whatever of it there is.
function attentionDrawing(root, colours, changed = () => {}) {
  const NAMES = {
    encoder: "encoder: source to source",
    decoder: "decoder: target to target",
    cross: "cross: target to source",
  };
  const [LEAST_ROW, MOST_ROW] = [13, 24];  // pixels; a long text has its picture on one screen
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const viewChoice = element("select", { id: "view" }), layerChoice = element("select", { id: "layer" });
  const headChoices = element("span", { id: "heads" });
  headChoices.setAttribute("role", "group");
  headChoices.setAttribute("aria-label", "Heads");
  const everyHead = element("button", { id: "all", type: "button" }, "all heads");
  const everyWord = element("button", { id: "none", type: "button" }, "all words");
  const canvas = element("canvas");
  const picture = element("div", { className: "picture" }, canvas);
  const controls = element("div", { className: "controls" },
    element("label", {}, "View ", viewChoice), element("label", {}, "Layer ", layerChoice),
    headChoices, everyHead, everyWord);
  root.append(controls, picture);

  const shown = { view: "cross", layer: 0, heads: new Set(), word: null, side: "query" };
  let views = {};

  function show(newViews, asked = shown) {
    views = newViews;
    shown.view = Object.hasOwn(views, asked.view) ? asked.view : Object.keys(views)[0];
    const view = views[shown.view];
    shown.layer = Math.min(Math.max(asked.layer, 0), view.layers - 1) || 0;
    shown.heads = new Set([...asked.heads].filter(h => h >= 0 && h < view.heads));
    shown.side = asked.side === "key" ? "key" : "query";
    const words = shown.side === "key" ? view.keys : view.queries;
    shown.word = Number.isInteger(asked.word) && asked.word >= 0 && asked.word < words.length ? asked.word : null;
    layOut();
  }

  function layOut() {
    const view = views[shown.view];
    viewChoice.replaceChildren(...Object.keys(views).map(name => new Option(NAMES[name], name)));
    viewChoice.value = shown.view;
    layerChoice.replaceChildren(...Array.from({ length: view.layers }, (_, i) => new Option(i + 1, i)));
    layerChoice.value = shown.layer;
    headChoices.replaceChildren(...Array.from({ length: view.heads }, (_, h) => {
      const box = element("input", { type: "checkbox", checked: shown.heads.has(h) });
      box.onchange = () => { box.checked ? shown.heads.add(h) : shown.heads.delete(h); draw(); };
      const label = element("label", { className: "head" }, box, " " + (h + 1) + " ");
      label.style.borderColor = colourOf(h);
      label.ondblclick = () => { shown.heads = new Set([h]); layOut(); };
      return label;
    }));
    picture.querySelectorAll(".word").forEach(word => word.remove());
    for (const [side, words] of [["query", view.queries], ["key", view.keys]]) {
      words.forEach((text, i) => {
        const word = element("button", { className: "word " + side, type: "button", title: text }, text);
        word.dataset.side = side;
        word.dataset.word = i;
        word.onclick = () => {
          const again = shown.word === i && shown.side === side;
          shown.word = again ? null : i;
          shown.side = side;
          draw();
        };
        picture.append(word);
      });
    }
    place();
  }

  // The shorter column is spread over the height of the longer, so that lines between words in one order are level.
  function place() {
    const view = views[shown.view];
    if (!view) return;
    const longest = Math.max(view.queries.length, view.keys.length);
    const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, 0.8 * window.innerHeight / longest));
    picture.style.height = longest * row + "px";
    picture.style.setProperty("--row", row + "px");
    picture.querySelectorAll(".word").forEach(word => {
      const n = (word.dataset.side === "key" ? view.keys : view.queries).length;
      word.style.top = middle(Number(word.dataset.word), n, longest * row) + "px";
    });
    draw();
  }

  const middle = (i, n, height) => (i + 0.5) / n * height;

  // Black, on a dark page, is the colour of the text.
  function colourOf(head) {
    const colour = colours[head % colours.length];
    return colour === "#000000" ? getComputedStyle(root).color : colour;
  }

  function draw() {
    const view = views[shown.view];
    if (!view) return;
    const nQueries = view.queries.length, nKeys = view.keys.length;
    const width = picture.clientWidth, height = picture.clientHeight, sharp = window.devicePixelRatio || 1;
    const left = parseFloat(getComputedStyle(picture).getPropertyValue("--side")) / 100 * width, right = width - left;
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    pen.lineWidth = 2;
    let drawn = 0;
    for (const head of shown.heads) {
      pen.strokeStyle = colourOf(head);
      const start = (shown.layer * view.heads + head) * nQueries * nKeys;
      for (let i = 0; i < nQueries; i++) {
        if (shown.word !== null && shown.side === "query" && shown.word !== i) continue;
        for (let j = 0; j < nKeys; j++) {
          if (shown.word !== null && shown.side === "key" && shown.word !== j) continue;
          const weight = view.weights[start + i * nKeys + j];
          if (weight < 3) continue;
          pen.globalAlpha = weight / 255;
          pen.beginPath();
          pen.moveTo(left, middle(i, nQueries, height));
          pen.lineTo(right, middle(j, nKeys, height));
          pen.stroke();
          drawn++;
        }
      }
    }
    picture.dataset.lines = drawn;
    picture.querySelectorAll(".word").forEach(word => {
      const chosen = word.dataset.side === shown.side && Number(word.dataset.word) === shown.word;
      word.classList.toggle("chosen", chosen);
      word.setAttribute("aria-pressed", chosen);
    });
    changed();
  }

  // A view at its last layer, with every head and every word.
  const whole = name => ({ view: name, layer: views[name].layers - 1, heads: Array(views[name].heads).keys() });
  viewChoice.onchange = () => show(views, whole(viewChoice.value));
  layerChoice.onchange = () => { shown.layer = Number(layerChoice.value); draw(); };
  everyHead.onclick = () => { shown.heads = new Set(whole(shown.view).heads); layOut(); };
  everyWord.onclick = () => { shown.word = null; draw(); };
  window.addEventListener("resize", place);
  return { shown, show, layOut };
}
