"""The kernels by other compilers and on other processors: warnings, their own tests, and runs on emulated processors.

Compiling takes most of these tests' time. Where the optimizer is not their subject, make test asks for less of it.
"""

import ctypes
import itertools
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.backends.cpu import build
from heed.backends.cpu.declarations import PARAMETERS, address, ffi
from heed.runtime.instruction_sets import SETS, InstructionSet, architecture, chosen_set, processor_features, sets_of
from heed.text.prefix import Prefix

HERE = Path(__file__).parent
COMPILERS = ("g++", "clang++")
EMULATE = "-DHEED_EMULATE=16"  # every kernel, in plain C++ and vectors of so many lanes
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
FAST = "-O1"  # to compile, and good enough to run
FEWEST = ("g++", "amx")  # of the compilers and processors those that make test takes, with all instructions

pytestmark = pytest.mark.skipif(not build.FOLDER.is_dir(), reason="the kernels' sources are not at hand")


def flags_of(compiler: str, *more: str, isa: InstructionSet | None = None) -> tuple[list[str], list[str]]:
    """For compiling and linking with this compiler, for a set; skips the test where the compiler does not exist."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    isa = isa or chosen_set()
    compiling, linking = build.flags(version, processor=isa.flags_with(isa.needs | {name for name, _ in isa.extras}))
    return [*compiling, *more], [*linking, *more]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "isa"),
    [
        *(
            pytest.param(*both, marks=() if both == FEWEST else pytest.mark.soak)
            for both in itertools.product(COMPILERS, [isa.name for isa in SETS.get(architecture(), ())])
        ),
        pytest.param("clang++", "emulated", marks=pytest.mark.soak),  # with g++ in the next test, which runs it too
    ],
)
def test_the_kernels_compile_without_warnings(compiler, isa, tmp_path):
    """For each set of instructions. Some of g++'s warnings need its optimizer: in make test the next tests use it."""
    emulated = [EMULATE] if isa == "emulated" else []
    chosen = next((each for each in SETS.get(architecture(), ()) if each.name == isa), None)
    how = "-fsyntax-only" if (compiler, isa) == FEWEST else FAST if compiler == "g++" else "-O0"
    compiling, _ = flags_of(compiler, *emulated, how, *WARNINGS, isa=chosen)
    for source in build.SOURCES:
        command = [compiler, *compiling, "-c", str(source), "-o", str(tmp_path / "made.o")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]


