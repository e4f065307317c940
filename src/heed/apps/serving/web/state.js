// What all scripts of the page share.

const by = id => document.getElementById(id);
const settings = JSON.parse(by("settings").textContent);
const PAUSE = 250, GLANCE = 80;  // milliseconds: after the last key, and over a word, before the server is asked
const box = by("text"), output = by("translation"), mirror = by("mirror");
const number = new Intl.NumberFormat("en");
const onApple = /^(Mac|iP)/.test(navigator.platform);  // there the Option key alone types letters

let languages = [], charLimit = Infinity, keyRequired = false;
let key = remembered("sessionStorage", "heed-key") || "";
// The translated sentences in the order of the text. Each has its place in it (start, end), what the server said of it,
// its element in the output, and `origin`, the element under the text.
let sentences = [];
let translatedText = "";  // what the places are of
let round = 0;            // number of the latest request: sentences of earlier ones are shown until it answers
let finished = true;      // whether the latest request is answered as a whole
let selected = null;      // the sentence whose details are shown
let followed = null;      // the sentence whose attention is shown
const preferred = new Map();  // what a reader has chosen instead of the best translation
const recordOf = new WeakMap();
let refusals = 0;         // since the last answer
const requests = {};      // the latest of each kind that is under way
const timers = {};
