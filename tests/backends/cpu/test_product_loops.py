"""The loops of products as compilers make them: sums stay in registers, and nothing but multiplying takes time.

Nothing is run, so each instruction set of x86-64 and of 64-bit Arm is looked at on any machine that has the compiler.
"""

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from heed.backends.cpu import build
from heed.runtime.instruction_sets import SETS, InstructionSet, architecture

SOURCE = Path(__file__).parent / "product_loops.cpp"
MCA = next(filter(shutil.which, (f"llvm-mca-{n}" for n in range(30, 17, -1))), None)  # earlier ones know less
MOST = 1.15  # times what the ports that multiply or load need
SHORT = 10  # sums, with fewer of which a block waits for the last multiplication of each, not for ports


@dataclass(frozen=True)
class Assembly:
    """How an architecture's instructions are told apart."""

    multiply: str  # instructions that a product needs
    adds: str  # those that read the register that they write
    vector: str  # a vector register and its number
    targets: str  # the operands that an instruction writes
    stack: str
    store: str  # of a vector, anywhere
    load: str
    jump: str  # to a label
    comment: str
    compilers: tuple[str, ...]
    clang: tuple[str, ...]  # its flags for this architecture

    def on_stack(self, line: str) -> bool:
        return bool(re.search(self.stack, line) and re.search(self.vector, line))

    def written(self, line: str) -> set[str]:
        found = re.search(self.targets, line)
        return set(re.findall(self.vector, found[0])) if found and not re.match(self.store, line) else set()

    def read(self, line: str) -> set[str]:
        others = line if re.match(self.adds, line) or re.match(self.store, line) else re.sub(self.targets, "", line)
        return set(re.findall(self.vector, others))


X86 = Assembly(
    multiply=r"(?:\{e?vex\} )?(?:vfn?m(?:add|sub)\d+ps|vpdpbusd|vpmaddubsw|vpmaddwd)\b",
    adds=r"(?:\{e?vex\} )?(?:vfn?m(?:add|sub)\d+ps|vpdpbusd) ",
    vector=r"%[xyz]mm(\d+)",
    targets=r"%[xyz]mm\d+$",
    stack=r"\(%rsp",
    store=r"vmov\w+ %[xyz]mm\d+, .*\(",
    load=r"(?!lea|vmov\w+ %[xyz]mm).*\(",
    jump=r"j\w+ (\.L\w+)",
    comment="#",
    compilers=("g++", "g++-11", "g++-13", "g++-14"),
    clang=("--target=x86_64-linux-gnu",),
)
ARM = Assembly(
    multiply=r"(?:fmla|sdot) v",
    adds=r"(?:fmla|sdot) v",
    vector=r"\b[vqds](\d+)\b",
    targets=r"^ldp \w+, \w+|^ld1r \S+ \S+ |^\w+ \S+",
    stack=r"\[(?:sp|x29)\b",
    store=r"st\w+ [{qds]",
    load=r"ld\w+ [{qds]",
    jump=r"(?:b\.?\w\w|cbn?z \w+,|tbn?z \w+, #?\d+,) (\.L\w+)",
    comment="//",
    compilers=("aarch64-linux-gnu-g++",),
    clang=("--target=aarch64-linux-gnu",),  # its loops for macOS are made by the same rules
)


@dataclass(frozen=True)
class Processor:
    """One that has the set, by llvm-mca's name."""

    name: str
    loads: int  # vectors a cycle


