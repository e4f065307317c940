#!/usr/bin/env bash
# Java's HttpURLConnection sends a POST to a server that closes the connection without an answer, as one does that is
# stopped or restarted while it translates.
# Expected: one request and an error; RFC 9110, 9.2.2 asks not to repeat a POST by oneself.
# Happens: the same POST is sent a second time on a new connection, also if the first was not kept alive; the work is
# done twice, and the caller sees one error. A second POST fails at once. -Dsun.net.http.retryPost=false sends one, and
# so does java.net.http.HttpClient.
# Seen with OpenJDK 17.0.15 (Debian 12: apt-get install default-jdk-headless), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
java -version 2>&1 | head -n 1
cat > Ask.java <<'EOF'
import java.net.*;
import java.net.http.*;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        String address = "http://127.0.0.1:" + arguments[1] + "/translate";
        try {
            if (arguments[0].equals("old")) {
                HttpURLConnection connection = (HttpURLConnection) new URL(address).openConnection();
                connection.setRequestMethod("POST");
                connection.setDoOutput(true);
                connection.getOutputStream().write("q=one".getBytes());
                connection.getResponseCode();
            } else {
                HttpRequest request = HttpRequest.newBuilder(URI.create(address))
                    .version(HttpClient.Version.HTTP_1_1).POST(HttpRequest.BodyPublishers.ofString("q=one")).build();
                HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            }
        } catch (java.io.IOException error) {
            System.out.println(error);
        }
    }
}
EOF
python3 - <<'EOF'
import socket, subprocess, threading

server = socket.create_server(("127.0.0.1", 0))
received = []

def close_without_an_answer():
    while True:
        connection, _ = server.accept()
        data = b""
        while not data.endswith(b"q=one"):
            data += connection.recv(65536)
        received.append(data.split(b"\r\n")[0])
        connection.close()

threading.Thread(target=close_without_an_answer, daemon=True).start()
counts = []
for options, client in (([], "old"), (["-Dsun.net.http.retryPost=false"], "old"), ([], "new")):
    received.clear()
    subprocess.run(["java", *options, "Ask.java", client, str(server.getsockname()[1])], check=True)
    counts.append(len(received))
print("requests of HttpURLConnection, of it without retryPost, of HttpClient:", counts)
assert counts == [2, 1, 1]
EOF
