"""A tiny model with random weights, and real servers of it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import httpx
import pytest
import torch

from heed.decoding.translator import Translator
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.tokenizer import Tokenizer


def write_model_folder(folder: Path, tokenizer: Tokenizer, **decoding: int) -> Path:
    """A model of English numbers that knows nothing, and says so at different lengths."""
    torch.manual_seed(11)
    model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4), len(tokenizer)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    save_model(folder, model, tokenizer, ModelCard("en", "de", decoding={"beam_size": 3} | decoding))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, number_tokenizer) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("serving") / "model", number_tokenizer)


@pytest.fixture(scope="session")
def slow_model_folder(tmp_path_factory, number_tokenizer) -> Path:
    """Every sentence takes 400 steps."""
    folder = tmp_path_factory.mktemp("serving") / "slow-model"
    return write_model_folder(folder, number_tokenizer, min_tokens=399, max_extra_tokens=400)


@pytest.fixture(scope="session")
def translator(model_folder) -> Translator:
    return Translator.load(model_folder, precision="fp32")


class RunningServer:
    """`heed serve` in a process of its own."""

    def __init__(self, *args: object, port: int = 0):
        command = [sys.executable, "-m", "heed", "serve", "--port", str(port), "--precision", "fp32", *map(str, args)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"at (http://\S+)\.$", line):
                self.url = found[1]
                break
        else:
            raise RuntimeError("".join(self.lines))
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=120) as response:
            return response.read().decode()

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def wait_until_ready(self) -> None:
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
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()


@pytest.fixture
def serve():
    """Starts servers that end with the test."""
    started: list[RunningServer] = []

    def start(*args: object) -> RunningServer:
        started.append(RunningServer(*args))
        started[-1].wait_until_ready()
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture(scope="session")
def server(model_folder):
    """A server that tests share; it must end well after all of them."""
    running = RunningServer(model_folder)
    try:
        running.wait_until_ready()
        yield running
        assert running.stop() == 0, "".join(running.lines)
    finally:
        running.end()


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found