# Sets by their architecture, and the processors whose cycles are counted.
PROCESSORS = {
    ("x86_64", "avx2"): [Processor("skylake", 2), Processor("znver4", 2)],
    ("x86_64", "avxvnni"): [Processor("alderlake", 3)],
    ("x86_64", "avx512"): [Processor("icelake-server", 2)],
    ("x86_64", "amx"): [Processor("sapphirerapids", 2)],
    ("aarch64", "generic"): [Processor("neoverse-n1", 2)],
    ("aarch64", "neon"): [Processor("neoverse-n1", 2), Processor("neoverse-v2", 3)],
    ("aarch64", "i8mm"): [Processor("neoverse-v2", 3)],
}
# More than one set of a kind, or of processors that fewer people own, is looked at by make soak alone.
FIRST = {("x86_64", "avx2"), ("x86_64", "avxvnni"), ("aarch64", "neon")}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not build.FOLDER.is_dir(), reason="the kernels' sources are not at hand"),
    pytest.mark.skipif(architecture() != "x86_64", reason="its compilers make code for x86-64 and, as asked, for Arm"),
]


@dataclass(frozen=True)
class Loop:
    """An innermost loop that multiplies."""

    assembly: Assembly
    function: str
    body: tuple[str, ...]  # instructions

    def count(self, kind: str) -> int:
        return sum(bool(re.match(kind, line)) for line in self.body)

    @property
    def n_multiplies(self) -> int:
        return self.count(self.assembly.multiply)

    @property
    def n_sums(self) -> int:
        """Vectors that one iteration leaves to the next."""
        left, written = set[str](), set[str]()
        for line in self.body:
            left |= self.assembly.read(line) - written
            written |= self.assembly.written(line)
        return len(left & written)

    @property
    def on_stack(self) -> list[str]:
        return [line for line in self.body if self.assembly.on_stack(line)]


def loops_of(text: str, assembly: Assembly) -> list[Loop]:
    """The innermost loops with a multiplication."""
    function, instructions, labels = "", list[tuple[str, str]](), dict[str, int]()
    for line in text.splitlines():
        if label := re.match(r"([\w.$]+):", line):
            labels[label[1]] = len(instructions)
            function = function if label[1].startswith(".L") else label[1]
        elif re.match(r"\s+[a-z{]", line):
            instructions.append((function, " ".join(line.split(assembly.comment)[0].split())))
    loops, ends = [], [0]
    for end, (function, instruction) in enumerate(instructions):
        jump = re.match(assembly.jump, instruction)
        begin = labels.get(jump[1], end + 1) if jump else end + 1
        if begin <= end and begin >= ends[-1]:  # back, and over no other loop
            ends.append(end)
            loop = Loop(assembly, function, tuple(line for _, line in instructions[begin : end + 1]))
            # A jump back is no loop if the function ends between; what scales integers is no product of theirs; and a
            # loop that stores results is one over blocks, behind whose inner loop the compiler put the last odd step.
            is_loop = not any(re.match(r"(?:call|ret|bl )", line) for line in loop.body)
            scales = "int8" in function and any(re.match("vcvtdq2ps|scvtf", line) for line in loop.body)
            stores = any(re.match(assembly.store, line) and not assembly.on_stack(line) for line in loop.body)
            loops += [loop] * (is_loop and not scales and not stores and loop.n_multiplies > 0)
    return loops


