// Documents: one after the other, each with a row that says what becomes of it

function showMode(mode) {
  by("desk").dataset.mode = mode;
  by("documents").hidden = mode !== "documents";
  for (const name of ["text", "documents"]) {
    by(`${name}-tab`).setAttribute("aria-selected", name === mode);
    by(`${name}-tab`).tabIndex = name === mode ? 0 : -1;
  }
  render();
}

let turn = Promise.resolve();

function addDocuments(files) {
  for (const file of files) {
    const row = document.createElement("li"), controller = new AbortController();
    const part = (tag, className, text) => {
      const element = Object.assign(document.createElement(tag), { className, textContent: text });
      row.append(element);
      return element;
    };
    part("span", "name", file.name);
    const state = part("span", "state", "Waiting …"), button = part("button", "", "Cancel");
    state.setAttribute("role", "status");
    button.type = "button";
    button.onclick = () => { controller.abort(); row.remove(); };
    by("jobs").append(row);
    const languages = { source: by("source-language").value, target: by("target-language").value };
    turn = turn.then(() => controller.signal.aborted || translateDocument(file, languages, { state, button, controller, row }));
  }
}

async function translateDocument(file, languages, { state, button, controller, row }) {
  const form = new FormData(), began = performance.now();
  form.append("file", file);
  for (const [name, code] of Object.entries(languages)) form.append(name, code);
  const tell = () => { state.textContent = `Translating … ${Math.round((performance.now() - began) / 1000)} s`; };
  const clock = setInterval(tell, 1000);
  tell();
  showRequest("translate_file", ["-F", `file=@${file.name}`, "-F", `source=${languages.source}`, "-F", `target=${languages.target}`]);
  try {
    const headers = key ? { Authorization: "Bearer " + key } : {};
    const response = await fetch("translate_file", { method: "POST", headers, body: form, signal: controller.signal }).catch(asGone);
    if (!response.ok) await refuse(response);
    const { translatedFileUrl } = await response.json();
    const link = Object.assign(document.createElement("a"), { textContent: "Download", download: "" });
    link.href = "download_file/" + translatedFileUrl.split("/").at(-1);  // wherever a proxy shows this page
    state.textContent = `Done in ${Math.max(1, Math.round((performance.now() - began) / 1000))} s; kept for half an hour.`;
    button.textContent = "Remove";
    row.insertBefore(link, button);
  } catch (error) {
    if (error.name === "AbortError") return;
    state.className = "state bad";
    button.textContent = "Remove";
    state.textContent = error instanceof Gone ? "The server cannot be reached; try again." : error.message;
    if (error instanceof Refused && (error.status === 403 || /API key/.test(error.message))) askForKey(error.message + ".");
    else if (!(error instanceof Refused || error instanceof Gone)) throw error;
  } finally {
    clearInterval(clock);
  }
}

const holdsFiles = event => [...event.dataTransfer?.types ?? []].includes("Files");
