"""Checks of the shapes in Heed's signatures, at a cost that hundreds of training runs can bear.

jaxtyping's import hook wraps every function of a module, and its wrapper costs more than most of what these functions
compute on the tests' small models: three quarters of a training test's time. Here only functions whose annotations name
a shape are wrapped, as mypy holds for the other types, and in a test their first calls and some of the later ones are
checked: all of them where the environment says HEED_SHAPES=all, as a part of make soak does.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, get_args

import jaxtyping

FIRST_CALLS = 8  # of a function in a test, all of which are checked
EVERY = 1 if os.environ.get("HEED_SHAPES") == "all" else 64  # among later calls, one is checked
n_tests = 0


def begin_test() -> None:
    """The next call of each function is a first one again."""
    global n_tests
    n_tests += 1


def install(modules: list[str]) -> AbstractContextManager[Any]:
    """Checks the shapes in the signatures of modules that are imported from now on."""
    jaxtyping.jaxtyped = functools.partial(_decorate, jaxtyping.jaxtyped)  # the hook writes this name above functions
    return jaxtyping.install_import_hook(modules, "beartype.beartype")


def _decorate(jaxtyped: Callable[..., Any], fn: Any = None, *, typechecker: Any) -> Any:
    """The decorator jaxtyping.jaxtyped for whatever its hook finds."""
    again = functools.partial(_decorate, jaxtyped, typechecker=typechecker)
    if fn is None:
        return again
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(again(fn.__func__))
    if isinstance(fn, property):
        return property(*(each and again(each) for each in (fn.fget, fn.fset, fn.fdel)))
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = again(fn.__init__)
        return fn
    if not any(map(_names_a_shape, getattr(fn, "__annotations__", {}).values())):
        return fn
    return _check_some(fn, jaxtyped(fn, typechecker=typechecker))


def _names_a_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return isinstance(annotation, str) or any(map(_names_a_shape, get_args(annotation)))


def _check_some(fn: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    n_calls = in_test = 0

    @functools.wraps(checked)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_calls, in_test
        if in_test != n_tests:
            n_calls, in_test = 0, n_tests
        n_calls += 1
        if n_calls <= FIRST_CALLS or n_calls % EVERY == 0:
            return checked(*args, **kwargs)
        return fn(*args, **kwargs)

    return call
