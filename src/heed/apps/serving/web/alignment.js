// Word alignment

// Words and punctuation as spans. Words that a hyphen or an apostrophe joins are one.
function wordsOf(text, language) {
  const spans = [];
  for (const { segment, index: start, isWordLike } of new Intl.Segmenter(language, { granularity: "word" }).segment(text)) {
    const end = start + segment.length, [joined, joint] = spans.slice(-2);
    if (isWordLike && joined?.isWord && joint?.isJoint && joined.end === joint.start && joint.end === start) {
      spans.pop();
      joined.end = end;
    } else if (segment.trim()) {
      spans.push({ start, end, isWord: isWordLike, isJoint: /^[-'’‐‑]$/.test(segment) });
    }
  }
  return spans;
}

// Parts of the translation, each with the word of the source that it stands for: words, or of a word that is long, such
// as a German compound, the parts that stand for different words. links: of tokens, as the server gives them.
function aligned(sentence, links) {
  const words = wordsOf(sentence.source, sentence.language), parts = [];
  const targets = wordsOf(sentence.translation, sentence.target);
  const [inTarget, inSource] = [offsetsOf(sentence.translation), offsetsOf(sentence.source)];
  const over = (spans, start, end) => {
    const found = spans.map((span, i) => i).filter(i => spans[i].start < end && spans[i].end > start);
    return found.find(i => spans[i].isWord) ?? found[0];
  };
  for (const [tgtStart, tgtEnd, srcStart, srcEnd] of links) {
    const [start, end] = [inTarget[tgtStart], inTarget[tgtEnd]];
    const word = over(words, inSource[srcStart], inSource[srcEnd]), of = over(targets, start, end);
    const last = parts.at(-1);
    if (word === undefined || of === undefined) continue;
    if (last && last.of === of && (last.word === word || end - start < 3 || last.end - last.start < 3)) last.end = end;
    else parts.push({ start, end, word, of });
  }
  return { words, parts };
}

async function loadAlignment(sentence) {
  try {
    const response = await post("alignment", "v1/attention", {
      q: sentence.source, translation: sentence.translation, source: sentence.language, target: sentence.target, views: [],
    });
    const { alignment, translation } = await response.json();
    if (translation !== sentence.translation) return;
    sentence.alignment = aligned(sentence, alignment ?? []);
    paint(sentence);
  } catch (error) {
    if (error instanceof Refused && error.status === 400) sentence.alignment = { words: [], parts: [] };
    else if (error.name !== "AbortError" && !(error instanceof Refused || error instanceof Gone)) throw error;
  }
}

// Lights what stands under the mouse, in the text or in the translation, and what it is aligned with on the other side.
let pointer = null;
function lightUnderPointer() {
  unlight();
  if (!pointer) return;
  const under = document.elementsFromPoint(...pointer);
  const sentence = recordOf.get(under.find(element => recordOf.has(element)));
  if (!sentence || sentence.stale) return;
  near(sentence);
  if (!sentence.alignment) {
    clearTimeout(timers.glance);
    timers.glance = setTimeout(() => loadAlignment(sentence).then(lightUnderPointer), GLANCE);
    return;
  }
  const part = under.find(element => element.matches(".part")), word = under.find(element => element.matches(".word-of-origin"));
  if (part) lightPart(sentence, Number(part.dataset.part));
  else if (word) lightWord(sentence, Number(word.dataset.part));
}

function unlight() {
  document.querySelectorAll(".lit, .near").forEach(element => element.classList.remove("lit", "near"));
}

function near(sentence) {
  sentence.element.classList.add("near");
  sentence.origin.classList.add("near");
}

function lightPart(sentence, i) {
  near(sentence);
  sentence.element.querySelectorAll(".part")[i].classList.add("lit");
  sentence.origin.querySelectorAll(".word-of-origin")[sentence.alignment.parts[i].word].classList.add("lit");
}

function lightWord(sentence, i) {
  sentence.origin.querySelectorAll(".word-of-origin")[i].classList.add("lit");
  const parts = sentence.element.querySelectorAll(".part");
  sentence.alignment.parts.forEach((part, j) => { if (part.word === i) parts[j].classList.add("lit"); });
}

async function stepThrough(sentence, step) {
  if (!sentence.alignment) await loadAlignment(sentence);
  const n = sentence.alignment?.parts.length;
  if (!n) return;
  const lit = [...sentence.element.querySelectorAll(".part")].findIndex(part => part.classList.contains("lit"));
  unlight();
  lightPart(sentence, lit < 0 ? (step > 0 ? 0 : n - 1) : (lit + step + n) % n);
}
