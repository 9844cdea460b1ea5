"""`vmap`: states with a batch axis, states that all lanes share, and random lanes.

Which states a function uses is seen when it first reads or writes them. A value with a batch axis enters at that moment
as a mapped argument would: `lane_p`, applied to something that is mapped and to a whole value, is batched by giving the
value its axis, so nothing is gathered.

A write stays in the `LaneFrame` until the function ends. Then what was written to states with a batch axis comes out
along that axis. A state that all lanes share must have one value for all of them: if it differs, `LaneFrame.written`
raises a `StateAxisError`, and nothing is changed. A random state is split over the lanes when it is first read, and has
advanced once in the end. A state that is made inside has the lanes on axis 0.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, overload

import jax
import jax.extend.core as jex
import numpy as np

from .._base.errors import StateAxisError, describe, show_site
from .._jax import define_batching, is_batched, set_current_trace, take_current_trace
from .._objects.hooks import not_recorded
from .._states.adapters import as_state
from .._states.find import states
from .._states.formatting import show_types
from .._states.frame import UNSET, Frame, peek
from .._states.kinds import RandomState
from .._states.state import State
from .._traces.arguments import is_reference
from .._traces.lift import Direct, Lift
from .._traces.wrapper import decorate
from ._options import ByState, bound_as_in, ungrouped

P = ParamSpec("P")

lane_p = jex.Primitive("lane")


define_batching(lane_p, lambda args, dims, *, axis: (args[1], axis))


class LaneFrame(Frame):
    """A frame whose function runs in all lanes at once.

    Args:
      axes: what `state_axes` says: the axis of a state's value that the lanes have; None for a state that they share.
      splits: whether random states that it does not list are split.
      mapped: something that has a part for each lane.
      where, fun, used: the transform, the function and the states that it has used, for messages.
    """

    def __init__(
        self, size: int, axes: ByState, splits: bool, mapped: Any, where: str, fun: Any, used: dict[State, None]
    ) -> None:
        super().__init__()
        self._size, self._axes, self._splits, self._mapped = size, axes, splits, mapped
        self._where, self._fun, self._used = where, fun, used
        self._advanced: dict[State, Any] = {}
        self._mesh = jax.sharding.get_abstract_mesh()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._mapped = None

    def enter(self, state: State) -> Any:
        value, axis = super().enter(state), self._axes.of(state)
        self._used[state] = None
        if axis is not None:
            if not _fits(value, axis, self._size):
                batch = "the batch" if self._size is None else f"a batch of {self._size}"
                raise StateAxisError(
                    f"vmap: `state_axes` maps axis {axis} of {describe(state)} over {batch}, but its value is "
                    f"{show_types(value)}.\nGive it a value with one entry per batch element on that axis, or do not "
                    "select it: a class selects its subclasses as well; a predicate such as "
                    "`lambda state: type(state) is State` does not."
                )
            with self._around():
                return self._own(value, axis)
        is_random = isinstance(state, RandomState) or state._cell.is_random(state)
        if self._splits and is_random and not self._axes.lists(state):
            with self._around():
                self._advanced[state], fresh = jax.random.split(value)
                return self._own(jax.random.split(fresh, self._size), 0)
        return value

    def _own(self, value: Any, axis: int) -> Any:
        """The part of a value that belongs to the lane."""
        return jax.tree.map(lambda leaf: lane_p.bind(self._mapped, leaf, axis=axis % np.ndim(leaf)), value)

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        """The frame's own trace and mesh: the first read may stand in a `shard_map` within it."""
        with set_current_trace(self.trace), jax.sharding.use_abstract_mesh(self._mesh):
            yield

    def written(self) -> dict[State, Any]:
        """What was written; a shared state must have one value for all lanes.

        A random state that was split over the lanes has advanced once, however often the lanes drew from it.
        """
        written = super().written()
        for state, value in written.items():
            differs = any(is_batched(leaf, self.trace) for leaf in jax.tree.leaves(value))
            if not differs or self._axes.of(state) is not None or state.static:
                continue
            if state not in self._advanced:
                with not_recorded():
                    states(self._fun)  # names the cells of other frameworks by their paths
                raise StateAxisError(
                    f"{self._where}: {describe(state)} is shared by all batch elements, but the value written to it at "
                    f"{show_site(self.sites[state])} differs between them. Nothing was changed.\n{self._cure(state)}"
                )
            written[state] = self._advanced[state]
        return written

    def _cure(self, state: State) -> str:
        if self._where == "map":
            return (
                "With `batch_size=`, the slices of a batch are evaluated at once. Leave it out, or return the values "
                "and combine them after the `map`, as in `total.value += transform.map(f, xs, batch_size=8).sum()`."
            )
        key = state._name if state._name is not None and state._name.isidentifier() else "state"
        return (
            f"Map it: `state_axes={{{key}: 0}}`. If it is read before it is written, its value needs that axis when "
            "the call starts. Or write a value that all batch elements share, such as a `jax.lax.pmean` over the axis."
        )


