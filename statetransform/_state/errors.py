"""The error hierarchy. Each class builds its own sentences: what happened, to which state, what to write instead."""

from __future__ import annotations

import functools
import inspect
import os.path
import sys
import types
from typing import Any


def cell_of(file: str) -> str | None:
    """What a notebook calls the cell that a file stands for, such as ``Cell In[3]``; None for any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label = named(file) if named is not None else None
    return None if label is None else " ".join(label)


def show_site(site: tuple[str, int]) -> str:
    """`("/a/heat.py", 12)` as `heat.py:12`, or `Cell In[3]:12` for the cell of a notebook."""
    file, line = site
    return f"{cell_of(file) or os.path.basename(file)}:{line}"


def lost_in_donation(states: list[Any]) -> str:
    """What an error in a program that was given the buffers of states has to say about them."""
    names = ", ".join(describe(state) for state in states)
    return (
        f"The buffers of {names} were given to this program (`donate_states=True`), which failed while it ran, so the "
        "values are lost. Write the states again before they are read, or compile without `donate_states`."
    )


def deleted_value(state: Any) -> str:
    """What `st.update` says of an array that is no more."""
    return (
        f"update: the value for {describe(state)} is an array that was deleted: its buffer was donated to a program, "
        "by `donate_states=True` for example. Nothing was written.\n"
        "Copy the values before that: `saved = jax.tree.map(jnp.copy, st.values(states))`."
    )


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


def _says(text: str) -> Any:
    """What makes an error of a class from a text, in which `{state}` is what errors call the state."""

    def make(cls: Any, state: Any = None, **more: str) -> Any:
        return cls(text.format(state=describe(state) if state is not None else "", **more))

    return classmethod(make)


class StateTraceError(StateTransformError, RuntimeError):
    """A state was written, created or read where its value cannot be carried in or out.

    A write inside a raw JAX transform (``jax.jit``, ``jax.grad``, ``jax.lax.scan``, ...) raises it at the line of the
    write.
    """

    #: A write under a raw JAX transform.
    raw_write: Any = _says(
        "{state} is written inside a raw JAX transform, which cannot carry the new value out. "
        "Nothing was changed.\n"
        "Use the transform of the same name from `statetransform.transform` (`transform.jit`, "
        "`transform.grad`, `transform.vmap`, `transform.scan`, ...) in place of the `jax` one, or "
        "`transform.functionalize(f).apply(values, ...)` to pass the values explicitly."
    )

    #: A state made from a tracer of a raw JAX transform.
    raw_creation: Any = _says(
        "{state} is created from a traced value inside a raw JAX transform, which cannot carry "
        "the value out.\n"
        "Use the transform of the same name from `statetransform.transform`, or create the state "
        "outside and write it inside."
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

    #: A tracer of a finished trace is about to be stored.
    leaked_tracer: Any = _says(
        "{state} was assigned a tracer of a trace that has ended, or of a transform that does not "
        "know the state. Nothing was changed.\n"
        "Return the value from the transformed function, or write the state inside a function "
        "that a transform of `statetransform.transform` traces."
    )

    #: A container was changed in place where no transform of this package could see it.
    changed_in_place: Any = _says(
        "{state} holds a tracer: inside a raw JAX transform, something was put into the container that "
        "is its value. Give the state a value again.\n"
        "Use the transform of the same name from `statetransform.transform`: it sees what its function changes in "
        "place."
    )

    #: An attribute that is a cell is deleted inside a transform.
    deleted: Any = _says(
        "{state} is deleted inside a transform, which cannot do that. Nothing was changed.\n"
        "Delete the attribute outside, or write another value."
    )

    #: A cell is an argument of a raw JAX transform, which goes past the value that the frame has.
    used_by_raw: Any = _says(
        "{state} is an argument of a raw JAX transform, inside a function that reads or writes it as "
        "well: neither would see what the other writes. Nothing was changed.\n"
        "Use the transform of the same name from `statetransform.transform` (`transform.jit`, ...) in place of the "
        "`jax` one."
    )

    #: A write to a state that ``states=`` leaves out.
    not_lifted: Any = _says(
        "{state} is written inside a function whose `states=` argument does not include it, "
        "so its value is a constant of the call. Nothing was changed.\n"
        "Add the state (or its kind) to `states=`, or leave `states=` out to lift every state."
    )

    #: A loop's body or a branch made a state that outlives it.
    born_inside: Any = _says(
        "{where}: {state} is created inside a function that may run any number of times, or not at "
        "all, and outlives it. Nothing was changed.\n"
        "Create the state before the {where} and write it inside, or return its value."
    )

    #: A state whose buffer is to be given away shares it with another state, or with an argument.
    donated_twice: Any = _says(
        "jit: {state} and {other} hold the same array. Its buffer cannot be donated to the "
        "program (`donate_states=True`) and kept at the same time. Nothing was changed.\n"
        "Use a copy for one of them: `jax.numpy.copy(state.value)`."
    )

    @classmethod
    def kept_tracer(cls, owner: Any, name: str, inner: str, was_state: bool, whole: str = "") -> StateTraceError:
        """A traced value was left in a place, or in `inner` of what is there now; `whole` is the whole way there."""
        is_named = isinstance(owner, type | types.FunctionType)
        what = f"the class {owner.__name__}" if isinstance(owner, type) else f"a {type(owner).__name__}"
        what = f"the function {owner.__qualname__}" if isinstance(owner, types.FunctionType) else what
        where = f"`{name}`" if owner is None else f"attribute {name!r} of {what}"
        path = name if owner is None else f"{owner.__name__ if is_named else 'self'}.{name}"
        if was_state:
            where = f"`{path}{inner}`" if inner else where
            return cls(
                f"{where} was a State and was replaced with a traced value.\n"
                f"Assign to the state's value instead: `{path}{inner}.value = ...`."
            )
        return cls(
            f"{where} still holds a traced value after the trace has ended, when that value no longer means "
            "anything.\n"
            f"Return the value, or make the attribute a state: `{path} = State(...)` before the call, and "
            f"`{path}.value = ...` inside."
            + (f" It is at `{whole or path + inner}`." if inner or whole not in ("", path) else "")
        )

    #: A callback of a program has changed the objects that the program is about.
    changed_meanwhile: Any = _says(
        "an object in the result cannot be found: while the program ran, a callback or another thread changed an "
        "attribute or item that leads to it.\nLet the callback change a `State` instead."
    )

    #: A backward rule reads what its own call has changed.
    read_in_backward_rule: Any = _says(
        "custom_vjp: the backward rule reads {state}, which the call wrote, so its value is no longer "
        "the one that the forward pass saw.\n"
        "Pass the value in the residuals: return it from the forward rule."
    )

    #: A rule that is staged reads a state that the function does not read.
    read_in_rule_only: Any = _says(
        "The derivative rule reads {state}, which the function itself does not read. The rule runs "
        "after the call, when the value is no longer available.\n"
        "Read the state in the function as well, or pass its value as an argument."
    )

    #: The condition of a `while_loop` writes.
    written_in_predicate: Any = _says(
        "while_loop: the condition writes {state}. A condition may only read states; write the state in the body."
    )


class StateStructureError(StateTransformError, TypeError):
    """A loop's carry or a branch changes the shape, dtype or structure of a state."""

    #: The body of a loop changes the type of a state, which is part of the carry.
    carry: Any = _says(
        "{where}: the body changes the type of {state}.\n"
        "  on entry : {before}\n"
        "  after    : {after}   (written at {site})\n"
        "A loop's carry keeps its type. {cure}"
    )

    #: A static state is written where its value would have to depend on a traced one.
    static_write: Any = _says(
        "{where}: {state} is static but is written inside, and whether and how often that happens is "
        "known only when the program runs. Write it before or after the {where}."
    )

    @classmethod
    def branch(cls, where: str, state: Any, types: list[tuple[str, str]], cure: str) -> StateStructureError:
        """The branches leave a state with different types."""
        rows = "\n".join(f"  {label}: {text}" for label, text in types)
        return cls(f"{where}: the branches leave {describe(state)} with different types.\n{rows}\n{cure}")

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

    @classmethod
    def rule(cls, where: str, states: Any, others: Any) -> StateStructureError:
        """A derivative rule writes other states than the function."""
        names = lambda members: ", ".join(describe(state) for state in members) or "no state"
        return cls(
            f"{where}: the function writes {names(states)}, but its rule writes "
            f"{names(others)}. The rule runs in place of the function, so it has to "
            "write the same states: call the function's own helper in both."
        )

    #: ``st.update`` was given a value of another structure.
    update: Any = _says(
        "update: the value for {path} does not fit {state}.\n"
        "  held  : {before}\n"
        "  given : {after}\n"
        "Nothing was written. Assign `.value` directly to change a state's type."
    )


