"""The error hierarchy: a sentence says what happened, to which state, and what to write instead.

What is raised in more than one place has its sentences here.
"""

from __future__ import annotations

import functools
import inspect
import os.path
import sys
import types
from typing import Any


def notebook_cell(file: str) -> str | None:
    """What a notebook calls the cell that a file stands for, such as ``Cell In[3]``; None for any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label = named(file) if named is not None else None
    return None if label is None else " ".join(label)


def show_site(site: tuple[str, int]) -> str:
    """`("/a/heat.py", 12)` as `heat.py:12`, or `Cell In[3]:12` for the cell of a notebook."""
    file, line = site
    return f"{notebook_cell(file) or os.path.basename(file)}:{line}"


_ROOMS = ("transform", "policies", "inspect")
_MEANT = {
    "budget": "policies.fit",
    "memory": "inspect.residuals",
    "save": "st.state_dict",
    "load": "st.load_state_dict",
}


def no_attribute(module: str, name: str, instead: str = "") -> AttributeError:
    """What a module raises for a name that it does not have; says where the name is, or what is called otherwise."""
    package = sys.modules["statetransform"]
    homes = [room for room in _ROOMS if name in getattr(vars(package).get(room), "__all__", ())]
    homes += ["st"] if name in vars(package).get("__all__", ()) else []
    found = f"{homes[0]}.{name}" if homes else _MEANT.get(name)
    if found and not instead:
        home = found.partition(".")[0]
        how = "import statetransform as st" if home == "st" else f"from statetransform import {home}"
        instead = f" Write `{found}` (`{how}`)."
    return AttributeError(f"module {module!r} has no attribute {name!r}.{instead}", name=name, obj=sys.modules[module])


def check_function(where: str, fun: Any) -> None:
    """Refuses what is not a function, and functions that return a generator or a coroutine instead of running."""
    if isinstance(fun, property | functools.cached_property):
        raise TypeError(
            f"{where}: a property is not a function. Put the transform below: `@property` above `@transform.{where}`."
        )
    if not callable(fun):
        raise TypeError(
            f"{where}: expected a function, got {fun!r} of type {type(fun).__name__}. "
            f"Options are given by keyword, as in `@transform.{where}(...)`."
        )
    plain = fun
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not isinstance(plain, types.FunctionType | types.MethodType | type):
        call = type(plain).__call__
        plain = call if isinstance(call, types.FunctionType) else getattr(plain, "__wrapped__", call)  # `lru_cache`
    for kind, is_kind in (
        ("a generator", inspect.isgeneratorfunction),
        ("a coroutine", inspect.iscoroutinefunction),
        ("an asynchronous generator", inspect.isasyncgenfunction),
    ):
        if is_kind(plain):
            raise TypeError(
                f"{where}: {getattr(plain, '__qualname__', plain)} returns {kind}, whose body does not run when it "
                "is called. Transform a function that returns arrays, and call it from here."
            )


def describe(state: Any) -> str:
    """What errors call a state: its kind, name and where it was created."""
    name = f" {state._name!r}" if state._name is not None else ""
    return f"{getattr(state, '_kind', type(state)).__name__}{name} (created at {show_site(state._created)})"


class StateTransformError(Exception):
    """Base of every error that this package raises about states under transforms."""


class StateTraceError(StateTransformError, RuntimeError):
    """A state was written, created or read where its value cannot be carried in or out.

    A write inside a raw JAX transform (``jax.jit``, ``jax.grad``, ``jax.lax.scan``, ...) raises it at the line of the
    write.
    """

    @classmethod
    def raw_write(cls, state: Any) -> StateTraceError:
        """A write under a raw JAX transform."""
        return cls(
            f"{describe(state)} is written inside a raw JAX transform, which cannot carry the new value out. "
            "Nothing was changed.\n"
            "Use the transform of the same name from `statetransform.transform` (`transform.jit`, "
            "`transform.grad`, `transform.vmap`, `transform.scan`, ...) in place of the `jax` one, or "
            "`transform.functionalize(f).apply(values, ...)` to pass the values explicitly."
        )

    @classmethod
    def lost(cls, state: Any) -> StateTraceError:
        """A state whose creating trace failed or ended without it, or whose cell is gone."""
        if state._is_gone():
            return cls(
                f"{describe(state)} has no value: the object that it refers to no longer exists. Keep the object as "
                "long as the handle is used."
            )
        return cls(
            f"{describe(state)} has no value: the call in which it was created raised an error, or ended before "
            "the state was stored. Create it again."
        )

    @classmethod
    def leaked_tracer(cls, state: Any) -> StateTraceError:
        """A tracer of a finished trace is about to be stored."""
        return cls(
            f"{describe(state)} was assigned a tracer of a trace that has ended, or of a transform that does not "
            "know the state. Nothing was changed.\n"
            "Return the value from the transformed function, or write the state inside a function "
            "that a transform of `statetransform.transform` traces."
        )

    @classmethod
    def donated_twice(cls, state: Any, other: str) -> StateTraceError:
        """A state whose buffer is to be given away shares it with another state, or with an argument."""
        return cls(
            f"jit: {describe(state)} and {other} hold the same array. Its buffer cannot be donated to the "
            "program (`donate_states=True`) and kept at the same time. Nothing was changed.\n"
            "Use a copy for one of them: `jax.numpy.copy(state.value)`."
        )

    @classmethod
    def kept_tracer(cls, owner: Any, name: str, inner: str, was_state: bool, whole: str = "") -> StateTraceError:
        """A traced value was left in a place, or in `inner` of what is there now; `whole` is the whole way there."""
        is_named = isinstance(owner, type | types.FunctionType | types.ModuleType)
        kind = "class" if isinstance(owner, type) else "function" if isinstance(owner, types.FunctionType) else "module"
        what = f"the {kind} {owner.__name__}" if is_named else f"an instance of {type(owner).__name__}"
        where = f"`{name}`" if owner is None else f"attribute {name!r} of {what}"
        path = name if owner is None else f"{owner.__name__ if is_named else 'self'}.{name}"
        if was_state:
            where = f"`{path}{inner}`" if inner else where
            return cls(
                f"{where} was a State and was replaced with a traced value.\n"
                f"Assign to the state's value instead: `{path}{inner}.value = ...`."
            )
        cure = hints(f"tracers in {type(owner).__module__}") or (
            f"Return the value, or make the attribute a state: `{path} = State(...)` before the call, and "
            f"`{path}.value = ...` inside."
        )
        return cls(
            f"{where} still holds a traced value after the trace has ended, when that value no longer means "
            f"anything.\n{cure}" + (f" It is at `{whole or path + inner}`." if inner or whole not in ("", path) else "")
        )

    @classmethod
    def differentiated_in_rule(cls, where: str, state: Any) -> StateTraceError:
        """A state with a tangent is read by a function whose rule has no derivative for it."""
        return cls(
            f"{where} reads {describe(state)}, which is differentiated here, but its derivative rule says nothing of "
            "the states that the function reads, so the gradient would silently be zero.\n"
            "Pass the value as an argument, for which the rule gives the derivative. Where there is none, pass "
            "`jax.lax.stop_gradient(value)`."
        )

    @classmethod
    def read_in_backward_rule(cls, state: Any) -> StateTraceError:
        """A backward rule reads what its own call has changed."""
        return cls(
            f"custom_vjp: the backward rule reads {describe(state)}, which the call wrote, so its value is no longer "
            "the one that the forward pass saw.\n"
            "Pass the value in the residuals: return it from the forward rule."
        )


class StateStructureError(StateTransformError, TypeError):
    """A loop's carry or a branch changes the shape, dtype or structure of a state."""

    @classmethod
    def objects(cls, where: str, what: str, labels: Any, objects: Any) -> StateStructureError:
        """Branches return, or a loop carries, another object than the one that every call would give."""
        shown = [
            describe(obj) if hasattr(obj, "_created") else f"an object of type {type(obj).__name__}" for obj in objects
        ]
        rows = "\n".join(f"  {label}: {text}" for label, text in zip(labels, shown, strict=True))
        return cls(
            f"{where}: {what}.\n{rows}\nWhich one is meant is known only when the program runs. "
            "Return values instead, `state.value` for example."
        )


class StateAxisError(StateTransformError, ValueError):
    """Under ``vmap``, a state that all batch elements share is assigned a value that differs between them."""


class RetraceWarning(UserWarning):
    """A function is retraced at every call, which is slow but correct. The message says why and what to do."""


class BudgetError(StateTransformError, ValueError):
    """A budget of memory that cannot be met.

    Attributes:
      least: the fewest bytes for which a plan was found.
    """

    def __init__(self, message: str, *, least: int | None = None) -> None:
        super().__init__(message)
        self.least: int | None = least


class PolicyWarning(UserWarning):
    """A policy that can have no effect, or not the one that it seems to have."""


class StaleReadWarning(UserWarning):
    """A state is read inside a raw JAX transform that stages, where its value becomes a constant."""


_hints: dict[str, list[tuple[str, str]]] = {}


def hint(topic: str, module: str, text: str) -> None:
    """Adds a sentence to the messages on a topic, for programs that have imported a module."""
    _hints.setdefault(topic, []).append((module, text))


def hints(topic: str) -> str:
    """The sentences to add."""
    return "".join(text for module, text in _hints.get(topic, ()) if module in sys.modules)
