"""The compiled kernels: kept where nobody else can write, checked before they are loaded, made anew when damaged."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cffi import FFI

from heed.backends.cpu import account_ops, tensors, training_ops
from heed.backends.cpu.build import DIGEST_BYTES, SCRATCH, addresses, check_range, kernel, known_flags, library
from heed.backends.cpu.declarations import FOLDER, PARAMETERS, ffi, structure
from heed.backends.live_prefixes import NextIds
from heed.runtime.device import cache_folder
from heed.runtime.instruction_sets import chosen_set
from heed.runtime.locks import locked

pytestmark = [
    pytest.mark.slow,  # it compiles again and again
    pytest.mark.skipif(library() is None, reason="needs Linux and a C++ compiler"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
NOBODY = 65534

WITHOUT = "PyTorch's operations alone\n"
STATE = "from heed.backends.cpu.build import state; print(state())"
LOADED = """
import pathlib, sys
from heed.backends.cpu.build import _load_library
for path in sys.argv[1:]:
    try:
        print(_load_library(pathlib.Path(path)) and "loaded")
    except OSError as error:
        print(error)
"""


def python(code: str, *arguments: object, cache: Path, **options: Any) -> subprocess.CompletedProcess:
    """A process that finds its kernels in this place."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache / "tmp")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, **{"env": env} | options, capture_output=True, text=True, check=True)


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache with the library that the other tests use."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "heed").mkdir(mode=0o700)
    for path in cache_folder().glob("kernels-*.so"):
        shutil.copy2(path, tmp_path / "heed")
    return tmp_path


def kernels_in(cache: Path) -> list[Path]:
    """The newest last: those of other versions may lie beside it."""
    return sorted((cache / "heed").glob("kernels-*.so"), key=lambda path: path.stat().st_mtime)


def planted(tmp_path: Path) -> bytes:
    """A library that tells when it is loaded, with its hash behind it."""
    code = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { puts("code ran"); }\n'
    (tmp_path / "planted.c").write_text(code)
    made = tmp_path / "planted.so"
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", tmp_path / "planted.c", "-o", made], check=True)
    content = made.read_bytes()
    return content + hashlib.sha256(content).digest()


def test_the_library_is_looked_for_once_in_a_process():
    assert library() is library()


def test_a_kept_library_is_loaded_and_not_made_again(cache):
    done = python(STATE, cache=cache)
    assert (done.stdout, done.stderr) == ("Heed's kernels\n", "")


def test_the_parsed_declarations_are_those_of_the_headers():
    """Else they are parsed at each start: run python -m heed.backends.cpu.declarations."""
    assert not isinstance(ffi, FFI)


def test_a_damaged_library_is_not_loaded(cache, tmp_path):
    whole = kernels_in(cache)[-1]
    content = whole.read_bytes()
    third, half = len(content) // 3, len(content) // 2
    damaged = {
        "cut": content[:half],
        "zeroed": content[:4096] + bytes(len(content) - 4096),
        "flipped": content[:third] + bytes([content[third] ^ 1]) + content[third + 1 :],
        "empty": b"",
    }
    # What this process loads comes last, as it runs the library's code.
    for name, some in (damaged | {"without symbols": planted(tmp_path)}).items():
        (cache / "heed" / name).write_bytes(some)
        (cache / "heed" / name).chmod(0o600)
    (cache / "heed" / "folder").mkdir()
    os.mkfifo(cache / "heed" / "pipe")
    refused = [cache / "heed" / name for name in (*damaged, "folder", "pipe")]
    said = python(LOADED, *refused, whole, cache / "heed" / "without symbols", cache=cache).stdout.splitlines()
    assert len(said) == len(refused) + 3 and said[-3] == "loaded" and said[-2] == "code ran"
    assert all(f"{path}: " in line for path, line in zip(refused, said, strict=False))
    assert "undefined symbol" in said[-1]


def test_a_library_that_the_system_does_not_load_is_not_compiled_again(cache):
    code = b"not for this system"
    for path in kernels_in(cache):
        path.write_bytes(code + hashlib.sha256(code).digest())
    done = python(STATE, cache=cache)
    assert done.stdout == WITHOUT
    assert re.fullmatch(
        r"Heed's kernels cannot be used: .*: the system does not load it: .*, and are slower\.\n", done.stderr
    )