class StateAxisError(StateTransformError, ValueError):
    """Under ``vmap``, a state that all batch elements share is assigned a value that differs between them."""

    @classmethod
    def unlisted(cls, state: Any, site: str) -> StateAxisError:
        """A batched write to a state without an entry in ``state_axes``."""
        key = state._name if state._name is not None and state._name.isidentifier() else "state"
        return cls(
            f"vmap: {describe(state)} is shared by all batch elements, but the value written to it at {site} differs "
            "between them. Nothing was changed.\n"
            f"Map it: `state_axes={{{key}: 0}}`. If it is read before it is written, its value needs that axis when "
            f"the call starts. Or write a value that all batch elements share, such as a `jax.lax.pmean` over the axis."
        )

    @classmethod
    def misfit(cls, state: Any, types: str, axis: int, size: int | None) -> StateAxisError:
        """A mapped state whose value has no such axis, or one of another size."""
        batch = "the batch" if size is None else f"a batch of {size}"
        return cls(
            f"vmap: `state_axes` maps axis {axis} of {describe(state)} over {batch}, but its value is {types}.\n"
            "Give it a value with one entry per batch element on that axis, or do not select it: a class selects its "
            "subclasses as well; a predicate such as `lambda state: type(state) is State` does not."
        )

    @classmethod
    def born_in_parts(cls, state: Any, axes: list[str]) -> StateAxisError:
        """Under ``shard_map``, a state is created with a value that is not the same on all devices."""
        names = ", ".join(repr(axis) for axis in axes)
        return cls(
            f"shard_map: {describe(state)} is created with a value that differs along the mesh axis {names}. A new "
            "state is the same on all devices. Nothing was changed.\n"
            "Return the value, or create the state before the call and partition it: "
            f"`state_specs={{state: PartitionSpec({axes[0]!r})}}`."
        )

    @classmethod
    def unreplicated(cls, state: Any, site: str, axes: list[str]) -> StateAxisError:
        """Under ``shard_map``, a replicated state is given a value that is not the same on all devices."""
        names = ", ".join(repr(axis) for axis in axes)
        return cls(
            f"shard_map: {describe(state)} is the same on all devices, but the value written to it at {site} differs "
            f"along the mesh axis {names}. Nothing was changed.\n"
            f"Write a value that all devices share, `jax.lax.psum(x, {axes[0]!r})` for example, or partition the "
            f"state: `state_specs={{state: PartitionSpec({axes[0]!r})}}`."
        )