class Vectorized(Direct):
    """A function under `vmap`."""

    where = "vmap"

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
        super().__init__(fun, is_method=is_method)
        jax.vmap(fun, in_axes, out_axes, **options)  # says what is wrong with the options
        self._in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self._out_axes, self._split_rngs, self._jax_options = out_axes, split_rngs, options
        self._axes = ByState("vmap", "state_axes", state_axes, "0", _as_axis)

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        size, some, axis = self._size(fun, args, kwargs)
        mapped, used = None, dict[State, None]()
        lift = Lift(fun, lambda: LaneFrame(size, self._axes, self._split_rngs, mapped, self.where, fun, used))

        def pure(some: Any, args: Any, kwargs: Any) -> Any:
            nonlocal mapped
            with take_current_trace() as trace:
                inputs = jax.tree.leaves((some, args, kwargs))
                mapped = next(leaf for leaf in inputs if is_batched(leaf, trace))
            out, written, born = lift.call({}, args, kwargs)
            mapped = None
            assert lift.outcome is not None
            _check_axes(self._out_axes, out)
            by_axis = zip(map(self._axes.of, lift.outcome.written), written, strict=True)
            return out, self._axes.grouped(by_axis), born

        in_axes = (axis, self._in_axes, 0)
        out_axes = (self._out_axes, self._axes.groups, 0)
        vectorized = jax.vmap(pure, in_axes=in_axes, out_axes=out_axes, **self._jax_options)
        out, by_axis, born = vectorized(some, args, kwargs)
        if lift.outcome is not None and not lift.outcome.born:
            self._axes.warn_unmatched(fun, [*used, *lift.outcome.written])
        return lift.leave(out, ungrouped(by_axis), born)

    def _size(
        self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Any, int | None]:
        """The number of lanes, from the arguments, or else from a state; then what has so many, along which axis."""
        sizes = _sizes_of(args, self._in_axes, kwargs)
        given = self._jax_options.get("axis_size")
        if sizes and len({*sizes, given} - {None}) == 1:
            return sizes[0], None, None
        if sizes == []:
            for state, axis in self._axes.found_in([fun], through_globals=True).items():
                if axis is None:
                    continue
                for leaf in jax.tree.leaves(peek(state)):
                    if leaf is not UNSET and _has_axis(leaf, axis) and given in (None, np.shape(leaf)[axis]):
                        return np.shape(leaf)[axis], leaf, axis
            if given is not None:
                return given, np.broadcast_to(np.False_, given), 0
        # The arguments do not fit: JAX says how, if asked without the states.
        ignore = functools.wraps(fun, assigned=("__name__", "__qualname__"))(lambda *args, **kwargs: ())
        try:
            jax.vmap(ignore, self._in_axes, (), **self._jax_options)(*args, **kwargs)
        except ValueError as error:
            if any(map(is_reference, jax.tree.leaves((args, kwargs), is_leaf=is_reference))):
                error.add_note(
                    "States, and objects that hold states, are not mapped by `in_axes`. Map the states: "
                    "`state_axes={st.State: 0}`, with the states or kinds of states that have the axis."
                )
            raise
        raise AssertionError("arguments that cannot be mapped over were mapped over")


