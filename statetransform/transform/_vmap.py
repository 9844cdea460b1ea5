"""`vmap`: states with a batch axis, states that all lanes share, and random lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, overload

import jax

from .._core.errors import StateAxisError, show_site
from .._core.find import selects, walk
from .._core.frame import UNSET, Frame, peek, read
from .._core.jaxcompat import is_tracer_of, take_current_trace
from .._core.lift import Direct, Lift
from .._core.state import RandomState, State, show_types
from .._core.wrapper import decorate

_WALK_LIMIT = 100_000  # objects to look through for random states and for the kinds in `state_axes`

P = ParamSpec("P")


class LaneFrame(Frame):
    """A frame whose function runs in all lanes at once."""

    def __init__(self, axes: dict[State, int | None], advanced: dict[State, Any], splits: bool, size: Any) -> None:
        super().__init__()
        self._splits = splits
        self._axes = axes
        self._advanced = advanced
        self._size = size
        self._used: set[State] = set()
        with take_current_trace() as trace:
            self._trace: Any = trace

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._trace = None

    def read(self, state: State) -> Any:
        if state in self._advanced:
            self._used.add(state)
        return super().read(state)

    def enter(self, state: State) -> Any:
        axis = self._axes.get(state)
        if axis is not None:  # with an axis that fits it would be known
            raise StateAxisError.misfit(state, show_types(super().enter(state)), axis, self._size)
        if self._splits and isinstance(state, RandomState) and state not in self._axes:
            raise StateAxisError.unreachable_rng(state)
        return super().enter(state)

    def written(self) -> dict[State, Any]:
        """What was written; a shared state must have one value for all lanes.

        A random state that was split over the lanes has advanced once, however the lanes went on.
        """
        written = super().written()
        for state, value in self._advanced.items():
            if state in self._used or state in self.sites:
                self.sites.setdefault(state, state._created)
                written[state] = value
        for state, value in written.items():
            shared = self._axes.get(state) is None and state not in self._advanced and not state.static
            if shared and any(is_tracer_of(leaf, self._trace) for leaf in jax.tree.leaves(value)):
                raise StateAxisError.unlisted(state, show_site(self.sites[state]))
        return written


class Vectorized(Direct):
    """A function under `vmap`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        is_method: bool = False,
        in_axes: Any = 0,
        out_axes: Any = 0,
        state_axes: Any = None,
        split_rngs: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            fun,
            is_method=is_method,
            in_axes=in_axes,
            out_axes=out_axes,
            state_axes=state_axes,
            split_rngs=split_rngs,
            **options,
        )
        self._in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self._out_axes, self._split_rngs, self._jax_options = out_axes, split_rngs, options
        self._state_axes = [(selects(kind), kind, axis) for kind, axis in _checked(state_axes or {}).items()]

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        axes, random = self._find(fun, args)
        size = self._jax_options.get("axis_size") or _axis_size(args, self._in_axes, kwargs, axes)
        lanes, advanced = self._split(random, size) if size is not None else ({}, {})
        # A kind may take in a state that has no such axis; that matters only if the function reads it.
        mapped = {state: axis for state, axis in axes.items() if axis is not None and _fits(peek(state), axis, size)}
        states = [*mapped, *lanes]
        values = [*[read(state) for state in mapped], *lanes.values()]
        value_axes = [*mapped.values(), *[0] * len(lanes)]
        groups = sorted({axis for axis in axes.values() if axis is not None})
        lift = Lift(fun, lambda: LaneFrame(axes, advanced, self._split_rngs, size))

        def pure(values: Any, args: Any, kwargs: Any) -> Any:
            out, written, born = lift.call(dict(zip(states, values, strict=True)), args, kwargs)
            assert lift.outcome is not None
            by_axis: dict[Any, dict[int, Any]] = {axis: {} for axis in (*groups, None)}
            for i, (state, value) in enumerate(zip(lift.outcome.written, written, strict=True)):
                by_axis[axes.get(state)][i] = value
            return out, list(by_axis.values()), born

        out_axes = (self._out_axes, [*groups, None], 0)
        vectorized = jax.vmap(pure, in_axes=(value_axes, self._in_axes, 0), out_axes=out_axes, **self._jax_options)
        out, by_axis, born = vectorized(values, args, kwargs)
        written = {i: value for group in by_axis for i, value in group.items()}
        return lift.leave(out, [written[i] for i in range(len(written))], born)

    def _find(self, fun: Callable[..., Any], args: Any) -> tuple[dict[State, int | None], list[RandomState]]:
        """The states that `state_axes` speaks of, and the random states to be split."""
        axes: dict[State, int | None] = {kind: axis for _, kind, axis in self._state_axes if isinstance(kind, State)}
        random: list[RandomState] = []
        kinds = [(is_kind, axis) for is_kind, kind, axis in self._state_axes if not isinstance(kind, State)]
        if kinds or self._split_rngs:
            for _, _, state in walk([fun], through_globals=True, limit=_WALK_LIMIT):
                for is_kind, axis in kinds if not state.static else ():  # a setting has no axis
                    if state not in axes and is_kind(state):
                        axes[state] = axis
                if isinstance(state, RandomState) and state not in axes and self._split_rngs:
                    random.append(state)
        return axes, random

    def _split(self, random: list[RandomState], size: int) -> tuple[dict[State, Any], dict[State, Any]]:
        """A key for each lane, and the key that each random state goes on with."""
        lanes: dict[State, Any] = {}
        advanced: dict[State, Any] = {}
        for state in random:
            advanced[state], fresh = jax.random.split(read(state))
            lanes[state] = jax.random.split(fresh, size)
        return lanes, advanced


