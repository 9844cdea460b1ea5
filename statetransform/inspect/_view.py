"""The stateless view of a function: a flat function of the leaves of its arguments and of its states' values.

Reports start here. The view is that of `transform.vjp`: what the function returns is
differentiated, with respect to all arguments and all states that it reads, or to those that are asked for; what it
writes is auxiliary. Only a function that returns nothing to differentiate, as a step that only writes states, is
differentiated in what it writes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._base.errors import StateTraceError
from .._base.functions import all_that
from .._jax import has_rule
from .._memory.plans.gradient import Pattern
from .._memory.programs.sources import Source
from .._memory.targets import Target, placed, target_of
from .._states.frame import kept_by_nobody
from .._states.state import State
from .._states.state_pytrees import differentiated_states
from .._states.values import Values
from .._traces.arguments import ByReference, Static, hide, is_hidden, is_reference, named_arguments
from .._traces.functional import Functionalized, functionalize
from .._traces.shardings import sharding_of, standing_for
from .._traces.wrapper import Bound, Transformed


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
      wrt: for each input whether it is differentiated; None for all that can be.
      unused: the names of states that are asked for, but that the function does not use.
      target: the devices that it is looked at for.
    """

    fun: Callable[..., tuple[list[Any], list[Any]]]
    inputs: list[Any]
    labels: tuple[Label, ...]
    name: str
    notes: list[str] = dataclasses.field(default_factory=list)
    wrt: tuple[bool, ...] | None = None
    unused: tuple[str, ...] = ()
    target: Target = dataclasses.field(default_factory=target_of)

    @property
    def is_chosen(self) -> tuple[bool, ...]:
        """For each input whether the function is differentiated with respect to it, if that can be."""
        return (True,) * len(self.inputs) if self.wrt is None else self.wrt

    @property
    def gradients(self) -> list[Label]:
        """The inputs that have a gradient."""
        pairs = zip(self.labels, self.inputs, self.is_chosen, strict=True)
        return [label for label, value, is_chosen in pairs if is_chosen and is_inexact(value)]


