"""`shard_map`: states that are partitioned over devices, and states that each device sees whole.

A hybrid of two engines: the body is traced as by `Staged`, but inside of JAX's `shard_map`, which has to know the
partition of each input beforehand. So the reads are found in a trace under `eval_shape`, taken out, and bound again as
arguments with their specs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax

from .._base.errors import StateAxisError, describe, show_site
from .._jax import eval_jaxpr, on_devices, typeof, varying_axes
from .._objects.names import global_objects
from .._states.frame import look_at, look_at_all
from .._states.state import State
from .._traces.arguments import hide, revealing
from .._traces.lift import Lift, Staged
from .._traces.stage import StagedFrame
from .._traces.wrapper import decorate
from ._options import ByState, bound_as_in, check_sharding, ungrouped

_WHOLE = jax.sharding.PartitionSpec()
_OF_ARGUMENTS: Any = object()  # JAX takes the specs from the arguments, and has no name for that in each release


class Sharded(Staged):
    """A function under `shard_map`."""

    where = "shard_map"

    def __init__(self, fun: Callable[..., Any], *, is_method: bool = False, **options: Any) -> None:
        # Staged, so that what the function closes over are inputs of one jaxpr, whatever transforms are around.
        super().__init__(_OnShards(fun, **options), is_method=is_method, around=None)  # type: ignore[arg-type]
        self.__wrapped__ = fun
        self._options = options


class InParts(Exception):
    """A value that lies in parts on explicit axes, with its partition spec."""


class ShardFrame(StagedFrame):
    """A frame whose function runs on each device."""

    def __init__(self, spec_of: Callable[[State], Any]) -> None:
        super().__init__()
        self._spec_of = spec_of

    def enter(self, state: State) -> Any:
        if self._spec_of(state) != _WHOLE:
            raise TypeError(
                f"shard_map: `state_specs` partitions {describe(state)}, but the state was not found from the function "
                "or its arguments, so it could not be passed in parts. List the state itself."
            )
        try:
            return super().enter(state)
        except InParts as error:
            raise ValueError(
                f"shard_map: the value of {describe(state)} is partitioned as {error}, but each device would "
                f"see all of it. Write `state_specs={{state: {error}}}`, or replicate the value with `jax.reshard`."
            ) from None

    def type_of_input(self, leaf: Any) -> Any:
        aval = typeof(leaf)
        inside = on_devices(aval)
        if set(jax.tree.leaves(tuple(aval.sharding.spec))) & set(inside.sharding.mesh.manual_axes):
            raise InParts(aval.sharding.spec)
        return inside

    def written(self) -> dict[State, Any]:
        """What was written; a state must be the same on all devices over which it is not partitioned."""
        written = super().written()
        for state, value in written.items():
            if state.static:
                continue
            spec = self._spec_of(state)
            known = {name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,))}
            if varying := _varying(value, known):
                raise StateAxisError(
                    f"shard_map: {describe(state)} is the same on all devices, but the value written to it at "
                    f"{show_site(self.sites[state])} differs along the mesh axis "
                    f"{', '.join(map(repr, varying))}. Nothing was changed.\n"
                    f"Write a value that all devices share, `jax.lax.psum(x, {varying[0]!r})` for example, or "
                    f"partition the state: `state_specs={{state: PartitionSpec({varying[0]!r})}}`."
                )
        return written


def _varying(value: Any, known: Collection[Any] = ()) -> list[str]:
    """The names of the mesh axes along which a value differs between devices, besides those that are known."""
    return sorted(map(str, set().union(*[varying_axes(leaf) for leaf in jax.tree.leaves(value)]) - set(known)))


class _OnShards:
    """The function that calls another on each device."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        state_specs: Any,
        out_specs: Any,
        in_specs: Any = _OF_ARGUMENTS,
        **options: Any,
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        self.__wrapped__ = fun
        # All options: they are part of the structure that a trace belongs to.
        self._options = {"state_specs": state_specs, "in_specs": in_specs, "out_specs": out_specs, **options}
        self._in_specs, self._out_specs, self._jax_options = in_specs, out_specs, options
        self._specs = ByState("shard_map", "state_specs", state_specs, "P('i')", _spec, nothing=_WHOLE)

    def __call__(self, *args: Any) -> Any:
        args, objects = hide(args)
        fun = revealing(self.__wrapped__, objects)
        specs = self._in_specs
        if isinstance(specs, tuple | list) and len(args) == len(specs) + 1:
            specs = (_WHOLE, *specs)  # a method's instance comes first; it has no leaves, or is whole on all devices
        states = {
            state: spec
            for state, spec in self._specs.found_in([fun, *global_objects(self.__wrapped__)]).items()
            if spec != _WHOLE
        }
        mesh = self._jax_options.get("mesh") or jax.sharding.get_abstract_mesh()
        for state, spec in states.items():
            check_sharding("shard_map: `state_specs`", state, look_at(state), spec, mesh)
        lift, body = self._run(fun, states, specs, args)

        def on_shard(values: list[Any], args: tuple[Any, ...]) -> Any:
            out, written, born = body(values, args)
            assert lift.outcome is not None
            by_spec = zip(map(self._specs.of, lift.outcome.written), written, strict=True)
            for state, value in zip(lift.outcome.born, born, strict=True):
                if axes := _varying(value):
                    raise StateAxisError(
                        f"shard_map: {describe(state)} is created with a value that differs along the mesh axis "
                        f"{', '.join(map(repr, axes))}. A new state is the same on all devices. Nothing was changed.\n"
                        "Return the value, or create the state before the call and partition it: "
                        f"`state_specs={{state: PartitionSpec({axes[0]!r})}}`."
                    )
            return out, self._specs.grouped(by_spec), born

        mapped = self._map(on_shard, list(states.values()), specs, (self._out_specs, self._specs.groups, _WHOLE))
        out, by_spec, born = mapped(look_at_all(states), args)
        assert lift.outcome is not None
        self._specs.warn_unmatched(self.__wrapped__, [*states, *lift.outcome.written])
        return lift.leave(out, ungrouped(by_spec), born)

    def _run(self, fun: Callable[..., Any], states: dict[State, Any], specs: Any, args: Any) -> tuple[Lift, Any]:
        """Runs the function once, as on a device, to see which states it reads: these are added to `states`.

        JAX lets nothing be closed over that lies on explicit axes. So whatever is read goes in as an argument, also
        what all devices see whole. Returns the `Lift`, which
        holds the outcome, and the pure function.
        """
        seen: dict[str, Any] = {}

        def make_frame() -> ShardFrame:
            seen["frame"] = frame = ShardFrame(self._specs.of)
            seen["runs"] = seen.get("runs", 0) + 1
            return frame

        lift, known = Lift(fun, make_frame), list(states)

        def run(values: list[Any], args: Any) -> Any:
            results = lift.call(dict(zip(known, values, strict=True)), args, {})
            leaves, seen["tree"] = jax.tree.flatten(results)
            return leaves

        def on_shard(values: list[Any], args: Any) -> None:
            seen["closed"] = jax.make_jaxpr(self._named(lambda *given: run(*given)))(values, args)

        shown = lambda: jax.eval_shape(
            self._map(on_shard, list(states.values()), specs, None), look_at_all(states), args
        )
        shown()
        if seen["runs"] > 1:  # it began again, after a read in a raw transform; what the first run read is there, too
            shown()
        frame: ShardFrame = seen["frame"]
        jaxpr, consts, _ = frame.over_reads(seen["closed"])
        states.update(dict.fromkeys(frame.reads, _WHOLE))

        def again(values: list[Any], args: Any) -> Any:
            leaves = jax.tree.leaves((values[: len(known)], args, values[len(known) :]))
            return seen["tree"].unflatten(eval_jaxpr(jaxpr, consts, *leaves))

        return lift, again

    def _map(self, fun: Callable[..., Any], state_specs: list[Any], specs: Any, out_specs: Any) -> Any:
        """JAX's mapped function of `(values of states, arguments)`, called as the user's."""
        options = {"out_specs": out_specs, **self._jax_options}
        if specs is None or isinstance(specs, jax.sharding.PartitionSpec):
            options["in_specs"] = state_specs, specs
        elif isinstance(specs, tuple | list | dict):
            options["in_specs"] = state_specs, tuple(specs)
        return jax.shard_map(self._named(fun), **options)

    def _named(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        functools.update_wrapper(fun, self.__wrapped__, ("__name__", "__qualname__", "__module__"), ())
        del fun.__wrapped__  # type: ignore[attr-defined]  # it has other arguments
        return fun


def _spec(key: Any, spec: Any) -> Any:
    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise TypeError(f"shard_map: in `state_specs`, {key!r} needs a PartitionSpec, not {spec!r}")
    return spec


@bound_as_in(jax.shard_map)
def shard_map(f: Any = None, *, state_specs: Any = None, **options: Any) -> Any:
    """Maps a function over shards of its arguments: :func:`jax.shard_map`.

    States are replicated, each device sees them whole, unless `state_specs` lists them.

    Args:
      f (Callable | None): the function of one shard. Without it, the call returns a decorator. Default: None.
      out_specs (pytree of PartitionSpec): how the outputs of the shards are put together.
      in_specs (pytree of PartitionSpec, optional): how the arguments are split. Default: from the arguments'
        shardings, on explicit meshes.
      mesh (Mesh | AbstractMesh, optional): the mesh. Default: the one of the context.
      axis_names (Set): the mesh axes that are manual inside. Default: all.
      check_vma (bool): whether JAX checks over which axes values vary. Default: True.
      state_specs: a mapping from `State`, kind or predicate to the partition spec of its value, in and out.

    Returns:
      The mapped function.

    Raises:
      StateAxisError: a replicated state is given a value that differs between devices; list it in `state_specs`, or
        write a value that they share (`jax.lax.psum` and the like).

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.shard_map.html

    Example:
      >>> from statetransform import State, transform
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.sharding import PartitionSpec as P
      >>> total = State(0.0, name="total")
      >>> def add(x):
      ...     total.value = total.value + jax.lax.psum(x.sum(), "i")
      ...     return x
      >>> auto = (jax.sharding.AxisType.Auto,)
      >>> mesh = jax.make_mesh((1,), ("i",), axis_types=auto, devices=jax.devices()[:1])
      >>> _ = transform.shard_map(add, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.arange(4.0))
      >>> float(total.value)
      6.0
    """
    return decorate(Sharded, f, state_specs=state_specs, **options)