@functools.cache
def compiled_loops(compiler: str, machine: str, isa: InstructionSet, *more: str) -> list[Loop]:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    assembly = {"x86_64": X86, "aarch64": ARM}[machine]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    flags, _ = build.flags(version, processor=isa.flags_with(isa.needs | {name for name, _ in isa.extras}))
    target = assembly.clang if compiler.startswith("clang") else ()
    command = [compiler, *flags, *target, *more, f"-I{build.FOLDER}", "-S", str(SOURCE), "-o", "-"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return loops_of(done.stdout, assembly)


def set_named(machine: str, name: str) -> InstructionSet:
    return next(isa for isa in SETS[machine] if isa.name == name)


def each_compiler() -> list:
    """With every set that has vectors: what make test looks at, and what make soak does besides."""
    cases = []
    for machine, assembly in (("x86_64", X86), ("aarch64", ARM)):
        for compiler in (*assembly.compilers, "clang++", "clang++-19"):
            for isa in (isa for isa in SETS[machine] if (machine, isa.name) in PROCESSORS):
                first = (machine, isa.name) in FIRST and compiler == assembly.compilers[0]
                marks = () if first else pytest.mark.soak
                cases.append(pytest.param(compiler, machine, isa, marks=marks, id=f"{compiler}-{machine}-{isa.name}"))
    return cases


each = pytest.mark.parametrize(("compiler", "machine", "isa"), each_compiler())


@each
def test_no_sum_lies_in_memory(compiler, machine, isa):
    loops = compiled_loops(compiler, machine, isa)
    assert len(loops) >= 8 and max(loop.n_multiplies for loop in loops) >= 16
    for loop in loops:
        assert loop.on_stack == [], loop.function


def test_sums_of_64_bytes_on_a_processor_without_such_registers_are_found():
    """What the test above is for: the kernels as they were before their vectors had the registers' length."""
    loops = compiled_loops("g++", "x86_64", set_named("x86_64", "avx2"), "-DHEED_EMULATE=16", "-O2")
    assert any(loop.on_stack for loop in loops)


@pytest.mark.skipif(MCA is None, reason="no llvm-mca")
@each
def test_a_loop_takes_hardly_longer_than_its_multiplications_or_loads(compiler, machine, isa):
    loops = [loop for loop in compiled_loops(compiler, machine, isa) if loop.n_sums >= SHORT]
    if machine == "aarch64":  # what four steps at once leave over of a row in 8-bit integers is at most three
        loops = [loop for loop in loops if "int8" not in loop.function or loop.n_multiplies == 64]
    assert len(loops) >= (2 if compiler.startswith("clang") else 3)  # which uses one for all strides
    assert any("int8" in loop.function.lower() for loop in loops) or isa.name == "generic"
    for processor in PROCESSORS[machine, isa.name]:
        for loop in loops:
            needed, taken = cycles(loop, machine, processor)
            assert taken <= MOST * needed, (loop.function, processor.name, needed, taken)


@pytest.mark.parametrize(("compiler", "machine", "isa"), [case for case in each_compiler() if "aarch64-" in case.id])
def test_arm_needs_hardly_an_instruction_besides(compiler, machine, isa):
    """Of the blocks that take most of a product's time, by their sizes.

    Four steps of 8 rows by 2 vectors are 64 multiplications. At the least they need a load for each row's four numbers,
    one for each pair of vectors of weights, and to count and jump: 64 + 8 + 4 + 3 = 79 instructions, 1.23 each.
    """
    blocks = [loop for loop in compiled_loops(compiler, machine, isa) if loop.n_multiplies == 64]
    assert len(blocks) == (1 if isa.name == "generic" else 2)  # of floats, and of 8-bit integers
    for loop in blocks:
        assert len(loop.body) <= 1.4 * 64, loop.body


def cycles(loop: Loop, machine: str, processor: Processor) -> tuple[float, float]:
    """Of an iteration: what the multiplications or the loads need, and what it takes, by llvm-mca."""
    command = [str(MCA), f"-mtriple={machine}", f"-mcpu={processor.name}", "-iterations=200", "-"]
    text = "\n".join(loop.body[:-1])
    shown = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    total = int(re.search(r"Total Cycles:\s+(\d+)", shown)[1]) / 200
    multiplies = 0.0
    table = shown[shown.index("[1]    [2]    [3]    [4]    [5]    [6]    Instructions:") :].splitlines()[1:]
    for row in table[: len(loop.body) - 1]:
        _, _, throughput, *rest = row.split()
        instruction = " ".join(word for word in rest if word not in ("*", "U"))
        multiplies += float(throughput) * bool(re.match(loop.assembly.multiply, instruction))
    loads = loop.count(loop.assembly.load) + loop.count("ldp ")  # which loads two
    return max(multiplies, loads / processor.loads), total
