// Languages

const nameOf = code => languages.find(language => language.code === code)?.name
  || new Intl.DisplayNames(["en"], { type: "language", fallback: "code" }).of(code);
const targetsOf = source => [...new Set(languages.filter(language => source === "auto" || language.code === source)
  .flatMap(language => language.targets.filter(target => target !== language.code)))];

async function loadSettings() {
  const [found, limits] = await Promise.all([get("languages"), get("frontend/settings")]);
  [languages, charLimit, keyRequired] = [found, limits.charLimit, limits.keyRequired];
  by("files").accept = limits.supportedFilesFormat.join();
  by("kinds").textContent = limits.supportedFilesFormat.join(" ");
  by("key-field").hidden = !keyRequired;
  const sources = languages.filter(language => targetsOf(language.code).length);
  const before = by("source-language").value || (sources.length > 1 ? "auto" : limits.language.source.code);
  by("source-language").replaceChildren(new Option("Detect language", "auto"),
    ...sources.map(language => new Option(language.name, language.code)));
  by("source-language").value = before;
  if (by("source-language").selectedIndex < 0) by("source-language").value = "auto";
  offerTargets(by("target-language").value || limits.language.target.code);
  count();
}

function offerTargets(wanted) {
  const codes = targetsOf(by("source-language").value);
  by("target-language").replaceChildren(...codes.map(code => new Option(nameOf(code), code)));
  by("target-language").value = codes.includes(wanted) ? wanted : codes[0];
  const source = by("source-language").value, target = by("target-language").value;
  by("swap").disabled = source !== "auto" && !targetsOf(target).includes(source);
  box.lang = source === "auto" ? "" : source;
  output.lang = target;
}

function showDetected(code) {
  by("source-language").options[0].text = code ? `Detected: ${nameOf(code)}` : "Detect language";
}

function swap() {
  const source = by("source-language").value === "auto" ? sentences[0]?.language : by("source-language").value;
  const target = by("target-language").value;
  if (!source || !targetsOf(target).includes(source)) {
    say(`This server does not translate from ${nameOf(target)}${source ? " into " + nameOf(source) : ""}.`, "warn");
    return;
  }
  const text = outputText();
  by("source-language").value = target;
  offerTargets(source);
  box.value = text;
  startAfresh();
}