def view_of(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Any = None,
    states: Any = None,
    target: Any = None,
) -> View:
    """The stateless view of a function at some arguments; nothing is computed and no state is written.

    Args:
      fun: a function, with states or without, bare or under a transform of this package or of JAX.
      args, kwargs: its arguments: arrays or `jax.ShapeDtypeStruct`; objects that hold states; static arguments of a
          transformed function; and whatever JAX cannot trace, which is passed on as it is.
      argnums, states: with respect to what it is differentiated, as in `transform.grad`; without both, with respect
          to all that can be.
      target: the devices to look at it for, as of `MemoryBudget`. The inputs are on them then, and the types in each
          trace say so.

    Raises:
      TypeError: `fun` is not callable, what is asked for has no gradient, or `argnums` names an argument twice or has
        something else than integers.
      ValueError: `argnums` names no argument, `states` has a state twice, or arguments are on other devices than
        `target`.

    >>> from statetransform import State
    >>> u = State(2.0, name="u")
    >>> view = view_of(lambda x: u.value * x, (3.0,), {})
    >>> [(label.kind, label.name) for label in view.labels]
    [('argument', 'x'), ('state', 'u')]
    """
    if not callable(fun):
        raise TypeError(f"expected a function and its arguments, got {fun!r} of type {type(fun).__name__}")
    args, kwargs = _by_reference(*_with_statics(fun, args, kwargs))
    wrt = None if argnums is None and states is None else _Wrt(argnums, states, args)
    leaves, treedef = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, ByReference)]
    named = [name for name, _ in named_arguments(fun, args, kwargs)]

    def arguments(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        whole = list(leaves)
        for i, value in zip(traced, values, strict=True):
            whole[i] = value
        return treedef.unflatten(whole)

    @functools.wraps(fun, assigned=("__name__", "__qualname__"), updated=())  # errors name the function's arguments
    def arrays(*args: Any, **kwargs: Any) -> Any:
        return [leaf for leaf in jax.tree.leaves(fun(*args, **kwargs)) if _is_traced(leaf)]

    pure = functionalize(arrays)
    inputs = [leaves[i] for i in traced]
    chosen = target_of(target, *inputs)
    inputs = _on(chosen, inputs)
    values, is_ruled = _looked_at(pure, arguments, inputs)
    state_leaves, state_tree = jax.tree.flatten(values)

    def flat(*xs: Any) -> tuple[list[Any], list[Any]]:
        before = state_tree.unflatten(xs[len(inputs) :])
        args, kwargs = arguments(xs[: len(inputs)])
        outputs, after = pure.apply(before, *args, **kwargs)
        written = [leaf for state, value in after.items() for leaf in _changed(before.get(state), value)]
        if any(map(is_inexact, outputs)):
            return outputs, written
        if any(map(is_inexact, written)) and not notes:
            notes.append(f"{name} returns nothing to differentiate, so this is about the states that it writes.")
        return [*outputs, *filter(is_inexact, written)], [leaf for leaf in written if not is_inexact(leaf)]

    notes: list[str] = []
    flat.__name__ = flat.__qualname__ = name = _name(fun)
    labels = (*[Label("argument", named[i]) for i in traced], *_state_labels(values))
    view = View(flat, [*inputs, *_on(chosen, state_leaves)], labels, name, notes, target=chosen)
    if wrt is None:
        return dataclasses.replace(view, wrt=_differentiable(view, values)) if values and is_ruled else view
    return dataclasses.replace(view, wrt=wrt.chosen(view, traced, values), unused=wrt.unused(values))


def _looked_at(pure: Functionalized, arguments: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Values, bool]:
    """The values of the states that a function uses, and whether it has a derivative rule inside; it is only traced."""
    found: list[tuple[Values, bool]] = []

    def look(*values: Any) -> tuple[()]:
        with kept_by_nobody():
            args, kwargs = arguments(values)
            found.append((pure.values(*args, **kwargs), has_rule(pure.trace(*args, **kwargs).jaxpr)))
        return ()

    jax.make_jaxpr(look)(*inputs)
    return found[0]


def differentiated(view: View) -> tuple[Any, Pattern]:
    """The closed jaxpr of a view's function, auxiliary outputs last, and what is differentiated in it."""
    n_outputs = 0

    def both(*xs: Any) -> list[Any]:
        nonlocal n_outputs
        out, aux = view.fun(*xs)
        n_outputs = len(out)
        return [*out, *aux]

    closed = jax.make_jaxpr(standing_for(view.inputs, both))(*view.inputs)
    moves = [chosen and is_inexact(aval) for aval, chosen in zip(closed.in_avals, view.is_chosen, strict=True)]
    return closed, Pattern(tuple(moves), tuple(i < n_outputs and is_inexact(y) for i, y in enumerate(closed.out_avals)))


def _differentiable(view: View, values: Mapping[State, Any]) -> tuple[bool, ...]:
    """For each input whether there is a derivative: there is none for states that a function with a rule reads."""
    owners = [state for state, value in values.items() for _ in jax.tree.leaves(value)]
    owners = [*[None] * (len(view.inputs) - len(owners)), *owners]
    chosen = lambda states: [owner is None or owner in states for owner in owners]

    def is_differentiated(states: list[State]) -> bool:
        def pushed(*xs: Any) -> Any:
            moves = [i for i, flag in enumerate(chosen(states)) if flag and is_inexact(xs[i])]
            whole = lambda moving: [dict(zip(moves, moving, strict=True)).get(i, x) for i, x in enumerate(xs)]
            primals = [xs[i] for i in moves]
            return jax.jvp(lambda *moving: view.fun(*whole(moving)), primals, primals)

        try:
            jax.eval_shape(standing_for(view.inputs, pushed), *view.inputs)
        except StateTraceError:
            return False
        return True

    return tuple(chosen(all_that(is_differentiated, [*values])))


class _Wrt:
    """What a function is differentiated with respect to, as `transform.grad` understands it."""

    def __init__(self, argnums: Any, states: Any, args: tuple[Any, ...]) -> None:
        self._states = differentiated_states(states).states
        given = () if argnums is None else (argnums,) if hasattr(argnums, "__index__") else argnums
        try:
            positions = tuple(map(operator.index, given))
        except TypeError:
            raise TypeError(f"`argnums` must be an int or a sequence of ints, not {argnums!r}") from None
        for i in positions:
            if not -len(args) <= i < len(args):
                raise ValueError(f"argnums={i}, but there are {len(args)} positional argument(s)")
        if len({i % len(args) for i in positions}) < len(positions):
            raise TypeError(f"argnums={argnums} names an argument twice")
        ends = list(itertools.accumulate((len(jax.tree.leaves(arg)) for arg in args), initial=0))
        self._parts = [(args[i], range(ends[i % len(args)], ends[i % len(args) + 1])) for i in positions]

    def unused(self, values: Any) -> tuple[str, ...]:
        """The names of states that a function neither reads nor writes."""
        used = set(map(id, values))
        return tuple(state.name or repr(state) for state in self._states if id(state) not in used)

    def chosen(self, view: View, traced: list[int], values: Any) -> tuple[bool, ...]:
        """For each input of a view whether it is meant.

        Raises:
          TypeError: it has no gradient.
        """
        meant = set(map(id, self._states))
        of_states = [id(state) in meant for state, value in values.items() for _ in jax.tree.leaves(value)]
        chosen = (*[any(i in leaves for _, leaves in self._parts) for i in traced], *of_states)
        for label, value, is_chosen in zip(view.labels, view.inputs, chosen, strict=True):
            if is_chosen and not is_inexact(value):
                raise TypeError(
                    f"the {label.kind} {label.name} has dtype {_dtype(value)}, which has no gradient; "
                    "leave it out of `argnums=` and `states=`"
                )
        if any(isinstance(arg, Static) or (leaves and not {*leaves} & {*traced}) for arg, leaves in self._parts):
            raise TypeError(
                "`argnums=` names an argument that is static, or passed by reference (a state, or an object that holds "
                "states). For states write `states=st.states(model, st.Param)`."
            )
        return chosen


def _with_statics(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a transformed function takes as static is not traced here either."""
    if isinstance(fun, Bound):
        return fun.__func__.with_statics(args, kwargs, is_bound=True)
    if isinstance(fun, Transformed):
        return fun.with_statics(args, kwargs)
    return args, kwargs


def _by_reference(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments, with `ByReference` for states, objects that hold states, and what JAX cannot trace."""
    hidden, objects = hide((args, kwargs))
    given = iter(objects)
    whole = jax.tree.map(lambda x: ByReference(next(given)) if is_reference(x) else x, hidden, is_leaf=is_hidden)
    return jax.tree.map(lambda x: x if _is_traced(x) or isinstance(x, ByReference) else ByReference(x), whole)


def _on(target: Target, leaves: list[Any]) -> list[Any]:
    """Arrays, or their types, as they are on a target; Python's numbers are nowhere."""
    if target.is_here:
        return leaves
    arrays = [leaf for leaf in leaves if hasattr(leaf, "shape")]
    found = iter(placed(target, arrays, list(map(sharding_of, arrays))))
    return [next(found) if hasattr(leaf, "shape") else leaf for leaf in leaves]


def _is_traced(leaf: Any) -> bool:
    """Whether JAX can trace a leaf."""
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf has a gradient."""
    return jnp.issubdtype(_dtype(leaf), jnp.inexact)


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


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


def _name(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    name = getattr(fun, "__name__", None)
    return name if isinstance(name, str) else type(fun).__name__