class RetraceWarning(UserWarning):
    """A function is retraced at every call, which is slow but correct. The message says why and what to do."""

    @staticmethod
    def loose(name: str, state: Any) -> str:
        """A state to which no path leads."""
        return (
            f"{name} uses {describe(state)}, but the state cannot be reached from the function or its arguments by a "
            "path that can be checked, so the trace is used for this call only and every call traces the function "
            "again. Pass the state as an argument, or make it an attribute of an object that the function takes or "
            "closes over."
        )

    @staticmethod
    def repeated(name: str, path: str, before: str, after: str) -> str:
        """An edge that changes at every call."""
        return f"{name} is retraced at every call because `{path}` changes: {_change(before, after)}"

    @staticmethod
    def once(where: str, name: str, path: str, before: str, after: str) -> str:
        """The function of a loop or branch changes an attribute that it reads."""
        return (
            f"{where}: {name} runs once, while it is traced, but changes `{path}`, which it reads: "
            f"{_change(before, after)}"
        )

    @staticmethod
    def compared(name: str, path: str, size: int) -> str:
        """A NumPy array that is compared at every call."""
        return (
            f"{name} compares `{path}`, a NumPy array of {size >> 20} MiB, at every call, because it may have changed "
            "in place. That takes more than a millisecond. Make it read-only (`array.flags.writeable = False`), a JAX "
            "array or a `State`."
        )


def _change(before: str, after: str) -> str:
    """How an attribute has changed, and what to write instead."""
    if before == after:
        return f"it is now another {after}. Change what it holds instead: assign to the `.value` of a `State`."
    return (
        f"it was {before} and is now {after}. Make it a `State`, whose value is not part of the trace, or keep it "
        "where the function does not read it."
    )


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

    @staticmethod
    def text(state: Any) -> str:
        """A read under raw JAX alone."""
        return (
            f"{describe(state)} is read inside a raw JAX transform that stages (`jax.jit`, `jax.lax.scan`, "
            "`jax.checkpoint`, ...). Its current value becomes a constant there, so a later call may not see a "
            "new value. Use the transform of the same name from `statetransform.transform`, or pass the value "
            "as an argument."
        )


_hints: dict[str, list[tuple[str, str]]] = {}


def hint(topic: str, module: str, text: str) -> None:
    """Adds a sentence to the messages on a topic, for programs that have imported a module."""
    _hints.setdefault(topic, []).append((module, text))


def hints(topic: str) -> str:
    """The sentences to add."""
    return "".join(text for module, text in _hints.get(topic, ()) if module in sys.modules)