def test_a_damaged_library_is_made_anew_once(cache):
    env = os.environ | {"XDG_CACHE_HOME": str(cache), "HEED_KERNELS": "1 -O0"}  # which compiles fast
    not_made = "from heed.backends.cpu import build; build.compile_kernels = lambda *to: print(to[-1]); build.state()"
    path = Path(python(not_made, cache=cache, env=env).stdout.strip())
    for damaged in (path, *kernels_in(cache)):
        damaged.write_bytes(bytes(1_000_000))
    (cache / "heed" / f"{SCRATCH}abc").mkdir()  # by a process that was killed
    done = python(STATE, cache=cache, env=env)
    assert done.stdout == "Heed's kernels\n" and done.stderr.startswith("Compiling Heed's kernels")
    done = python(STATE, cache=cache, env=env)
    assert (done.stdout, done.stderr) == ("Heed's kernels\n", "")
    assert {path.suffix for path in (cache / "heed").iterdir()} == {"", ".so"}  # the lock, libraries


@as_root
def test_a_planted_library_is_not_loaded(cache, tmp_path):
    content = planted(tmp_path)
    anothers, writable, link = (cache / "heed" / name for name in ("another's", "can be written", "a link"))
    for path, mode in ((anothers, 0o600), (writable, 0o666), (tmp_path / "elsewhere.so", 0o600)):
        path.write_bytes(content)
        path.chmod(mode)
    os.chown(anothers, NOBODY, NOBODY)
    link.symlink_to(tmp_path / "elsewhere.so")
    paths = [anothers, writable, link]
    said = python(LOADED, *paths, cache=cache).stdout.splitlines()
    assert len(said) == 3 and all(str(path) in line for path, line in zip(paths, said, strict=True))
    assert "code ran" not in "".join(said)


def test_where_open_files_have_no_names_a_private_copy_is_loaded(tmp_path):
    """As on macOS: a second library, not the one that is loaded already."""
    content = planted(tmp_path)[:-DIGEST_BYTES]
    code = "import sys, pathlib; from heed.backends.cpu import build; folder = pathlib.Path(sys.argv[1])\n"
    code += "build._load_copy((folder / 'planted.so').read_bytes(), folder)"
    assert content == (tmp_path / "planted.so").read_bytes()
    before = sorted(tmp_path.iterdir())
    assert python(code, tmp_path, cache=tmp_path).stdout == "code ran\n"
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "heed"] == before


def test_the_compiler_that_is_named_is_used(tmp_path):
    (tmp_path / "tmp").mkdir()
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CXX": "no-such-compiler"}
    done = python(STATE, cache=tmp_path, env=env)
    assert done.stdout == WITHOUT and "they need the C++ compiler no-such-compiler (CXX), and none" in done.stderr
    env |= {"CXX": "false"}
    done = python(STATE, cache=tmp_path, env=env)
    assert done.stdout == WITHOUT and "cannot be used: false failed (1). PyTorch's operations" in done.stderr


@as_root
def test_a_folder_that_nothing_can_be_executed_from_is_named(cache, tmp_path):
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", place], check=True)
    try:
        shutil.copytree(cache / "heed", place / "heed")
        done = python(STATE, cache=place)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
    assert done.stdout == WITHOUT and done.stderr.startswith(
        f"Heed's kernels cannot be used: {place / 'heed'}/kernels-"
    )


def test_another_process_that_compiles_is_named_and_awaited_for_a_while(cache):
    for path in kernels_in(cache):
        path.unlink()
    with locked(cache / "heed"):
        done = python(f"from heed.backends.cpu import build; build.COMPILED_SECONDS = 2.0; {STATE}", cache=cache)
    assert done.stdout == WITHOUT
    waiting, unusable = done.stderr.splitlines()
    assert waiting == f"Waiting for process {os.getpid()}, which is at work in {cache / 'heed'}."
    assert f"{cache / 'heed'}: process {os.getpid()} is at work there" in unusable


