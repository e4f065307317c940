"""The loops of products as compilers make them: sums stay in registers, and nothing but multiplying takes time.

Nothing is run, so each of x86-64's instruction sets is looked at on any machine that has the compiler.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from heed.backends.cpu import build
from heed.runtime.instruction_sets import SETS, InstructionSet, architecture

SOURCE = Path(__file__).parent / "product_loops.cpp"
MULTIPLY = re.compile(r"(?:\{e?vex\} )?(?:vfn?m(?:add|sub)\d+ps|vpdpbusd|vpmaddubsw)\b")
STACK = re.compile(r"%[xyz]mm.*\(%rsp|\(%rsp.*%[xyz]mm")
JUMP = re.compile(r"j\w+ (\.L\w+)")
# How llvm-mca calls a processor that has the set.
PROCESSORS = {"avx2": "skylake", "avxvnni": "alderlake", "avx512": "icelake-server", "amx": "sapphirerapids"}
MCA = next(filter(shutil.which, (f"llvm-mca-{n}" for n in range(30, 17, -1))), None)  # earlier ones know less
MOST = 1.2  # times what the ports that multiply and load need
SHORT = 10  # sums, with fewer of which a block waits for the last multiplication of each, not for ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not build.FOLDER.is_dir(), reason="the kernels' sources are not at hand"),
    pytest.mark.skipif(architecture() != "x86_64", reason="its compilers make code for x86-64"),
]


@dataclass(frozen=True)
class Loop:
    """An innermost loop that multiplies."""

    function: str
    body: list[str]  # instructions

    @property
    def n_multiplies(self) -> int:
        return sum(bool(MULTIPLY.match(line)) for line in self.body)

    @property
    def n_sums(self) -> int:
        return len({re.split(r"[\s,]+", line)[-1] for line in self.body if MULTIPLY.match(line)})


def loops_of(assembly: str) -> list[Loop]:
    """The innermost loops with a multiplication."""
    function, instructions, labels = "", list[tuple[str, str]](), dict[str, int]()
    for line in assembly.splitlines():
        if label := re.match(r"([\w.$]+):", line):
            labels[label[1]] = len(instructions)
            function = function if label[1].startswith(".L") else label[1]
        elif re.match(r"\s+[a-z{]", line):
            instructions.append((function, " ".join(line.split("#")[0].split())))
    loops, ends = [], [0]
    for end, (function, instruction) in enumerate(instructions):
        jump = JUMP.match(instruction)
        begin = labels.get(jump[1], end + 1) if jump else end + 1
        if begin <= end and begin >= ends[-1]:  # back, and over no other loop
            ends.append(end)
            loop = Loop(function, [line for _, line in instructions[begin : end + 1]])
            # A jump back is not a loop if the function ends between; scaling integers is not a product of theirs.
            is_loop = not any(re.match(r"(?:call|ret)", line) for line in loop.body)
            scales = "int8" in function and any(line.startswith("vcvtdq2ps") for line in loop.body)
            loops += [loop] * (is_loop and not scales and loop.n_multiplies > 0)
    return loops


def compiled_loops(compiler: str, isa: InstructionSet, folder: Path, *more: str) -> list[Loop]:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    flags, _ = build.flags(version, processor=isa.flags_with(isa.needs | {name for name, _ in isa.extras}))
    made = folder / f"{isa.name}.s"
    command = [compiler, *flags, *more, f"-I{build.FOLDER}", "-S", str(SOURCE), "-o", str(made)]
    subprocess.run(command, check=True)
    return loops_of(made.read_text())


X86_SETS = [isa for isa in SETS["x86_64"] if isa.name in PROCESSORS]
each_set = pytest.mark.parametrize("isa", X86_SETS, ids=lambda isa: isa.name)


@pytest.mark.parametrize("compiler", ["g++", pytest.param("clang++", marks=pytest.mark.soak)])
@each_set
def test_no_sum_lies_in_memory(compiler, isa, tmp_path):
    loops = compiled_loops(compiler, isa, tmp_path)
    assert len(loops) >= 8 and max(loop.n_multiplies for loop in loops) >= 16
    for loop in loops:
        assert [line for line in loop.body if STACK.search(line)] == [], loop.function


def test_sums_of_64_bytes_on_a_processor_without_such_registers_are_found(tmp_path):
    """What the test above is for: the kernels as they were before their vectors had the registers' length."""
    (avx2,) = (isa for isa in SETS["x86_64"] if isa.name == "avx2")
    loops = compiled_loops("g++", avx2, tmp_path, "-DHEED_EMULATE=16")
    assert any(STACK.search(line) for loop in loops for line in loop.body)


@pytest.mark.skipif(MCA is None, reason="no llvm-mca")
@each_set
def test_a_loop_takes_hardly_longer_than_its_multiplications_and_loads(isa, tmp_path):
    loops = [loop for loop in compiled_loops("g++", isa, tmp_path) if loop.n_sums >= SHORT]
    assert len(loops) >= 3
    for loop in loops:
        needed, taken = cycles(loop, PROCESSORS[isa.name])
        assert taken <= MOST * needed, (loop.function, needed, taken)


def cycles(loop: Loop, processor: str) -> tuple[float, float]:
    """Of an iteration: what the multiplications or the loads need, and what it takes, by llvm-mca."""
    text = "\n".join(line for line in loop.body[:-1])
    command = [str(MCA), f"-mcpu={processor}", "-iterations=200", "-"]
    shown = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    total = int(re.search(r"Total Cycles:\s+(\d+)", shown)[1]) / 200
    multiplies = loads = 0.0
    table = shown[shown.index("[1]    [2]    [3]    [4]    [5]    [6]    Instructions:") :].splitlines()[1:]
    for row in table[: len(loop.body) - 1]:
        _, _, throughput, *rest = row.split()
        instruction = " ".join(word for word in rest if word not in ("*", "U"))
        multiplies += float(throughput) * bool(MULTIPLY.match(instruction))
        loads += 0.5 * ("(" in instruction)  # two a cycle
    return max(multiplies, loads), total
