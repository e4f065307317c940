#!/usr/bin/env bash
# A text of two lines sent as a field of a form: Node's fetch with FormData, and Perl's LWP::UserAgent->post.
# Expected: the bytes of the text, as with curl -F, URLSearchParams, HTTP::Tiny or PHP.
# Happens: both send CR LF for each line end (Node for a lone CR, too, as HTML's algorithm for forms asks): positions,
# lengths and the line ends of what comes back differ from those of the text that was sent.
# Seen with Node 20.20.2, Perl 5.36 with libwww-perl 6.68 (Debian 12: apt-get install nodejs libwww-perl).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
node --version; perl -MLWP -e 'print "libwww-perl $LWP::VERSION\n"'
cat > ask.mjs <<'EOJ'
import http from 'node:http';
import { once } from 'node:events';
import { spawn } from 'node:child_process';

const bodies = [];
const server = http.createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  bodies.push(body);
  response.end();
}).listen(0, '127.0.0.1');
await once(server, 'listening');
const address = `http://127.0.0.1:${server.address().port}/`;
const form = new FormData();
form.set('q', 'one\ntwo\rthree');
await fetch(address, { method: 'POST', body: form });
await fetch(address, { method: 'POST', body: new URLSearchParams({ q: 'one\ntwo\rthree' }) });
for (const code of [
  `LWP::UserAgent->new->post("${address}", {q => "one\\ntwo\\rthree"})`,
  `HTTP::Tiny->new->post_form("${address}", {q => "one\\ntwo\\rthree"})`,
]) await once(spawn('perl', ['-MLWP::UserAgent', '-MHTTP::Tiny', '-e', code], { stdio: 'inherit' }), 'close');
server.close();
console.log(bodies.map((body) => JSON.stringify(body)).join('\n'));
const expected = ['\r\n\r\none\r\ntwo\r\nthree\r\n', 'q=one%0Atwo%0Dthree', 'q=one%0D%0Atwo%0Dthree', 'q=one%0Atwo%0Dthree'];
process.exit(expected.every((part, i) => bodies[i].includes(part)) && bodies.length === 4 ? 0 : 1);
EOJ
node ask.mjs
