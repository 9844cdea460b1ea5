"""The stateless view of a function: a flat function of the leaves of its arguments and of its states' values.

Everything that reads a program starts here. The view is that of `transform.vjp`: what the function returns is
differentiated, with respect to all arguments and all states that it reads; what it writes is auxiliary. Only a function
that returns nothing to differentiate, as a step that only writes states, is differentiated in what it writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._core import jaxcompat
from .._core.arguments import NO_SELF, reveal
from .._core.functional import functionalize
from .._core.wrapper import Bound
from .._jaxpr.sources import Source


class Label(NamedTuple):
    """What an input of the flat function is to the user: an argument or a state, its name and its birthplace."""

    kind: str
    name: str
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class View:
    """A function without states and without structure.

    Attributes:
        fun: takes one array per input and returns `(outputs, auxiliary outputs)`, two lists of arrays.
        inputs: the present values: of the leaves of the arguments, then of those of the states.
        labels: of the inputs.
        name: of the function.
        notes: what to tell the user about this view; complete when `fun` has run once.
    """

    fun: Callable[..., tuple[list[Any], list[Any]]]
    inputs: list[Any]
    labels: tuple[Label, ...]
    name: str
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def has_states(self) -> bool:
        """Whether any input belongs to a state."""
        return any(label.kind == "state" for label in self.labels)

    @property
    def avals(self) -> list[Any]:
        """The abstract values of the inputs."""
        return avals_of(self.inputs)


def avals_of(values: list[Any]) -> list[Any]:
    """The abstract values of arrays, scalars and `jax.ShapeDtypeStruct`."""
    return [var.aval for var in jaxcompat.opened(jax.make_jaxpr(lambda *xs: xs)(*values)).invars]


def view_of(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
    """The stateless view of a function at some arguments; nothing is computed and no state is written.

    Args:
        fun: a function, with states or without, bare or under a transform of this package or of JAX.
        args, kwargs: its arguments: arrays or `jax.ShapeDtypeStruct`; objects that hold states; static arguments of a
            transformed function; and whatever JAX cannot trace, which is passed on as it is.

    Raises:
        TypeError: `fun` is not callable.

    >>> from statetransform import State
    >>> u = State(2.0, name="u")
    >>> view = view_of(lambda x: u.value * x, (3.0,), {})
    >>> [(label.kind, label.name) for label in view.labels]
    [('argument', 'x'), ('state', 'u')]
    """
    if not callable(fun):
        raise TypeError(f"expected a function and its arguments, got {fun!r} of type {type(fun).__name__}")
    args, kwargs = _with_statics(fun, args, kwargs)
    named = [name for name, _ in named_arguments(fun, args, kwargs)]
    leaves, treedef = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if _is_traced(leaf)]

    def arrays(*values: Any) -> list[Any]:
        # States, objects that hold states, and what JAX cannot trace are passed on as they are.
        whole = list(leaves)
        for i, value in zip(traced, values, strict=True):
            whole[i] = value
        args, kwargs = reveal(treedef.unflatten(whole))
        return [leaf for leaf in jax.tree.leaves(fun(*args, **kwargs)) if _is_traced(leaf)]

    pure = functionalize(arrays)
    inputs = [leaves[i] for i in traced]
    found: list[Any] = []

    def look(*values: Any) -> tuple[()]:
        found.append(pure.values(*values))
        return ()

    jax.make_jaxpr(look)(*inputs)
    values = found[0]
    state_leaves, state_tree = jax.tree.flatten(values)

    def flat(*xs: Any) -> tuple[list[Any], list[Any]]:
        before = state_tree.unflatten(xs[len(inputs) :])
        outputs, after = pure.apply(before, *xs[: len(inputs)])
        written = [leaf for state, value in after.items() for leaf in _changed(before.get(state), value)]
        if any(map(_is_inexact, outputs)):
            return outputs, written
        if any(map(_is_inexact, written)) and not notes:
            notes.append(f"{name} returns nothing to differentiate, so this is about the states that it writes.")
        return [*outputs, *filter(_is_inexact, written)], [leaf for leaf in written if not _is_inexact(leaf)]

    notes: list[str] = []
    flat.__name__ = flat.__qualname__ = name = _name(fun)
    labels = (*[Label("argument", named[i]) for i in traced], *_state_labels(values))
    return View(flat, [*inputs, *state_leaves], labels, name, notes)


def _with_statics(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a transformed function takes as static is not traced here either."""
    owner = fun.__func__ if isinstance(fun, Bound) else fun
    statics = getattr(owner, "_static", None)
    if not statics or not hasattr(statics, "hide"):
        return args, kwargs
    binds = getattr(owner, "_binds", None)
    if not isinstance(fun, Bound) and getattr(owner, "_is_method", False) and args and binds is not None:
        rest, kwargs = statics.hide(args[1:], kwargs, has_self=True)
        return (args[0], *rest), kwargs
    return statics.hide(args, kwargs, has_self=isinstance(fun, Bound) or _instance(owner) is not NO_SELF)


def _instance(owner: Any) -> Any:
    """The instance of a bound method that was transformed as `transform.jit(obj.step)`."""
    wrapped = getattr(owner, "__wrapped__", None)
    return wrapped.__self__ if isinstance(wrapped, types.MethodType) else NO_SELF


def _is_traced(leaf: Any) -> bool:
    """Whether JAX can trace a leaf."""
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))


def _is_inexact(leaf: Any) -> bool:
    return jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.inexact) if not _is_key(leaf) else False


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.extended)


def _changed(before: Any, after: Any) -> list[Any]:
    old = {id(leaf) for leaf in jax.tree.leaves(before)}
    return [leaf for leaf in jax.tree.leaves(after) if id(leaf) not in old and _is_traced(leaf)]


def _state_labels(values: Any) -> list[Label]:
    labels = []
    for state, value in values.items():
        file, line = state._created
        source = Source(file, line, type(state).__name__)
        name = state.name if state.name is not None else f"{type(state).__name__} of {source.short}"
        for path, _ in jax.tree_util.tree_leaves_with_path(value):
            labels.append(Label("state", name + jax.tree_util.keystr(path), source))
    return labels


def named_arguments(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[str, Any]]:
    """The leaves of the arguments, each with a name as the user would write it: `params['w']`.

    >>> named_arguments(lambda p, *xs, **more: None, ({"w": 1.0}, 2.0), {"z": 3.0})
    [("p['w']", 1.0), ('xs[0]', 2.0), ("more['z']", 3.0)]
    """
    named = []
    for name, part in _parts(fun, args, kwargs):
        leaves = jax.tree_util.tree_leaves_with_path(part, is_leaf=is_leaf)
        named += [(name + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
    return named


def _parts(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments in the order in which JAX flattens them, each with the name of its parameter."""
    try:
        parameters = inspect.signature(fun).parameters
        given = inspect.signature(fun).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return [*[(f"args[{i}]", arg) for i, arg in enumerate(args)], *sorted(kwargs.items())]
    parts: list[tuple[str, Any]] = []
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts += [(f"{name}[{i}]", arg) for i, arg in enumerate(given.get(name, ()))]
        elif name in given and name not in kwargs and parameter.kind is not parameter.VAR_KEYWORD:
            parts.append((name, given[name]))
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    # JAX flattens a dict in the order of its keys.
    parts += [(k if k in parameters or rest is None else f"{rest}[{k!r}]", kwargs[k]) for k in sorted(kwargs)]
    return parts


def _name(fun: Any) -> str:
    name = getattr(fun, "__name__", None)
    return name if isinstance(name, str) else type(fun).__name__