OWN_TESTS = ["cpu/test_training_ops.py", "cpu/test_decoding_ops.py"]
EQUIVALENCE = ["test_equivalence.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "compiler", "more", "needs"),
    [
        # With warnings, so that the library is also what warnings that need the optimizer are looked for in.
        pytest.param("avx2", "g++", " ".join([FAST, *WARNINGS]), {"avx2"}, marks=pytest.mark.soak, id="fast avx2"),
        pytest.param("avx2", "g++", "", {"avx2"}, marks=pytest.mark.soak, id="avx2"),
        # Where AVX-512 has the instruction of AVX-VNNI in another form, that is taken.
        pytest.param(
            "avx2", "g++", "-mavxvnni -DHEED_EVEX", {"avx512_vnni", "avx512vl"}, marks=pytest.mark.soak, id="avxvnni"
        ),
        pytest.param("", "clang++", "", set(), marks=pytest.mark.soak, id="clang++"),
        pytest.param("", "g++", " ".join([EMULATE, *WARNINGS]), set(), marks=pytest.mark.soak, id="emulated 16"),
        pytest.param("", "g++", "-DHEED_EMULATE=8", set(), marks=pytest.mark.soak, id="emulated 8"),
        pytest.param("", "g++", "-DHEED_EMULATE=4", set(), marks=pytest.mark.soak, id="emulated 4"),
    ],
)
def test_the_kernels_pass_their_tests_with_other_compilers_and_processors(isa, compiler, more, needs):
    """Emulated with 16 lanes, all kernels run, those for pairs of bf16 and tiles (AMX) too.

    In make test those kernels run that networks take, too: with the machine's own set, these are two sets.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    if lacking := needs - processor_features():
        pytest.skip(f"no {', '.join(sorted(lacking))}")
    env = {"CXX": compiler, "HEED_KERNELS": f"1 {more}", "HEED_ISA": isa}
    if FAST in more.split():
        passed_tests(OWN_TESTS, "not slow and not soak", env)
        passed_tests(EQUIVALENCE, "not slow and not soak", env, "-k", "gradients_in_fp32 or search_with_kernels")
        return
    skipped = passed_tests(OWN_TESTS, "not soak", env)
    if isa or "EMULATE" in more:  # 8-bit products by each of their ways
        assert all(line.endswith("no AVX-512 BF16") for line in skipped), skipped
        assert bool(skipped) == (EMULATE not in more), skipped


@pytest.mark.soak
@pytest.mark.parametrize("isa", [isa.name for isa in SETS.get(architecture(), ())])
def test_networks_compute_the_same_with_each_set(isa):
    """Each set that this machine has, for networks of all widths."""
    if isa not in {each.name for each in sets_of(processor_features())}:
        pytest.skip(f"no {isa}")
    passed_tests(EQUIVALENCE, "soak or not soak", {"HEED_KERNELS": "1", "HEED_ISA": isa})


def passed_tests(names: Sequence[str], which: str, env: dict[str, str], *more: str) -> list[str]:
    """Runs tests of backends/ in a process of their own and returns what was skipped."""
    tests = [str(HERE.parent / name) for name in names]
    options = ["-x", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", which, *more]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, env=os.environ | env, cwd=HERE.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]


# ----------------------------------------------------------------------------------------------------------------------
# Cases for run_cases.cpp: the memory that a kernel is called with, and what it leaves there.

# No instructions of their own.
TESTED_ELSEWHERE = {"add_gradient", "adam_step", "extend_beams", "reorder_ancestors", "use_fast_cores", "search_team"}
TYPES = {torch.float32: b"f", torch.bfloat16: b"h", torch.float64: b"d"}


@dataclass(eq=False)
class Table:
    """Memory that holds addresses: a structure, several, or a list of addresses."""

    content: bytes
    addresses: dict[int, "Tensor | Table"]  # by offset


Tensor = torch.Tensor
Memory = Tensor | Table


def structure(name: str, **values: Any) -> Table:
    """A structure with these fields: numbers, or the memory whose address a field holds."""
    kind = ffi.typeof(name)
    content, addresses = bytearray(ffi.sizeof(kind)), {}
    for field_name, form in kind.fields:
        offset, value = form.offset, values.pop(field_name)
        if isinstance(value, Table) and form.type.kind == "struct":
            content[offset : offset + len(value.content)] = value.content
            addresses |= {offset + inner: memory for inner, memory in value.addresses.items()}
        elif isinstance(value, Tensor | Table):
            addresses[offset] = value
        elif value is not None:
            filled = bytes(ffi.buffer(ffi.new(ffi.getctype(form.type, "*"), value)))
            content[offset : offset + len(filled)] = filled
    assert not values, values
    return Table(bytes(content), addresses)


def several(tables: Sequence[Table]) -> Table:
    """Consecutive structures."""
    size = len(tables[0].content)
    addresses = {i * size + at: memory for i, table in enumerate(tables) for at, memory in table.addresses.items()}
    return Table(b"".join(table.content for table in tables), addresses)


def addresses_of(tensors: Sequence[Tensor]) -> Table:
    return Table(bytes(8 * len(tensors)), {8 * i: x for i, x in enumerate(tensors)})


def content_of(memory: Memory) -> bytes:
    return memory.content if isinstance(memory, Table) else memory.view(torch.uint8).numpy().tobytes()


@dataclass
class Case:
    """A call of a kernel. run() makes it in this process."""

    name: str
    arguments: tuple[Any, ...]
    products: torch.dtype = torch.float32  # of weights in it
    regions: list[Memory] = field(default_factory=list)
    before: list[bytes] = field(default_factory=list)
    after: list[bytes] = field(default_factory=list)
    result: int = 0

    def __post_init__(self) -> None:
        for argument in self.arguments:
            if isinstance(argument, Tensor | Table):
                self._add(argument)
        self.before = [content_of(memory) for memory in self.regions]

    def _add(self, memory: Memory) -> None:
        if not any(known is memory for known in self.regions):
            self.regions.append(memory)
            for inner in memory.addresses.values() if isinstance(memory, Table) else ():
                self._add(inner)

    def index(self, memory: Memory) -> int:
        return next(i for i, known in enumerate(self.regions) if known is memory)

    def run(self, library: build.Library) -> None:
        buffers = [ctypes.create_string_buffer(content, max(len(content), 1)) for content in self.before]
        for memory, buffer in zip(self.regions, buffers, strict=True):
            for offset, target in memory.addresses.items() if isinstance(memory, Table) else ():
                struct.pack_into("=Q", buffer, offset, ctypes.addressof(buffers[self.index(target)]))
        places = [address(ctypes.addressof(buffer)) for buffer in buffers]
        arguments = [places[self.index(x)] if isinstance(x, Tensor | Table) else x for x in self.arguments]
        self.result = getattr(library, self.name)(*(ffi.NULL if x is None else x for x in arguments))
        self.after = [buffer.raw[: len(content)] for buffer, content in zip(buffers, self.before, strict=True)]

    def packed(self) -> bytes:
        """As run_cases.cpp reads it."""
        products = {torch.int8: b"i", torch.bfloat16: b"b", torch.float32: b"f"}[self.products]
        parts = [struct.pack("<q", len(self.name)), self.name.encode(), products, struct.pack("<q", len(self.regions))]
        for memory, before, after in zip(self.regions, self.before, self.after, strict=True):
            addresses = memory.addresses if isinstance(memory, Table) else {}
            kind = b"x" if isinstance(memory, Table) else TYPES.get(memory.dtype, b"x")
            parts += [kind, struct.pack("<q", len(before)), before, after, struct.pack("<q", len(addresses))]
            parts += [struct.pack("<qq", offset, self.index(target)) for offset, target in addresses.items()]
        parts.append(struct.pack("<q", len(self.arguments)))
        for x in self.arguments:
            if isinstance(x, Tensor | Table):
                parts.append(struct.pack("<cqd", b"p", self.index(x), 0.0))
            elif isinstance(x, float):
                parts.append(struct.pack("<cqd", b"f", 0, x))
            else:
                parts.append(struct.pack("<cqd", b"0" if x is None else b"n", x or 0, 0.0))
        parts.append(struct.pack("<q", self.result))
        return b"".join(parts)


def training_cases(dtype: torch.dtype, kind: str, draw: "Draw", rate: float) -> Iterator[Case]:
    """Each kernel of a training step."""
    n, d, vocab, seed = 13, 37, 50, 12345678901234567
    x, branch, gain, bias, y = (draw.numbers(dtype, *shape) for shape in ((n, d), (n, d), (d,), (d,), (n, d)))
    total, mean, rstd = torch.zeros(n, d, dtype=dtype), torch.zeros(n), torch.zeros(n)
    out = torch.zeros(n, d, dtype=dtype)
    yield Case(f"add_norm_{kind}", (x, branch, gain, bias, total, out, mean, rstd, n, d, rate, seed, 1e-5))
    deviation = draw.numbers(torch.float32, n).abs() + 0.5
    dx, dbranch, dgain, dbias = (torch.zeros(*shape) for shape in ((n, d), (n, d), (d,), (d,)))
    dx, dbranch = dx.to(dtype), dbranch.to(dtype)
    moments, gradients = (draw.numbers(torch.float32, n), deviation), (dx, dbranch, dgain, dbias)
    for dsum in (None, branch):
        yield Case(f"add_norm_backward_{kind}", (y, dsum, x, gain, *moments, *gradients, n, d, rate, seed))
    yield Case(f"bias_relu_{kind}", (x, bias, n, d))
    yield Case(f"bias_relu_backward_{kind}", (y, x, dx, dbias, n, d))
    ids, places = draw.integers(n, low=-1, high=vocab), draw.integers(n, low=0, high=20)
    table, positions, dtable = draw.numbers(dtype, vocab, d), draw.numbers(dtype, 20, d), torch.ones(vocab, d)
    yield Case(f"embed_{kind}", (ids, places, table, positions, out, n, d, 6.0, rate, seed))
    yield Case(f"embed_backward_{kind}", (y, ids, dtable, n, d, 6.0, rate, seed))
    logits, targets = draw.numbers(dtype, n, vocab), draw.integers(n, low=0, high=vocab)
    yield Case(f"smoothed_loss_{kind}", (logits, targets, mean, rstd, n, vocab, 0.1))
    logits = draw.numbers(dtype, 2 * n, vocab)
    yield Case(f"consistent_loss_{kind}", (logits, targets, mean, rstd, n, vocab, 0.1, 5.0))


def attention_cases(
    dtype: torch.dtype, kind: str, draw: "Draw", widths: tuple[int, int, int], rate: float, causal: bool
) -> Iterator[Case]:
    """Attention of packed sequences and its gradients."""
    n_heads, d_k, d_v = widths
    lengths, src_lengths = (1, 17, 5, 33), (1, 17, 5, 33) if causal else (9, 2, 40, 16)
    offsets, src_offsets = (torch.tensor([0, *ends]).cumsum(0) for ends in (lengths, src_lengths))
    n, n_keys = int(offsets[-1]), int(src_offsets[-1])
    q, k, dq, dk = (draw.numbers(dtype, rows, n_heads * d_k) for rows in (n, n_keys, n, n_keys))
    v, dv, out, dout = (draw.numbers(dtype, rows, n_heads * d_v) for rows in (n_keys, n_keys, n, n))
    strides = {"q_stride": n_heads * d_k, "k_stride": n_heads * d_k, "v_stride": n_heads * d_v}
    shape = structure(
        "Shape", q_offsets=offsets, k_offsets=src_offsets, n_sentences=len(lengths), n_heads=n_heads, d_k=d_k,
        d_v=d_v, **strides, seed=987654321, rate=rate, causal=causal,
    )  # fmt: skip
    yield Case(f"attend_{kind}", (q, k, v, out, shape))
    yield Case(f"attend_backward_{kind}", (q, k, v, dout, dq, dk, dv, shape))


def packed_weight(draw: "Draw", d_in: int, d_out: int, dtype: torch.dtype) -> Table:
    panels = -(-d_out // 32)
    bias, steps = draw.numbers(torch.float32, panels * 32), draw.numbers(torch.float32, panels * 32).abs() / 1000
    sizes = {"d_in": d_in, "d_out": d_out, "number_bytes": dtype.itemsize}
    if dtype != torch.int8:
        shape = (panels, d_in, 32) if dtype == torch.float32 else (panels, -(-d_in // 2), 32, 2)
        weights = draw.numbers(torch.float32, *shape) * d_in**-0.5
        return structure("Weight", panels=weights.to(dtype), offsets=None, steps=None, bias=bias, **sizes)
    numbers = draw.integers(panels, -(-d_in // 4), 32, 4, low=-64, high=65)  # which every set adds exactly
    offsets = (-128 * numbers.sum(dim=(1, 3))).flatten().int()
    return structure("Weight", panels=numbers.to(dtype), offsets=offsets, steps=steps, bias=bias, **sizes)


def search_cases(dtype: torch.dtype, kind: str, draw: "Draw", widths: tuple[int, int, int]) -> Iterator[Case]:
    """Each kernel of a search's step."""
    n_heads, d_k, d_v = widths
    n_sentences, beam, capacity, d, d_ff, vocab, n_layers = 3, 4, 20, 32, 48, 70, 2
    n, keys, values = n_sentences * beam, n_heads * d_k, n_heads * d_v
    heads = {"n": n_heads, "d_k": d_k, "d_v": d_v}
    rows = torch.tensor([i for i in range(n) if i != 5])
    n_rows = len(rows)
    slots = torch.arange(n).view(n_sentences, beam).flip(1).flatten()
    ancestors = (torch.arange(n)[:, None] // beam * beam + draw.integers(n, capacity, low=0, high=beam)).int()
    lengths = draw.integers(n_sentences, low=0, high=capacity).repeat_interleave(beam)
    src_lengths = draw.integers(n_sentences, low=1, high=30)
    beams = structure(
        "Beams", ancestors=ancestors, rows=rows, slots=slots, lengths=lengths, src_lengths=src_lengths,
        n_rows=n_rows, beam=beam, capacity=capacity, heads=heads,
    )  # fmt: skip

    def caches() -> tuple[Tensor, Table]:
        sources = [draw.numbers(dtype, int(length), keys + values) for length in src_lengths]
        return draw.numbers(dtype, n, capacity, keys + values), addresses_of(sources)

    def layer(products: torch.dtype) -> Table:
        cache, memories = caches()
        shapes = {"qkv": (d, 2 * keys + values), "self_out": (values, d), "query": (d, keys), "cross_out": (values, d)}
        shapes |= {"inner": (d, d_ff), "outer": (d_ff, d)}
        weights = {name: packed_weight(draw, *shape, products) for name, shape in shapes.items()}
        parts = [f"{norm}_{part}" for norm in ("self", "cross", "feed_forward") for part in ("gain", "bias")]
        norms = {name: draw.numbers(dtype, d) for name in parts}
        return structure("DecoderLayer", **weights, **norms, cache=cache, memories=memories)

    first_norm, embedding_norm = (
        {f"{name}_{part}": draw.numbers(dtype, d) for part in ("gain", "bias")} for name in ("first", "embedding")
    )
    options = [
        {"activation": 0, "first_word": 0, **dict.fromkeys((*first_norm, *embedding_norm))},
        {"activation": 1, "first_word": 1, **first_norm, **dict.fromkeys(embedding_norm)},
        {"activation": 2, "first_word": 21, **first_norm, **embedding_norm},
    ]
    kinds = (torch.float32,) if dtype == torch.float32 else (torch.bfloat16, torch.int8)
    for products, changes in itertools.product(kinds, options):
        layers = several([layer(products) for _ in range(n_layers)])
        tables = {"embedding": draw.numbers(dtype, vocab, d), "positions": draw.numbers(dtype, capacity, d)}
        in_int8 = products == torch.int8 and changes["activation"] == 2
        tables |= {"table": packed_weight(draw, d, vocab, products) if in_int8 else None}
        stack = dict(layers=layers, n_layers=n_layers, d_model=d, d_ff=d_ff, **tables, scale=d**0.5, epsilon=1e-5)
        step = structure("Step", **stack, **changes, beams=beams, tokens=draw.integers(n, low=0, high=vocab))
        yield Case(f"decoder_step_{kind}", (step, torch.zeros(n_rows, d)), products)
        account = account_of(draw, lengths[::beam] // 2, beam=beam, width=capacity)
        rules = structure("EndingRules", penalties=torch.ones(2 * capacity).double(), eos=2, early_stopping=0)
        prefixes = [prefix_structure(Prefix.of_ids([30, 31] * (sentence == 1))) for sentence in range(n_sentences)]
        never, states = torch.arange(vocab) < 2, torch.zeros(n_sentences, beam).long()
        states[1, 1:] = 1
        searched = structure(
            "Search", account=account, rules=rules, output=packed_weight(draw, d, vocab, products),
            prefixes=several(prefixes), states=states, never=never, min_tokens=3, k=2 * beam,
            most_steps=4, least_steps=1, most_done=n_sentences, n_waiting=None,
        )  # fmt: skip
        done, n_steps = torch.zeros(n_sentences, dtype=torch.bool), torch.tensor([-2])
        if products != torch.int8:  # which may decide otherwise between two beams that are nearer than their rounding
            yield Case(f"search_steps_{kind}", (step, searched, done, n_steps), products)
        src = torch.tensor([0, 7, 8, n])  # where the sources begin and end
        of_source = torch.arange(3).repeat_interleave(src.diff())
        tokens = structure(
            "Beams", ancestors=None, rows=torch.arange(n), slots=None, src_lengths=src_lengths,
            lengths=torch.arange(n) - src[of_source], n_rows=n, beam=1, capacity=0, heads=heads,
        )  # fmt: skip
        step = structure("Step", **stack, **changes, beams=tokens, tokens=draw.integers(n, low=0, high=vocab))
        kv = several([packed_weight(draw, d, keys + values, products) for _ in range(n_layers)])
        sources = structure(
            "Sentences", offsets=src, sentences=of_source, n_sentences=3, n_memories=n_layers, kv=kv,
            memories=torch.zeros(n_layers, n, keys + values, dtype=dtype), causal=0, weights=None, longest_src=0,
        )  # fmt: skip
        yield Case(f"encode_sources_{kind}", (step, sources), products)
        targets = structure(
            "Sentences", offsets=src, sentences=of_source, n_sentences=3, n_memories=0, kv=None, memories=None,
            causal=1, weights=torch.zeros(n_layers, n, 30), longest_src=30,
        )  # fmt: skip
        yield Case(f"decode_targets_{kind}", (step, targets, torch.zeros(n, d)), products)


def prefix_structure(prefix: Prefix) -> Table:
    arrays = {name: torch.from_numpy(getattr(prefix, name)) for name in ("begins", "ids", "nexts", "needed")}
    numbers = {"end": prefix.end, "n_given": prefix.n_given}
    return structure("Prefix", **{name: x if len(x) else None for name, x in arrays.items()}, **numbers)


def account_of(draw: "Draw", lengths: Tensor, *, beam: int, width: int) -> Table:
    """Of sentences in the middle of their searches, of which the first has two steps left."""
    n, n_best, most = len(lengths), 2, torch.tensor([2] + [width] * (len(lengths) - 1))
    ids = draw.integers(n, beam, width, low=3, high=70).int()
    return structure(
        "BeamAccount", lengths=lengths, limits=lengths + most, n_ended=torch.zeros_like(lengths),
        log_probs=draw.numbers(torch.float64, n, beam) - 5, last=draw.integers(n, beam, low=3, high=70), history=ids,
        best_scores=torch.full((n, n_best), -torch.inf).double(), best_log_probs=torch.zeros(n, n_best).double(),
        best_lengths=torch.zeros(n, n_best).long(), best_ids=torch.zeros(n, n_best, width, dtype=torch.int32),
        n_sentences=n, beam=beam, n_best=n_best, width=width,
    )  # fmt: skip


def continuation_cases(draw: "Draw") -> Iterator[Case]:
    n_sentences, beam, vocab, d, eos, k = 3, 4, 700, 26, 2, 8
    n = n_sentences * beam
    rows = torch.tensor([i for i in range(n) if i != 5])
    log_probs = draw.numbers(torch.float64, n_sentences, beam)
    some = torch.tensor([7, 30, 600], dtype=torch.int32)
    allowed, n_allowed = Table(bytes(8 * n), {8 * 6: some}), torch.full((n,), 3)
    never, may_end = torch.zeros(vocab, dtype=torch.bool), torch.tensor([True, False, True])
    never[:2] = True
    account = (rows, log_probs, allowed, n_allowed, never, may_end)
    results = (torch.zeros(n_sentences, k, dtype=torch.float64), torch.zeros(n_sentences, k, dtype=torch.int64))
    sizes = (len(rows), n_sentences, beam)
    logits, others = (draw.numbers(torch.float32, n, vocab) * 3 for _ in range(2))
    yield Case("best_continuations", (logits[: len(rows)].clone(), *account, *results, *sizes, vocab, eos, k))
    ids, of_ids = draw.integers(n, 2, low=-1, high=vocab), torch.zeros(n, 2, dtype=torch.float64)
    yield Case("log_probs_of", (logits, ids, of_ids, n, 2, vocab))
    yield Case("mean_logits", (addresses_of([logits, others]), torch.zeros(n, vocab), 2, n, vocab))
    numbers = torch.full((n,), 0.4).double()
    for top_k, top_p, temperature in ((0, 1.0, 1.0), (9, 0.5, 0.7)):
        drawn = (torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.float64))
        rest = (numbers, allowed, n_allowed, never, may_end, *drawn, n, beam, vocab, eos, top_k, top_p, temperature)
        yield Case("draw", (logits, *rest))
    for products in (torch.float32, torch.int8, torch.bfloat16):
        x, y = draw.numbers(torch.float32, 14, d), torch.zeros(14, 75)
        yield Case("packed_product", (x, packed_weight(draw, d, 75, products), y, 14, 1), products)


def tile_cases(draw: "Draw") -> Iterator[Case]:
    m, n, depth, bf16 = 70, 45, 83, torch.bfloat16
    bias = draw.numbers(bf16, n)
    for a_transposed in (0, 1):
        for b_transposed in (0, 1):
            a = draw.numbers(bf16, depth, m) if a_transposed else draw.numbers(bf16, m, depth)
            b = draw.numbers(bf16, depth, n) if b_transposed else draw.numbers(bf16, n, depth)
            for out, given, add in ((draw.numbers(bf16, m, n), bias, 0), (draw.numbers(torch.float32, m, n), None, 1)):
                operands = (a, a.shape[1], a_transposed, b, b.shape[1], b_transposed)
                yield Case("tile_product", (*operands, given, out, n, m, n, depth, add))


class Draw:
    """Random tensors."""

    def __init__(self, seed: int):
        self._generator = torch.Generator().manual_seed(seed)

    def numbers(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(dtype)

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator)


def all_cases() -> Iterator[Case]:
    draw = Draw(7)
    for dtype, kind in ((torch.float32, "float"), (torch.bfloat16, "bf16")):
        for rate in (0.0, 0.3):
            yield from training_cases(dtype, kind, draw, rate)
            for causal in (False, True):
                for widths in ((4, 32, 32), (2, 64, 64), (3, 5, 7)):
                    yield from attention_cases(dtype, kind, draw, widths, rate, causal)
        for widths in ((4, 32, 32), (4, 64, 64), (3, 5, 7)):
            yield from search_cases(dtype, kind, draw, widths)

    yield from continuation_cases(draw)
    yield from tile_cases(draw)
    yield Case("first_outside", (torch.tensor([3, 0, 4, 9, 2]), 5, 0, 9))


@pytest.fixture(scope="module")
def case_file(tmp_path_factory) -> Path:
    """What this machine's library computes, with every kernel in plain C++: its tests compare it with PyTorch."""
    compiling, linking = flags_of("c++", EMULATE, "-O0", *WARNINGS)
    folder = tmp_path_factory.mktemp("cases")
    build.compile_kernels(["c++"], compiling, linking, folder / "emulated.so")
    library = build._load_library(folder / "emulated.so")
    cases = list(all_cases())
    for case in cases:
        case.run(library)
        assert case.result or case.after != case.before, case.name
    (folder / "cases").write_bytes(struct.pack("<q", len(cases)) + b"".join(case.packed() for case in cases))
    return folder / "cases"


def test_the_cases_call_every_kernel():
    without_memory = {name for name, parameters in PARAMETERS.items() if parameters in ((), ("n",))}
    assert {case.name for case in all_cases()} == set(PARAMETERS) - without_memory - TESTED_ELSEWHERE


# Processors that have a set and nothing beyond it, as QEMU 7.2 and later name them: a program that runs what they lack
# is ended by SIGILL.
PROCESSORS = {
    ("aarch64", "generic"): "cortex-a53",
    ("aarch64", "neon"): "neoverse-n1",
    ("aarch64", "i8mm"): "max",
    ("x86_64", "generic"): "Nehalem",
    ("x86_64", "avx2"): "Haswell",
}
# For one of a kind make test compiles fast; make soak runs what users get, by each compiler.
RUNS = [
    pytest.param("aarch64", "neon", "g++", FAST, id="fast neon"),
    *(
        pytest.param(machine, isa, compiler, more, marks=pytest.mark.soak, id=f"{machine} {isa} {compiler} {more}")
        for machine, isa in PROCESSORS
        for compiler, more in (("g++", ""), ("clang++", ""), ("g++", EMULATE))
        if more != EMULATE or isa in ("neon", "avx2")
    ),
]


def program_of_cases(machine: str, isa: str, compiler: str, more: str, folder: Path) -> Path:
    """run_cases.cpp with the kernels for a set, by a compiler for its architecture."""
    native, target = machine == architecture(), list[str]()
    if compiler == "clang++" and not native:
        target = [f"--target={machine}-linux-gnu"]
    elif not native:
        compiler = f"{machine}-linux-gnu-{compiler}"
    if not native and shutil.which(f"{machine}-linux-gnu-g++") is None:
        pytest.skip(f"no {machine}-linux-gnu-g++, whose libraries clang++ needs too")
    chosen = next(each for each in SETS[machine] if each.name == isa)
    compiling, linking = (
        [flag for flag in flags if flag != "-shared"]
        for flags in flags_of(compiler, *target, *more.split(), *WARNINGS, isa=chosen)
    )
    (folder / "listed.h").write_text("".join(f"KERNEL({name})\n" for name in sorted({c.name for c in all_cases()})))
    objects = []
    for source in (*build.SOURCES, HERE / "run_cases.cpp"):
        objects.append(str(folder / f"{source.stem}.o"))
        how = [] if source in build.SOURCES else ["-O0"]
        command = [compiler, *compiling, *how, f"-I{build.FOLDER}", f"-I{folder}", "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    program = folder / "run_cases"
    subprocess.run([compiler, *objects, *linking, "-static", "-o", str(program)], check=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "isa", "compiler", "more"), RUNS)
def test_the_kernels_compute_the_same_on_a_processor_that_has_no_more(machine, isa, compiler, more, tmp_path, request):
    emulator = f"qemu-{machine}"
    if shutil.which(emulator) is None:
        pytest.skip(f"no {emulator}")
    program = program_of_cases(machine, isa, compiler, more, tmp_path)
    case_file = request.getfixturevalue("case_file")  # compiled only where it is run

    def run(cases: Path, processor: str = PROCESSORS[machine, isa]) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"OMP_NUM_THREADS": "3"}
        return subprocess.run([emulator, "-cpu", processor, program, cases], env=env, capture_output=True, text=True)

    done = run(case_file)
    assert done.returncode == 0 and ", 0 wrong" in done.stdout, done.stdout + done.stderr
    assert (", 0 skipped" in done.stdout) == (more == EMULATE)
    content = bytearray(case_file.read_bytes())
    content[-8] ^= 1  # the expected result of the last case
    (tmp_path / "wrong").write_bytes(content)
    assert run(tmp_path / "wrong").returncode == 1
    less = next(iter(name for (of, name) in PROCESSORS if of == machine))
    if isa not in (less, "i8mm") and more != EMULATE:  # i8mm has no kernels of its own
        assert run(case_file, PROCESSORS[machine, less]).returncode == -signal.SIGILL


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
@pytest.mark.skipif(architecture() != "x86_64", reason="its valgrind is a processor with AVX2")
def test_valgrind_runs_what_is_compiled_for_avx2_and_nothing_wider(case_file, tmp_path):
    """It decodes no instruction of AVX-512, and is another reader of instructions than QEMU."""
    ran = {}
    for isa in ("avx2", "avx512"):
        (tmp_path / isa).mkdir()
        program = program_of_cases("x86_64", isa, "g++", "", tmp_path / isa)
        command = ["valgrind", "--tool=none", program, case_file]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        ran[isa] = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran["avx2"].returncode == 0 and ", 0 wrong" in ran["avx2"].stdout, ran["avx2"].stdout + ran["avx2"].stderr
    assert "unhandled instruction" in ran["avx512"].stderr and ran["avx512"].returncode != 0
