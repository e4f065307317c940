#!/usr/bin/env bash
# Go's http.Client sends a POST on a kept-alive connection, and the server closes it without an answer, as one does that
# is restarted while it translates. The request has the header Idempotency-Key, for the server's own use.
# Expected: one request and an error, as for a POST without the header.
# Happens: the header, whatever it holds, makes Go take the POST for one that may be repeated: it is sent again on a new
# connection. X-Idempotency-Key does the same. A server that does not know the header works twice.
# Seen with Go 1.19.8 (Debian 12: apt-get install golang-go).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
go version
cat > main.go <<'EOG'
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// requests returns how many the server receives: it answers the first and closes the connection at each later one.
func requests(header string) int {
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	received := make(chan bool, 10)
	go func() {
		for first := true; ; first = false {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 65536)
			connection.Read(buffer)
			received <- true
			if first {
				fmt.Fprint(connection, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				connection.Read(buffer)
				received <- true
			}
			connection.Close()
		}
	}()
	for i := 0; i < 2; i++ {
		request, _ := http.NewRequest("POST", "http://"+listener.Addr().String(), strings.NewReader("q=one"))
		if header != "" {
			request.Header.Set(header, "1")
		}
		if answer, err := http.DefaultClient.Do(request); err == nil {
			io.ReadAll(answer.Body)
			answer.Body.Close()
		}
	}
	listener.Close()
	return len(received)
}

func main() {
	counts := [3]int{requests(""), requests("Idempotency-Key"), requests("X-Idempotency-Key")}
	fmt.Println("requests of two calls, without a key and with two kinds of one:", counts)
	if counts != [3]int{2, 3, 3} {
		os.Exit(1)
	}
}
EOG
GOCACHE=$folder/cache GO111MODULE=off go run main.go
