"""`heed serve` under load, beside CTranslate2 behind a minimal server, on the same weights and sentences.

    python benchmarks/serve_load.py --model RUN/model --src test.en   # requests per second, latency, processor time
    python benchmarks/serve_load.py --model RUN/model --src test.en --memory 10000
    python benchmarks/serve_load.py --model RUN/model --src test.en --hostile 10

Each client sends one sentence after another over a connection of its own. The servers take turns; those that wait are
idle. The clients' process has its share of the machine, the same with every server. Two yardsticks run in turn with
them, without a server: all sentences translated as `heed translate` does it (batch), and one at a time (lone).

--memory N: one server gets N requests of all kinds from 16 clients; its memory is read after a fifth of them and at the
end, each time after 20 seconds of rest.

--hostile MINUTES: one server gets documents from 8 clients that are made to keep it busy, while another client asks for
/health every 20 ms and one translates sentences; then SIGTERM in the middle of it.

Needs `pip install 'heed-mt[benchmarks,serve]'`: NAME-1x2 is one worker with two
threads, NAME-2x1 two workers with one.
"""

import argparse
import asyncio
import http.client
import io
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import instructions

from heed.apps.exchange import ctranslate2 as ctranslate2_format
from heed.apps.exchange.tokenizers import piece_names
from heed.data.reading.lines import read_lines
from heed.decoding.loading import recipe_settings
from heed.decoding.translator import Translator
from heed.model_folder import load_model
from heed.runtime.process_tuning import keep_freed_memory, tune_process
from heed.text.sentencepiece import SentencePieceTokenizer

SERVERS = [
    *("heed-int8", "heed-fp32"),
    *(f"ct2-{precision}-{workers}" for precision in ("int8", "fp32") for workers in ("1x2", "2x1")),
]
YARDSTICK, N_LONE = "heed-int8", 200
Sent = tuple[str, dict[str, Any] | None]  # a path, and what is posted to it


# The servers


@contextmanager
def server(command: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Host and port of a server that says `at http://HOST:PORT`, and the number of its process."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log)

        def said() -> str:
            return os.pread(log.fileno(), 10_000, 0).decode()

        try:
            while not (found := re.search(r"at http://([\d.]+):(\d+)", said())):
                if process.poll() is not None:
                    raise SystemExit(said())
                time.sleep(0.05)
            yield found[1], int(found[2]), process.pid
        finally:
            process.terminate()
            process.wait()


def heed_command(model: Path, precision: str) -> list[str]:
    arguments = ["serve", str(model), "--port", "0", "--precision", precision, "--queue", "4096"]
    return [sys.executable, "-m", "heed", *arguments]


def serve_ctranslate2(model: Path, precision: str, workers: str) -> None:
    """A request is translated by itself, by whichever worker is free, as LibreTranslate's engine does it."""
    import ctranslate2
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    folder = load_model(model)
    n_workers, n_threads = map(int, workers.split("x"))
    with tempfile.TemporaryDirectory() as written:
        ctranslate2_format.write_model(folder, Path(written), int8=False)
        translator = ctranslate2.Translator(
            written,
            device="cpu",
            compute_type={"fp32": "float32", "int8": "int8"}[precision],
            inter_threads=n_workers,
            intra_threads=n_threads,
        )
    tokenizer, settings = folder.tokenizer, recipe_settings(folder, {}, where=str(model))
    src_names, tgt_names = (piece_names(tokenizer, src=src) for src in (True, False))
    id_of = {name: i for i, name in enumerate(tgt_names)}
    eos = [] if isinstance(tokenizer, SentencePieceTokenizer) else [tokenizer.special.eos]

    def translation(text: str) -> str:
        ids = tokenizer.encode(text)
        found = translator.translate_batch(
            [[src_names[i] for i in [*ids, *eos]]],
            beam_size=settings.beam_size,
            length_penalty=1.0,
            max_decoding_length=len(ids) + settings.max_extra_tokens,
        )
        return tokenizer.decode([id_of[name] for name in found[0].hypotheses[0]])

    async def translate(request: Request) -> JSONResponse:
        fields = await request.json()
        return JSONResponse({"translatedText": await asyncio.to_thread(translation, fields["q"])})

    config = uvicorn.Config(
        Starlette(routes=[Route("/translate", translate, methods=["POST"])]), port=0, log_level="critical"
    )
    listener = config.bind_socket()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer's second part waits for 40 ms
    print(f"at http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


# The clients


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, fields: dict[str, Any] | None
) -> tuple[int, bytes]:
    """One request over an open connection: POST of JSON, or GET. The status and the body."""
    body = b"" if fields is None else json.dumps(fields).encode()
    head = f"{'GET' if fields is None else 'POST'} {path} HTTP/1.1\r\n"
    head += f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(answer.split(b" ", 2)[1])
    if found := re.search(rb"content-length: (\d+)", answer):
        return status, await reader.readexactly(int(found[1]))
    parts = []
    while n_bytes := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(n_bytes + 2))
    await reader.readexactly(2)
    return status, b"".join(parts)


