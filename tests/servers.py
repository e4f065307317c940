"""Real servers."""

import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request

from tests.commands import Commands


class RunningServer:
    """`heed serve` in a process of its own, which is ready; it ends with the block."""

    def __init__(self, commands: Commands, *args: object, port: int = 0):
        command = ["serve", "--port", str(port), "--precision", "fp32", *map(str, args)]
        self.process = commands.server(os.environ).start(command, environment=os.environ)
        self.lines: list[str] = []
        written = map(bytes.decode, self.process.stderr)
        for line in written:
            self.lines.append(line)
            if found := re.search(r"at (http://\S+)\.$", line):
                self.url = found[1]
                break
        else:
            raise RuntimeError("".join(self.lines))
        self._reader = threading.Thread(target=lambda: self.lines.extend(written), daemon=True)
        self._reader.start()
        self._wait_until_ready()

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=120) as response:
            return response.read().decode()

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                self.get("/ready")
                return
            except urllib.error.HTTPError as error:
                assert error.code == 503 and json.loads(error.read()) == {"error": "not ready"}
                time.sleep(0.02)
        raise AssertionError("never ready")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        return status

    def end(self) -> None:
        """Whatever state it is in."""
        with self.process:
            self.process.kill()
            self._reader.join()