@as_root
@pytest.mark.parametrize("how", ["another's", "can be written"])
def test_a_cache_that_another_user_can_write_is_not_used(cache, tmp_path, how):
    private = cache / "tmp" / f"heed-{os.geteuid()}"
    shutil.copytree(cache / "heed", private)
    for path in kernels_in(cache):
        path.write_bytes(planted(tmp_path))
    if how == "another's":
        os.chown(cache / "heed", NOBODY, NOBODY)
    else:
        (cache / "heed").chmod(0o777)
    done = python(STATE, cache=cache)
    assert done.stdout == "Heed's kernels\n", done
    assert done.stderr == f"{cache / 'heed'} belongs to another user or can be written by one, so it is not used.\n"
    os.chown(private, NOBODY, NOBODY)
    assert python(STATE, cache=cache).stdout == WITHOUT


WITHOUT_NAME = """
import codecs, os
from heed.backends.cpu import build
codecs.lookup("ascii")  # while this user may read Python's files
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
del os.environ["HOME"], os.environ["XDG_CACHE_HOME"]
print(build.state())
"""


@as_root
def test_a_user_without_home_and_name_has_kernels(cache):
    private = cache / "tmp" / "heed-12345"
    shutil.copytree(cache / "heed", private)
    for path in (private, *private.iterdir()):
        os.chown(path, 12345, 12345)
    for folder in (cache, *cache.parents):
        if not folder.stat().st_mode & 0o001:  # pytest keeps its folders to itself
            folder.chmod(0o755)
    (cache / "tmp").chmod(0o1777)
    done = python(WITHOUT_NAME, cache=cache)
    assert (done.stdout, done.stderr) == ("Heed's kernels\n", "")