async def clients(address: tuple[str, int], n: int, sentences: Sequence[str], seconds: float) -> list[float]:
    """The seconds that each request took which n clients sent within so many seconds, one after another each."""
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for text in itertools.islice(itertools.cycle(sentences), number * len(sentences) // n, None):
            started = time.perf_counter()
            status, body = await exchange(reader, writer, "/translate", {"q": text, "source": "en", "target": "de"})
            if status != 200:
                raise SystemExit(f"status {status}: {body.decode()}")
            if (now := time.perf_counter()) > end:
                break
            taken.append(now - started)
        writer.close()

    await asyncio.gather(*map(client, range(n)))
    return taken


# The yardsticks


def yardstick_worker(model: Path, sentences: list[str], precision: Any) -> None:
    """For each line of standard input: sentences per second in a batch, and the median seconds of one at a time."""
    keep_freed_memory()
    translator = Translator.load(model, precision=precision)
    translator.translate(sentences[:1])
    for _ in sys.stdin:
        started = time.perf_counter()
        translator.translate(sentences)
        speed = len(sentences) / (time.perf_counter() - started)
        taken = []
        for text in sentences[:N_LONE]:
            started = time.perf_counter()
            translator.translate([text])
            taken.append(time.perf_counter() - started)
        print(json.dumps([speed, statistics.median(taken)]), flush=True)


@contextmanager
def yardstick(arguments: argparse.Namespace) -> Iterator[Callable[[], tuple[float, float]]]:
    """What measures once, in a process of its own."""
    command = [*worker_command(arguments), YARDSTICK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def measured() -> tuple[float, float]:
            print("go", file=process.stdin, flush=True)
            speed, lone = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            return speed, lone

        yield measured
        process.stdin.close()


def worker_command(arguments: argparse.Namespace) -> list[str]:
    """This program, as the worker that is named behind."""
    return [sys.executable, __file__, "--model", str(arguments.model), "--src", str(arguments.src), "--worker"]


@dataclass
class Window:
    """What was measured of one server with so many clients."""

    requests_per_second: float
    p50: float
    p95: float
    p99: float
    processor: float  # seconds of the server's, a request

    @classmethod
    def of(cls, taken: list[float], seconds: float, processor_seconds: float) -> "Window":
        if len(taken) < 2:
            raise SystemExit(f"only {len(taken)} requests were answered within {seconds} s")
        places = statistics.quantiles(taken, n=100, method="inclusive")
        return cls(len(taken) / seconds, places[49], places[94], places[98], processor_seconds / len(taken))


def processor_seconds(pid: int) -> float:
    """The processor time that a process has taken, of its user and of its system."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(arguments: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    windows: dict[tuple[str, int], list[Window]] = {}
    alone: list[tuple[float, float]] = []
    with running_servers(arguments) as addresses, yardstick(arguments) as without_server:
        for turn in range(arguments.windows + 1):  # the first one warms up
            found_alone = without_server()
            for name, (host, port, pid) in addresses.items():
                for n in arguments.clients:
                    seconds, before = arguments.seconds if turn else 2.0, processor_seconds(pid)
                    taken = asyncio.run(clients((host, port), n, sentences, seconds))
                    window = Window.of(taken, seconds, processor_seconds(pid) - before)
                    if turn:
                        windows.setdefault((name, n), []).append(window)
                        print(f"turn {turn}  {name:14}{n:4} {window}", file=sys.stderr)
            if turn:
                alone.append(found_alone)
    rows = [
        {
            "server": name,
            "clients": n,
            **{
                field: statistics.median(getattr(window, field) for window in found)
                for field in ("requests_per_second", "p50", "p95", "p99", "processor")
            },
        }
        for (name, n), found in windows.items()
    ]
    batch, lone = (statistics.median(values) for values in zip(*alone, strict=True))
    return {"batch_sentences_per_second": batch, "lone_p50": lone, "rows": rows}


@contextmanager
def running_servers(arguments: argparse.Namespace) -> Iterator[dict[str, tuple[str, int, int]]]:
    """Host, port and process of all servers, by name."""
    with ExitStack() as stack:
        addresses = {}
        for name in arguments.only:
            kind, precision = name.split("-")[:2]
            heed = heed_command(arguments.model, precision)
            command = heed if kind == "heed" else [*worker_command(arguments), name]
            addresses[name] = stack.enter_context(server(command))
        for host, port, _ in addresses.values():
            asyncio.run(answered((host, port)))
        yield addresses


async def answered(address: tuple[str, int]) -> None:
    """Waits until a sentence is translated."""
    reader, writer = await asyncio.open_connection(*address)
    fields = {"q": "a dog", "source": "en", "target": "de"}
    while (await exchange(reader, writer, "/translate", fields))[0] != 200:
        await asyncio.sleep(0.1)
    writer.close()


def print_table(found: dict[str, Any]) -> None:
    batch, lone = found["batch_sentences_per_second"], found["lone_p50"]
    print(f"{YARDSTICK} without a server: {batch:,.0f} sentences/s in a batch; {lone * 1e3:.1f} ms for one (median)")
    times = "".join(f"{name:>9}" for name in ("p50 ms", "p95 ms", "p99 ms"))
    print(f"{'':15}{'clients':>8}{'req/s':>8}{'of batch':>10}{times}{'p50/lone':>10}{'cpu ms':>8}")
    for row in found["rows"]:
        speed = row["requests_per_second"]
        print(
            f"{row['server']:15}{row['clients']:>8}{speed:>8.0f}{speed / batch:>10.0%}"
            f"{row['p50'] * 1e3:>9.1f}{row['p95'] * 1e3:>9.1f}{row['p99'] * 1e3:>9.1f}{row['p50'] / lone:>10.2f}"
            f"{row['processor'] * 1e3:>8.2f}"
        )


# Memory


def requests_of_all_kinds(sentences: Sequence[str]) -> Iterator[Sent]:
    """Endless: paths with what is posted to them, good and bad, the same each time."""
    draw = random.Random(1)
    same = {"source": "en", "target": "de"}
    while True:
        texts = draw.choices(sentences, k=draw.randint(1, 8))
        kinds: list[Sent] = [
            ("/translate", {"q": texts[0], **same}),
            ("/translate", {"q": texts, "alternatives": draw.randint(0, 3), **same}),
            ("/translate", {"q": " ".join(texts), "source": "auto", "target": "de"}),
            ("/translate", {"q": f"<p>{texts[0]} <b>{texts[-1]}</b></p>", "format": "html", **same}),
            ("/v2/translate", {"text": texts, "source_lang": "EN", "target_lang": "DE"}),
            ("/v1/translate", {"q": "\n".join(texts), **same}),
            ("/v1/attention", {"q": texts[0], **same}),
            ("/detect", {"q": texts[0]}),
            ("/translate", {"q": 5, "source": draw.choice(["zz", "en"]), "target": "de"}),
            (f"/{draw.random()}", {}),
            ("/languages", None),
            ("/metrics", None),
        ]
        yield draw.choice(kinds)


def resident_bytes(pid: int) -> int:
    time.sleep(20)
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024  # type: ignore[index]


async def send_all(address: tuple[str, int], todo: Iterator[Sent], statuses: dict[int, int]) -> None:
    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        for path, fields in todo:
            status, _ = await exchange(reader, writer, path, fields)
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(16)))


def measure_memory(arguments: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    n, statuses = arguments.memory, dict[int, int]()
    with server(heed_command(arguments.model, "int8")) as (host, port, pid):
        asyncio.run(answered((host, port)))
        todo = requests_of_all_kinds(sentences)
        asyncio.run(send_all((host, port), itertools.islice(todo, n // 5), statuses))
        early = resident_bytes(pid)
        asyncio.run(send_all((host, port), itertools.islice(todo, n - n // 5), statuses))
        late = resident_bytes(pid)
    return {"requests": n, "early_bytes": early, "late_bytes": late, "ratio": late / early, "statuses": statuses}


# Documents that are made to keep a server busy

SIGNS = ["<", "<p>", "<b>", "</b>", "<a href='", "<!--", "<meta charset=", "&#", "&amp;", " ", "\n", "\n\n", "> ", "- "]
SIGNS += [
    "a",
    "A. ",
    "`",
    "**",
    "_",
    "[",
    "](",
    "|",
    "#",
    "1\n00:00:01,000 --> 00:00:02,000\n",
    "\r\n--",
    "\u200b",
    "中",
]
LARGEST_FILE, LARGEST_TEXT = 999_000, 9_900  # bytes, characters


def hostile_file(draw: random.Random) -> bytes:
    """A form with a file, at the largest that is taken, of one short run of signs again and again; or a .docx bomb."""
    suffix = draw.choice(["html", "md", "srt", "txt", "docx"])
    unit = "".join(draw.choices(SIGNS, k=draw.randint(1, 3))).encode()
    content = (unit * (LARGEST_FILE // len(unit) + 1))[:LARGEST_FILE].decode(errors="ignore").encode()
    if suffix == "docx":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml", b"<x>" * 100_000)
            archive.writestr("word/document.xml", b"<w:p>" * draw.choice([10_000, 10_000_000]))
        content = packed.getvalue()
    fields = {"source": draw.choice(["en", "auto"]), "target": "de"}
    form = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    ]
    form.append(f'--B\r\nContent-Disposition: form-data; name="file"; filename="a.{suffix}"\r\n\r\n')
    return "".join(form).encode() + content + b"\r\n--B--\r\n"


def hostile_text(draw: random.Random) -> bytes:
    unit = "".join(draw.choices(SIGNS, k=draw.randint(1, 3)))
    fields = {"q": (unit * LARGEST_TEXT)[:LARGEST_TEXT], "source": "en", "target": "de"}
    return json.dumps(fields | {"format": draw.choice(["html", "text"])}).encode()


def attack(address: tuple[str, int], number: int, statuses: Counter[str], over: threading.Event) -> None:
    draw = random.Random(number)
    while not over.is_set():
        is_file = draw.random() < 0.7
        body = hostile_file(draw) if is_file else hostile_text(draw)
        kind = "multipart/form-data; boundary=B" if is_file else "application/json"
        connection = http.client.HTTPConnection(*address, timeout=draw.choice([1, 120]))  # some leave early
        try:
            connection.request("POST", "/translate_file" if is_file else "/translate", body, {"content-type": kind})
            statuses[str(connection.getresponse().status)] += 1
        except OSError as error:
            statuses[type(error).__name__] += 1
        connection.close()


def ask_on(address: tuple[str, int], path: str, body: bytes | None, taken: list[float], pause: float) -> None:
    """Until the server is gone; `taken`: the seconds of each answer."""
    with suppress(OSError, http.client.HTTPException):
        while True:
            started = time.perf_counter()
            connection = http.client.HTTPConnection(*address, timeout=60)
            connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
            connection.getresponse().read()
            taken.append(time.perf_counter() - started)
            connection.close()
            time.sleep(pause)


def measure_hostile(arguments: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    over, statuses = threading.Event(), Counter[str]()
    health: list[float] = []
    sentence: list[float] = []
    body = json.dumps({"q": sentences[0], "source": "en", "target": "de"}).encode()
    with server(heed_command(arguments.model, "int8")) as (host, port, pid):
        asyncio.run(answered((host, port)))
        address = (host, port)
        threads = [threading.Thread(target=attack, args=(address, i, statuses, over), daemon=True) for i in range(8)]
        asked: list[tuple[Any, ...]] = [(address, "/health", None, health, 0.02)]
        asked.append((address, "/translate", body, sentence, 0.2))
        threads += [threading.Thread(target=ask_on, args=parts, daemon=True) for parts in asked]
        for thread in threads:
            thread.start()
        time.sleep(60 * arguments.hostile)
        found = {"health": milliseconds(health), "a_sentence": milliseconds(sentence), "statuses": dict(statuses)}
        os.kill(pid, signal.SIGTERM)
        started = time.perf_counter()
        over.set()
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.05)
        found["seconds_to_end"] = round(time.perf_counter() - started, 2)
    return found


def milliseconds(taken: list[float]) -> dict[str, float]:
    places = statistics.quantiles(taken, n=100, method="inclusive")
    found = {"p50": places[49], "p99": places[98], "most": max(taken)}
    return {"n": len(taken)} | {name: round(1e3 * seconds, 1) for name, seconds in found.items()}


def main() -> None:
    tune_process()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a model from en to de")
    parser.add_argument("--src", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--memory", type=int, help="requests after which memory is read, instead of times")
    parser.add_argument("--hostile", type=float, help="minutes of hostile documents, instead")
    instructions.add_option(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=SERVERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    instructions.keep_to(arguments.isa)
    sentences = list(read_lines(arguments.src))
    if arguments.worker == YARDSTICK:
        yardstick_worker(arguments.model, sentences, YARDSTICK.partition("-")[2])
        return
    if arguments.worker:
        with suppress(KeyboardInterrupt):
            serve_ctranslate2(arguments.model, *arguments.worker.split("-")[1:])
        return
    if arguments.hostile:
        found = measure_hostile(arguments, sentences)
    else:
        found = measure_memory(arguments, sentences) if arguments.memory else measure(arguments, sentences)
    if arguments.json or arguments.memory or arguments.hostile:
        print(json.dumps(found, indent=1))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