@overload
def vmap(
    fun: Callable[P, Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
    *,
    state_axes: Any = None,
    split_rngs: bool = True,
) -> Callable[P, Any]: ...
@overload
def vmap(
    fun: None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
    *,
    state_axes: Any = None,
    split_rngs: bool = True,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def vmap(
    fun: Any = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
    *,
    state_axes: Any = None,
    split_rngs: bool = True,
) -> Any:
    """Vectorizes a function over states: :func:`jax.vmap`.

    States are shared between the lanes unless `state_axes` lists them.

    Args:
      fun: the function; None for the form with arguments.
      in_axes, out_axes, axis_name, axis_size, spmd_axis_name, sum_match: as in :func:`jax.vmap`.
      state_axes: a mapping from `State`, kind or predicate to the axis of its value that the lanes have, in and out.
      split_rngs: each lane of an unlisted `RandomState` draws numbers of its own, and the state advances once.

    Returns:
      The vectorized function. States created inside have the lanes on axis 0.

    Raises:
      StateAxisError: a shared state is given a value that differs between lanes; list it in `state_axes`. Or a state
        that `state_axes` maps is read, and its value lacks the axis or has another size there.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.vmap.html

    Example:
      >>> from statetransform import State, transform
      >>> import jax.numpy as jnp
      >>> heights = State(jnp.zeros(3), name="heights")
      >>> def lift(by):
      ...     heights.value = heights.value + by
      >>> transform.vmap(lift, state_axes={heights: 0})(jnp.arange(3.0))
      >>> heights.value.tolist()
      [0.0, 1.0, 2.0]
    """
    options = {"sum_match": True} if sum_match else {}  # not known to every JAX version
    return decorate(
        Vectorized,
        fun,
        in_axes=in_axes,
        out_axes=out_axes,
        axis_name=axis_name,
        axis_size=axis_size,
        spmd_axis_name=spmd_axis_name,
        state_axes=state_axes,
        split_rngs=split_rngs,
        **options,
    )


def _checked(state_axes: Any) -> dict[Any, int | None]:
    """What is said of states, if it says an axis for each."""
    if not isinstance(state_axes, Mapping):
        raise TypeError(
            "vmap: `state_axes` says for each state, kind or predicate which axis the lanes have, "
            f"`state_axes={{u: 0}}`; it cannot be {state_axes!r} of type {type(state_axes).__name__}"
        )
    axes = dict(state_axes)
    for kind, axis in axes.items():
        if axis is not None and not isinstance(axis, int):
            raise TypeError(f"vmap: in `state_axes`, the axis of {kind!r} must be an int or None, not {axis!r}")
    return axes


def _axis_size(args: Any, in_axes: Any, kwargs: Any, axes: dict[State, int | None]) -> int | None:
    """The number of lanes, from whatever is mapped first; None where :func:`jax.vmap` is to say what is wrong."""
    is_none = lambda axis: axis is None
    try:
        broadcast = jax.tree.broadcast(in_axes, args, is_leaf=is_none)
        pairs = zip(jax.tree.leaves(broadcast, is_leaf=is_none), jax.tree.leaves(args), strict=True)
        mapped = [*pairs, *[(0, leaf) for leaf in jax.tree.leaves(kwargs)]]
        for axis, leaf in mapped:
            if axis is not None:
                return jax.numpy.shape(leaf)[axis]
    except (ValueError, IndexError):
        return None
    sizes = [
        jax.numpy.shape(leaf)[axis]
        for state, axis in axes.items()
        for leaf in jax.tree.leaves(peek(state))
        if axis is not None and leaf is not UNSET and _has_axis(leaf, axis)
    ]
    return sizes[0] if sizes else None


def _has_axis(leaf: Any, axis: int) -> bool:
    rank = jax.numpy.ndim(leaf)
    return -rank <= axis < rank


def _fits(value: Any, axis: int, size: int | None) -> bool:
    """Whether each leaf has the axis, with one entry for each lane."""
    return value is not UNSET and all(
        _has_axis(leaf, axis) and size in (None, jax.numpy.shape(leaf)[axis]) for leaf in jax.tree.leaves(value)
    )