@overload
def vmap(
    fun: Callable[P, Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *args: Any,
    state_axes: Any = None,
    split_rngs: bool = True,
    **options: Any,
) -> Callable[P, Any]: ...
@overload
def vmap(
    fun: None = None, *, state_axes: Any = None, split_rngs: bool = True, **options: Any
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@bound_as_in(jax.vmap)
def vmap(fun: Any = None, *, state_axes: Any = None, split_rngs: bool = True, **options: Any) -> Any:
    """Vectorizes a function that uses states: :func:`jax.vmap`.

    All batch elements share a state unless `state_axes` maps one of its axes.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      in_axes (int | None | Sequence): the axis of each positional argument to map over; None shares an argument.
        A pytree prefix for each. It says nothing of states, which `state_axes` maps wherever they are found, in an
        argument as well. Default: 0.
      out_axes (pytree): where the mapped axis goes in the outputs. Default: 0.
      axis_name (hashable, optional): a name for the mapped axis, for collectives such as `jax.lax.psum`.
        Default: None.
      axis_size (int, optional): the size of the mapped axis, if no argument and no state has it. Default: None.
      spmd_axis_name (hashable, optional): the mesh axis over which the mapped axis is sharded. Default: None.
      sum_match (bool): passed on to :func:`jax.vmap` of the releases that have it. Default: False.
      state_axes (Mapping | None): maps a `State`, a class of states or a predicate to the axis of its value that
        is mapped over, in and out. A state that is listed itself comes first, then the first class or predicate that
        selects it: `{m.w: None, Param: 0}`. All batch elements share the states that are not listed. Default: None.
      split_rngs (bool): whether each batch element of an unlisted `RandomState` draws its own numbers; the state
        advances once. With False all draw the same. Default: True.

    Returns:
      The vectorized function. States created inside have the batch on axis 0.

    Raises:
      StateAxisError: a shared state is assigned a value that differs between batch elements; list it in `state_axes`.
        Or a state that `state_axes` maps is read, and its value lacks the axis or has another size there.

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
    return decorate(Vectorized, fun, state_axes=state_axes, split_rngs=split_rngs, **options)


class Batched(Vectorized):
    """The function of a `map` for the slices of a batch."""

    where = "map"


def _as_axis(key: Any, axis: Any) -> int | None:
    if isinstance(axis, int | np.integer) and not isinstance(axis, bool):
        return int(axis)
    if axis is None:
        return None
    raise TypeError(f"vmap: in `state_axes`, the axis of {as_state(key)!r} must be an int or None, not {axis!r}")


def _sizes_of(args: Any, in_axes: Any, kwargs: Any) -> list[int] | None:
    """The sizes of all axes that are mapped; None where the axes do not fit the arguments."""
    mapped = [(0, leaf) for leaf in jax.tree.leaves(kwargs)]
    note = lambda axis, part: mapped.extend((axis, leaf) for leaf in jax.tree.leaves(part))
    try:
        jax.tree.map(note, in_axes, args, is_leaf=lambda axis: axis is None)
        return [np.shape(leaf)[axis] for axis, leaf in mapped if axis is not None]
    except (ValueError, IndexError, TypeError):
        return None


def _check_axes(out_axes: Any, out: Any) -> None:
    """Lets JAX say how `out_axes` do not fit, about what the user returns: it is a part of what the lanes return."""
    try:
        jax.tree.broadcast(out_axes, out, is_leaf=lambda axis: axis is None)
    except ValueError:
        jax.vmap(lambda _: out, out_axes=out_axes)(np.zeros(1))


def _has_axis(leaf: Any, axis: int) -> bool:
    rank = np.ndim(leaf)
    return -rank <= axis < rank


def _fits(value: Any, axis: int, size: int) -> bool:
    """Whether each leaf has the axis, with one entry for each lane."""
    return value is not UNSET and all(
        _has_axis(leaf, axis) and size == np.shape(leaf)[axis] for leaf in jax.tree.leaves(value)
    )
