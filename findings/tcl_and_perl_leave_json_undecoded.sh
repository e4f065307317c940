#!/usr/bin/env bash
# Tcl's http package and Perl's LWP read an answer of type application/json that has no charset, which is UTF-8 by
# RFC 8259, section 8.1.
# Expected: Perl's decoded_content and Tcl's http::data are the decoded text, as for text/html with a charset.
# Happens: both hand out bytes: "Straße" has 7 characters, and is printed as "StraÃe" by Tcl. With
# "application/json; charset=utf-8", a parameter that the media type does not even define, Tcl decodes it; Perl does not.
# text/event-stream without a charset, UTF-8 by its definition, is read as Latin-1 by Tcl.
# Seen with Tcl 8.6.13, http 2.9.8; Perl 5.36.0, LWP 6.68 (Debian 12: apt-get install tcl libwww-perl).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
cat > ask.tcl <<'EOF'
package require http
set token [http::geturl [lindex $argv 0]]
puts [string length [http::data $token]]
EOF
python3 - <<'EOF'
import http.server, subprocess, threading

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = '"Straße"'.encode()
        self.send_response(200)
        self.send_header("content-type", {"/json": "application/json", "/charset": "application/json; charset=utf-8",
                                          "/events": "text/event-stream"}[self.path])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
perl = "use LWP::UserAgent; print length(LWP::UserAgent->new->get($ARGV[0])->decoded_content)"
lengths = {}
for path in ("json", "charset", "events"):
    address = f"http://127.0.0.1:{server.server_port}/{path}"
    lengths[path] = [int(subprocess.run(command, capture_output=True, check=True).stdout)
                     for command in (["tclsh", "ask.tcl", address], ["perl", "-e", perl, address])]
print("characters of \"Straße\" with its marks, 8, for Tcl and Perl:", lengths)
assert lengths["json"] == [9, 9] and lengths["charset"][0] == 8 and lengths["events"] == [9, 8], lengths
EOF
