// Asking the server

class Refused extends Error {
  constructor(status, message, retryAfter) { super(message); Object.assign(this, { status, retryAfter }); }
}
class Gone extends Error {}

// A request that ends an earlier one of its kind.
async function post(kind, path, fields) {
  cancel(kind);
  const controller = requests[kind] = new AbortController();
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = "Bearer " + key;
  const body = JSON.stringify(fields);
  if (kind === "translate") showRequest(path, ["-H", "Content-Type: application/json", "-d", body]);
  const response = await fetch(path, { method: "POST", headers, body, signal: controller.signal }).catch(asGone);
  if (!response.ok) await refuse(response);
  return response;
}

// As a command for a shell; a key stays with the reader.
function showRequest(path, parts) {
  const quoted = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const command = ["curl", quoted(new URL(path, document.baseURI).href), ...parts.map(quoted)].join(" ");
  by("request").textContent = command + (key ? ' -H "Authorization: Bearer $KEY"' : "");
}

function cancel(kind) {
  requests[kind]?.abort();
  delete requests[kind];
}

function asGone(error) {
  throw error.name === "AbortError" ? error : new Gone();
}

async function refuse(response) {
  if ([502, 504].includes(response.status)) throw new Gone();  // a proxy before a server that is not there
  const said = await response.json().catch(() => ({}));
  throw new Refused(response.status, said.error || `error ${response.status}`, Number(response.headers.get("Retry-After")));
}

async function get(path) {
  const response = await fetch(path).catch(asGone);
  if (!response.ok) await refuse(response);
  return response.json();
}

async function* linesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(asGone);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