def test_a_signal_ends_the_compiling_at_once_and_leaves_nothing(tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "heed", "bench", "train", "--preset", "tiny"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "Compiling" in process.stderr.readline()
    while not list((tmp_path / "heed").glob(f"{SCRATCH}*/*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)  # on a busy machine; that it was ended is what the folder shows
    assert process.returncode == 143 and "Traceback" not in said, said
    assert [path.name for path in (tmp_path / "heed").iterdir()] == [".lock"]
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "heed")], capture_output=True, text=True).stdout


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_python_reads_the_structures_and_functions_that_the_compiler_sees(tmp_path, compiler):
    """Sizes and places of fields, and that each function is declared with as many parameters."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    lines = ["#include <cstddef>", "#include <tuple>", '#include "kernels.h"', "using namespace heed;"]
    lines += ["template <class R, class... A> constexpr size_t n_parameters(R (*)(A...)) { return sizeof...(A); }"]
    read = [line for line in FOLDER.joinpath("kernels.h").read_text().splitlines() if line.startswith("struct ")]
    names = [line.split()[1] for line in read]
    for name in names:
        template = name in ("DecoderLayer", "Step", "Sentences")
        for number in ("<float>", "<bf16>") if template else ("",):
            lines.append(f"using {name}{number[1:-1]}_ = {name}{number};")
            kind, of = ffi.typeof(name), f"{name}{number[1:-1]}_"
            lines.append(f"static_assert(sizeof({of}) == {ffi.sizeof(kind)});")
            lines += [f"static_assert(offsetof({of}, {field}) == {form.offset});" for field, form in kind.fields]
    lines += [f"static_assert(n_parameters({name}) == {len(of)});" for name, of in PARAMETERS.items()]
    assert len(names) >= 10 and len(PARAMETERS) >= 40
    (tmp_path / "read.cpp").write_text("\n".join(lines))
    command = [compiler, "-std=c++17", "-Wno-invalid-offsetof", f"-I{FOLDER}", "-fsyntax-only", tmp_path / "read.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_a_call_that_does_not_fit_the_declaration_is_refused():
    with pytest.raises(TypeError, match="kernel reorder_ancestors: n given; expected ancestors, slots, parents"):
        kernel("reorder_ancestors")(n=1)
    with pytest.raises(KeyError):
        structure("EndingRules", patience=1)


def test_the_door_for_arrays_names_both_shapes():
    for x, shown in (
        (np.zeros((3, 4), np.float32), r"\(3, 4\) of float32; expected \(3, 5\) of float32"),
        (np.zeros((3, 5)), r"\(3, 5\) of float64; expected \(3, 5\) of float32"),
        (np.zeros((5, 3), np.float32).T, r"\(3, 5\) of float32 with gaps; expected"),
    ):
        with pytest.raises(ValueError, match=shown):
            addresses("some", x=(x, (3, 5), np.float32))


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (torch.zeros(3, 4), r"\(3, 4\) of torch.float32 on cpu; expected \(3, 5\) of torch.float32"),
        (torch.zeros(3, 5, dtype=torch.float64), r"torch.float64 on cpu; expected \(3, 5\) of torch.float32"),
        (torch.zeros(5, 3).T, r"\(3, 5\) of torch.float32 on cpu with gaps; expected"),
        (torch.zeros(3, 5, device="meta"), r"on meta; expected"),
    ],
)
def test_the_door_names_both_shapes(x, shown):
    with pytest.raises(ValueError, match=shown):
        tensors.addresses("some", x=(x, (3, 5), torch.float32))


def test_numbers_beyond_a_table_never_reach_the_kernels():
    check_range("some", "ids", np.array([0, 4]), end=5)
    check_range("some", "ids", np.empty(0, np.int64), end=5)
    table, positions = torch.zeros(5, 8, requires_grad=True), torch.zeros(9, 8)
    for ids, places in (([5], [0]), ([-1], [0]), ([2**40], [0]), ([0], [9]), ([0], [-1])):
        with pytest.raises(IndexError, match="kernel embed: "):
            training_ops.embed(torch.tensor(ids), torch.tensor(places), table, positions, scale=1.0, dropout=0.0)
    for target in (5, -1, 2**40):
        with pytest.raises(IndexError, match=f"targets holds {target}; expected 0 to 4"):
            training_ops.loss_(torch.zeros(1, 5), torch.tensor([target]), label_smoothing=0.1)
        with pytest.raises(IndexError, match=f"targets holds {target}; expected 0 to 4"):
            options = {"label_smoothing": 0.1, "consistency": 5.0}
            training_ops.loss_(torch.zeros(2, 5), torch.tensor([target]), **options)
    with pytest.raises(IndexError, match="rows holds 4; expected 0 to 3"):
        account_ops.best_continuations(
            np.zeros((1, 5), np.float32), np.array([4]), np.zeros((2, 2)),
            NextIds(np.zeros(5, np.bool_), np.ones(2, np.bool_), eos=2), k=2,
        )  # fmt: skip
    with pytest.raises(IndexError, match="an id is out of range"):
        account_ops.log_probs_of(np.zeros((1, 5), np.float32), np.array([[5]]))


def test_instructions_that_the_compiler_does_not_know_are_left_out(tmp_path):
    compiler = tmp_path / "old-compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *bf16*) echo unknown >&2; exit 1;; esac\n')
    compiler.chmod(0o755)
    flags = ["-O3", "-march=skylake-avx512", "-mavx512vnni", "-mavx512bf16"]
    assert known_flags([str(compiler)], flags) == flags[:3]
    assert known_flags([str(compiler)], flags[:3]) == flags[:3]


@pytest.mark.soak
@pytest.mark.skipif(chosen_set().name not in ("avx512", "amx"), reason="needs another set than the largest")
def test_each_set_has_a_library_of_its_own_and_named_processors_take_its_place(cache):
    for path in kernels_in(cache):
        path.unlink()
    code = f"{STATE}; print(library().has_int8(), library().has_bf16())".replace("state;", "library, state;")
    without = python(STATE, cache=cache, env=os.environ | {"XDG_CACHE_HOME": str(cache), "HEED_ISA": "generic"})
    assert without.stdout == "PyTorch's operations alone, which are faster than Heed's kernels with SSE2\n"
    assert not kernels_in(cache)
    quickly = {"XDG_CACHE_HOME": str(cache), "HEED_KERNELS": "1 -O0"}
    for more in ({"HEED_ISA": "generic"}, {"HEED_KERNELS": "1 -O0 -march=x86-64"}):
        done = python(code, cache=cache, env=os.environ | quickly | more)
        assert done.stdout.split()[-2:] == ["0", "0"]
    assert sorted(path.name.split("-")[1] for path in kernels_in(cache)) == sorted(["generic", chosen_set().name])
