#!/usr/bin/env bash
# cffi: a program asks a library that it opened with ffi.dlopen() for a function that the library lacks.
# Expected: AttributeError, whichever way the FFI was made, so that hasattr(library, name) and getattr with a default
# tell whether a function is there.
# Happens: an FFI that parsed its declarations itself (in-line ABI mode) raises AttributeError; one from the module that
# emit_python_code() writes (out-of-line ABI mode), which starts without pycparser, raises ffi.error, which is no
# AttributeError: hasattr() raises instead of answering False.
# Seen with cffi 2.1.1, Python 3.11, glibc 2.36.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q cffi==2.1.1
venv/bin/python - <<'EOF'
import sys
from cffi import FFI

declarations = "double cos(double); int not_in_libm(int);"
inline, writer = FFI(), FFI()
inline.cdef(declarations)
writer.cdef(declarations)
writer.set_source("declared", None)
writer.emit_python_code("declared.py")
sys.path.insert(0, ".")
from declared import ffi as outline

raised = {}
for name, ffi in (("in-line", inline), ("out-of-line", outline)):
    library = ffi.dlopen("libm.so.6")
    assert library.cos(0.0) == 1.0
    try:
        raised[name] = hasattr(library, "not_in_libm")
    except Exception as error:
        raised[name] = f"{type(error).__name__}, an AttributeError: {isinstance(error, AttributeError)}"
    print(f"hasattr, {name}: {raised[name]}")
assert raised == {"in-line": False, "out-of-line": "error, an AttributeError: False"}
EOF
