"""Functions that use states that were traced, lowered or compiled ahead of the call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax

from .. import _jax
from .._states.frame import only_births
from .._traces.arguments import NO_SELF, ByReference, Static, hide, positional_parameters, reveal
from .._traces.functional import Functionalized
from .._traces.lift import method_of
from .._traces.tracebacks import boundary
from .._traces.traces import difference
from ._way_in import is_dropped

#: What JAX's objects say of `(args, kwargs)` and of the output. Ours also have the states.
_OF_ARGUMENTS = frozenset({"in_avals", "args_info", "input_shardings", "input_formats", "input_layouts"})
_OF_OUTPUT = frozenset({"out_info", "out_avals", "output_shardings", "output_formats", "output_layouts"})


class AheadOfTime:
    """A traced, lowered or compiled function that uses states: JAX's object, with states taken care of.

    Has the attributes of :class:`jax.stages.Traced`, :class:`jax.stages.Lowered` or
    :class:`jax.stages.Compiled`. A compiled one is called with the arguments that are not static, reads
    the states' present values and writes the new ones.

    Args:
      owner: the function under `jit`.
      stage: JAX's object, of a program with these states.
      obj: the instance; NO_SELF for a function.
      takes_obj: whether a call gives the instance as its first argument, as in `Heat.step.lower(heat, dt)`.
    """

    def __init__(
        self,
        owner: Any,
        stage: Any,
        program: Any,
        states: Sequence[Any],
        obj: Any,
        takes_obj: bool,
        args: Any,
        kwargs: Any,
    ) -> None:
        self._owner, self._stage, self._program, self._states, self._obj = owner, stage, program, states, obj
        self._takes_obj = takes_obj
        static = lambda given: {key: reveal(arg) for key, arg in given if isinstance(arg, Static | ByReference)}
        self._static_args, self._static_kwargs = static(enumerate(args)), static(kwargs.items())
        self._args, self._kwargs = args, kwargs
        self._leading = len(program.inputs) if takes_obj else program.n_leading
        places = [_jax.sharding_of(leaf) for leaf in jax.tree.leaves((args, kwargs))]
        devices = [next(iter(sharding.device_set)) for sharding in places if sharding is not None]
        self._absent = next((device for device in devices if not _jax.is_there(device)), None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._stage, name)
        if name in _OF_ARGUMENTS:  # without the values of states, what is static, and objects
            args, kwargs = value
            kept = {name: arg for name, arg in kwargs.items() if not is_dropped(arg)}
            return tuple(arg for arg in args[self._leading :] if not is_dropped(arg)), kept
        return value[0] if name in _OF_OUTPUT else value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._stage)})

    @property
    def in_tree(self) -> Any:
        """As in :mod:`jax.stages`, of the user's function."""
        return jax.tree.structure(self.in_avals)

    @property
    def out_tree(self) -> Any:
        """As in :mod:`jax.stages`, of the user's function."""
        return self._stage.out_tree.children()[0]

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """As in :mod:`jax.stages`, of the user's function: positions among the leaves of the arguments."""
        return tuple(i for i, info in enumerate(jax.tree.leaves(self.args_info)) if info.donated)

    def __repr__(self) -> str:
        return f"<{type(self._stage).__name__} over {len(self._states)} states>"

    def _shapes(self) -> Any:
        """The output of a call, with shapes and dtypes in the place of arrays."""
        roots = self._owner.hidden(self._obj, self._args, self._kwargs)[2]
        return only_births(lambda: self._program.finish(self._states, self._stage.out_info, roots))

    def lower(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As :meth:`jax.stages.Traced.lower`."""
        if "_private_parameters" in kwargs:
            return self._lower_for_export(*args, **kwargs)
        return self._next(self._stage.lower(*args, **kwargs))

    def _lower_for_export(self, *args: Any, **kwargs: Any) -> Any:
        """What `jax.export` gets: the function from the states' values and the arguments to the output and new values.

        It also asks this object for the jaxpr, and differentiates that.
        """
        owner = self._owner
        obj = owner._instance if self._obj is NO_SELF else self._obj
        static = {name: owner._options.get(name) or () for name in ("static_argnums", "static_argnames")}
        fun = Functionalized(method_of(owner._fun, obj), **static)
        whole, keywords = reveal((self._args, self._kwargs))
        is_given = [not is_dropped(arg) for arg in hide(self._args)[0]]

        def pure(values: Any, /, *given: Any, **kwargs: Any) -> Any:
            rest = iter(given)
            filled = [next(rest) if is_given[i] else arg for i, arg in enumerate(whole)]
            return fun.apply(values, *filled, **self._static_kwargs, **kwargs)

        pure.__name__ = pure.__qualname__ = owner.__name__
        options = owner.jax_options(self._args, self._kwargs, obj is not NO_SELF, 1, 0)
        for name in ("donate_argnums", "donate_argnames"):
            options.pop(name, None)
        if "in_shardings" in options:
            first, *rest = options["in_shardings"]
            options["in_shardings"] = (first, *[s for s, given in zip(rest, is_given, strict=True) if given])
        given = [arg for arg, is_in in zip(whole, is_given, strict=True) if is_in]
        others = {name: arg for name, arg in keywords.items() if name not in self._static_kwargs}
        traced = jax.jit(pure, **options).trace(fun.values(*whole, **keywords), *given, **others)
        self.jaxpr: Any = traced.jaxpr
        return traced.lower(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As :meth:`jax.stages.Lowered.compile`. A program for devices that are not there is in no cache of JAX's."""
        if self._absent is None:
            return self._next(self._stage.compile(*args, **kwargs))
        with _jax.without_cache():
            return self._next(self._stage.compile(*args, **kwargs))

    def _next(self, stage: Any) -> AheadOfTime:
        new = copy.copy(self)
        new._stage = stage
        return new

    @boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        needed = self._takes_obj + len(self._args) - len(self._static_args)
        if len(args) != needed or kwargs.keys() != self._kwargs.keys() - self._static_kwargs.keys():
            raise TypeError(self._other_arguments(len(args), needed, kwargs))
        rest, whole = [*args], []
        obj = rest.pop(0) if self._takes_obj else self._obj
        while rest or len(whole) in self._static_args:  # the static ones come in their places again
            is_static = len(whole) in self._static_args
            whole.append(self._static_args[len(whole)] if is_static else rest.pop(0))
        args, kwargs, roots = self._owner.hidden(obj, tuple(whole), {**kwargs, **self._static_kwargs})
        structure = self._program.structure
        states = self._states if structure is None else self._program.match(roots)
        if structure is not None and states is None:
            differs = difference(structure, roots, self._owner._fun, args, kwargs)
            raise TypeError(
                f"{self._owner.__qualname__} was compiled for objects with another structure than those that it "
                f"reaches now: {differs}. Lower and compile it for these."
            )
        if self._absent is not None:
            raise RuntimeError(
                f"{self._owner.__qualname__} was compiled for {self._absent.device_kind}, which is not there, so it "
                "cannot run. What can be had of it are its bytes, `.memory_analysis()`. To run the function here, "
                "compile it for arguments that are not on such a device."
            )
        results = self._program.run(self._stage, states, args, kwargs)
        return self._program.finish(states, results, roots)

    def _other_arguments(self, given: int, needed: int, kwargs: dict[str, Any]) -> str:
        named = lambda names: "".join(f", {name}" for name in sorted(names))
        names = self._kwargs.keys() - self._static_kwargs.keys()
        parameters, _ = positional_parameters(self._owner._fun)
        has_self = self._obj is not NO_SELF or self._owner._instance is not NO_SELF
        label = dict(enumerate(parameters[has_self:]))
        static = {label.get(i, f"argument {i}"): value for i, value in self._static_args.items()} | self._static_kwargs
        text = (
            f"{self._owner.__qualname__} was compiled for {needed} positional argument(s){named(names)}; "
            f"this call gives {given}{named(kwargs)}."
        )
        if not static:
            return text
        values = ", ".join(f"{name}={value!r}" for name, value in static.items())
        return (
            f"{text} Leave out what is static ({values}): it is part of the program. Another value needs another one."
        )
