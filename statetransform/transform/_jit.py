"""`jit`: compiled calls over states, with a dispatch path that adds little to JAX's own.

On the hot path no signature is computed and no pytree walked in Python. A call follows the guard to the
states, hands their values to a function made by `jax.jit`, and stores what comes back. JAX's own dispatch
finds the compiled program; only for a new signature does it call back to trace, and then we learn which
states the function uses. The output structure says which of them were written.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import jax

from .._core.arguments import (
    NO_SELF,
    Static,
    StaticArguments,
    hide,
    hide_self,
    identity,
    integers,
    positional_parameters,
    refs_in,
    token_of,
)
from .._core.frame import refuse_tracers, stack
from .._core.jaxcompat import is_jit_disabled, is_top_level
from .._core.lift import at_once, bind
from .._core.room import with_room
from .._core.stage import Record, trace
from .._core.wrapper import Transformed, decorate
from ._compiled import Disabled, Entry, Family, FastPath, Restage, fast_path, store_of, when_gone

_NOT_GIVEN: Any = jax.sharding.PartitionSpec("not given")  # None means something to these options


class Jitted(Transformed):
    """A function under `jit`.

    Attributes:
      donates: whether the buffers of written states are given to the compiled program.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        is_method: bool = False,
        static_argnums: Any = None,
        static_argnames: Any = None,
        donate_states: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            fun,
            is_method=is_method,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_states=donate_states,
            **options,
        )
        self.donates = donate_states
        self._jax_options = options
        self._fun, self._instance = fun, NO_SELF
        if isinstance(fun, types.MethodType):  # made anew at each look-up: the function behind it stays
            self._fun, self._instance = fun.__func__, fun.__self__
        self._static = StaticArguments(self._fun, static_argnums, static_argnames)
        key = (donate_states, bool(self._static), *sorted(options.items()))
        self._store = store_of(self._fun, key)

    def clear_cache(self) -> None:
        """Forgets every trace and compiled program."""
        self._store.clear()

    def jax_options(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """The options for the underlying `jax.jit`, whose function has leading arguments and a second output."""
        options = dict(self._jax_options)
        leading = 2 if self.donates else 1
        parameters = positional_parameters(self._fun) or ()
        names = options.get("donate_argnames") or ()
        donated = [
            parameters.index(name) for name in ((names,) if isinstance(names, str) else names) if name in parameters
        ]
        donated += integers(options.get("donate_argnums"))
        options["donate_argnums"] = (
            *((0,) if self.donates else ()),
            *[i + leading if i >= 0 else i for i in donated],
        )
        if "in_shardings" in options:
            given = options["in_shardings"]
            if isinstance(given, tuple | list):  # does not count static arguments
                rest = iter(given)
                given = [None if isinstance(arg, Static) else next(rest, None) for arg in args]
            else:
                given = [given] * len(args)
            # None: the states keep the shardings that they have.
            options["in_shardings"] = (*(None,) * leading, *given)
        if "out_shardings" in options:
            options["out_shardings"] = (options["out_shardings"], None)
        return options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fast = self._store.plain
        if fast is not None and stack.frame is None and self._instance is NO_SELF:
            return self._call_fast(fast, NO_SELF, args, kwargs)
        return super().__call__(*args, **kwargs)

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._call_bound(self._instance if obj is NO_SELF else obj, *args, **kwargs)

    def _call_bound(self, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        fast = self._store.fast.get(identity(obj))
        if fast is not None and stack.frame is None:
            return self._call_fast(fast, obj, args, kwargs)
        return self.call_slowly(obj, args, kwargs)

    def _call_fast(self, fast: FastPath, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry, find, expected, jitted, targets, array_type = fast
        try:
            values = find(self._fun, obj)
            if values is None:
                return self.call_slowly(obj, args, kwargs)
            # Passing on `*args` costs twice what a plain call does, and most calls have one argument.
            if len(args) == 1 and not kwargs:
                out, written = results = jitted(values, args[0])
            else:
                out, written = results = jitted(values, *args, **kwargs)
        except Exception as error:
            # Not the user's error: the walk to the states failed, or a state came as an argument.
            arguments = (args, kwargs)
            if isinstance(error, Restage):
                return self.call_slowly(obj, args, kwargs, error.record)
            is_rebound = entry.guard.resolve((self._fun, obj)) is None
            if is_rebound or isinstance(error, Disabled) or hide(arguments) is not arguments:
                return self.call_slowly(obj, args, kwargs)
            raise
        if type(written) is list and not written:
            return out
        if type(written) is not list or not targets:
            return entry.finish(expected, results)
        if len(targets) == 1 and type(written[0]) is array_type:
            targets[0]._value = written[0]
            return out
        # One look at the trace context costs as much as looking at eight values.
        for value in written if len(written) <= 8 else ():
            if type(value) is not array_type:
                refuse_tracers(zip(targets, written, strict=True))
                break
        else:
            if len(written) > 8 and not is_top_level():
                refuse_tracers(zip(targets, written, strict=True))
        for state, value in zip(targets, written):  # noqa: B905 - as long by construction
            state._value = value
        return out

    def call_slowly(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any], record: Record | None = None) -> Any:
        """A call that looks at its arguments first; `record` is a trace for them, if there is one already."""
        if is_jit_disabled():
            return at_once(bind(self._fun, obj), *args, **kwargs)
        if self._static:
            args, kwargs = self._static.hide(args, kwargs, has_self=obj is not NO_SELF)
        entry, states, results = self.run("__call__", obj, args, kwargs, record)
        return entry.finish(states, results)

    def trace(self, *args: Any, instance: Any = NO_SELF, **kwargs: Any) -> AheadOfTime:
        """Traces for these arguments and the states' present types; as the method of :func:`jax.jit`."""
        return self._ahead_of_time("trace", instance, args, kwargs)

    def lower(self, *args: Any, instance: Any = NO_SELF, **kwargs: Any) -> AheadOfTime:
        """Traces and lowers; as the method of :func:`jax.jit`."""
        return self._ahead_of_time("lower", instance, args, kwargs)

    def _ahead_of_time(self, method: str, obj: Any, args: Any, kwargs: Any) -> AheadOfTime:
        if obj is NO_SELF and (self._is_method or self._takes_cls) and args and self._binds(args[0]):
            obj, args = args[0], args[1:]
        obj = self._instance if obj is NO_SELF else obj
        if self._static:
            args, kwargs = self._static.hide(args, kwargs, has_self=obj is not NO_SELF)
        with jax.disable_jit(False):  # as in JAX, who asks for a program gets one
            entry, states, stage = self.run(method, obj, args, kwargs)
        fixed = [arg if isinstance(arg, Static) else None for arg in args]
        instance = None if obj is NO_SELF else hide_self(obj)
        return AheadOfTime(stage, entry, states, instance, fixed)

    def run(
        self, method: str, obj: Any, args: Any, kwargs: Any, record: Record | None = None
    ) -> tuple[Entry, list[Any], Any]:
        """Calls a method of the `jax.jit` function that fits these arguments, tracing where none does.

        Returns:
          The entry, its states, and what the method returned.
        """
        args, kwargs = hide((args, kwargs))
        instance = None if obj is NO_SELF else hide_self(obj)
        leaves, treedef = jax.tree.flatten((instance, args, kwargs))
        objects = refs_in(treedef)
        roots = (self._fun, *objects)
        key = tuple([token_of(obj) for obj in objects])
        family = self._store.families.get(key)
        if family is None:
            family = self._store.families[key] = Family()
            for member in objects:
                when_gone(member, self._store, key)
        hint = (
            treedef,
            tuple([(jax.numpy.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in leaves]),
        )
        for _ in range(4):
            entry, states = family.choose(roots, hint, record, self.donates)
            if entry is None:
                # Traced here rather than from within `jax.jit`: JAX notes the whole Python stack with each
                # equation, and its own frames would be on it twice.
                if record is None:
                    record = trace(self._fun, args if instance is None else (instance, *args), kwargs)
                    self._store.log.add(record)
                options = self.jax_options(args)
                entry = Entry(self._store.fun, self.donates, options, roots, record, self._store.log)
                entry, states = family.add(entry, roots, hint)
            try:
                call, leading = getattr(entry.jitted, method), entry.inputs(states, instance)
                result = with_room(lambda: call(*leading, *args, **kwargs))  # noqa: B023 - called at once
            except Restage as error:
                record = error.record
                continue
            except Exception as error:
                if self.donates:
                    entry.explain(error, states)
                raise
            self._settle(family, key, entry, states, obj, objects)
            return entry, states, result
        raise AssertionError("the states that the function uses change from trace to trace")

    def _settle(
        self,
        family: Family,
        key: Any,
        entry: Entry,
        states: list[Any],
        obj: Any,
        objects: list[Any],
    ) -> None:
        """After a call: what the next one can use without thinking."""
        fast = None
        is_alone = objects == [] if obj is NO_SELF else len(objects) == 1 and objects[0] is obj
        if any(not layout.is_reusable for layout, _ in entry.layouts.values()):
            self._store.families.pop(key, None)
        elif is_alone and len(family.entries) == 1 and entry.is_simple and not self._static:
            fast = fast_path(entry, states)
        if obj is NO_SELF:
            self._store.plain = fast
        elif fast is not None:
            self._store.fast[identity(obj)] = fast
        else:
            self._store.fast.pop(identity(obj), None)


class AheadOfTime:
    """A traced, lowered or compiled function over states: JAX's object, with states taken care of.

    Has the attributes of :class:`jax.stages.Traced`, :class:`jax.stages.Lowered` or
    :class:`jax.stages.Compiled`. A compiled one is called with the arguments that are not static, reads
    the states' present values and writes the new ones.
    """

    def __init__(self, stage: Any, entry: Entry, states: list[Any], instance: Any, fixed: list[Any]) -> None:
        self._stage, self._entry, self._states, self._instance, self._fixed = (
            stage,
            entry,
            states,
            instance,
            fixed,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"<{type(self._stage).__name__} over {len(self._states)} states>"

    def lower(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As :meth:`jax.stages.Traced.lower`."""
        return self._next(self._stage.lower(*args, **kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As :meth:`jax.stages.Lowered.compile`."""
        return self._next(self._stage.compile(*args, **kwargs))

    def _next(self, stage: Any) -> AheadOfTime:
        return AheadOfTime(stage, self._entry, self._states, self._instance, self._fixed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        whole = [arg if arg is not None else next(rest) for arg in self._fixed]
        arguments, kwargs = hide(((*whole, *rest), kwargs))
        inputs = self._entry.inputs(self._states, self._instance)
        return self._entry.finish(self._states, self._stage(*inputs, *arguments, **kwargs))


Jitted.trace.takes_instance = Jitted.lower.takes_instance = True  # type: ignore[attr-defined]


P = ParamSpec("P")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
Q = ParamSpec("Q")
V = TypeVar("V")


class Compiled(Protocol[P, R]):
    """What static type checkers see of a function under `jit`: its signature, and JAX's methods."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the compiled function."""
        ...

    @overload
    def __get__(self, obj: None, owner: type | None = None) -> Compiled[P, R]: ...
    @overload
    def __get__(self: Compiled[Concatenate[S, Q], V], obj: S, owner: type | None = None) -> Compiled[Q, V]: ...
    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        """Binds the instance of a method."""
        ...

    def trace(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """Traces for these arguments."""
        ...

    def lower(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """Traces and lowers for these arguments."""
        ...

    def clear_cache(self) -> None:
        """Forgets every trace and compiled program."""
        ...


@overload
def jit(
    fun: Callable[Q, V],
    /,
    *,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: Any = None,
    inline: bool = False,
    compiler_options: Any = None,
    donate_states: bool = False,
) -> Compiled[Q, V]: ...
@overload
def jit(
    fun: None = None,
    /,
    *,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: Any = None,
    inline: bool = False,
    compiler_options: Any = None,
    donate_states: bool = False,
) -> Callable[[Callable[Q, V]], Compiled[Q, V]]: ...
def jit(
    fun: Any = None,
    /,
    *,
    in_shardings: Any = _NOT_GIVEN,
    out_shardings: Any = _NOT_GIVEN,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: Any = None,
    inline: bool = False,
    compiler_options: Any = None,
    donate_states: bool = False,
) -> Any:
    """Compiles a function over states: :func:`jax.jit`.

    The values of the states go in with each call, new ones come out.

    Args:
      fun: the function; None for the form with arguments.
      in_shardings, out_shardings: as in :func:`jax.jit`, for arguments and output; states keep the shardings
        that they have.
      static_argnums, static_argnames, donate_argnums, donate_argnames: as in :func:`jax.jit`; positions do
        not count `self`.
      keep_unused, device, backend, inline, compiler_options: as in :func:`jax.jit`.
      donate_states: gives the buffers of written states to the program, which may reuse them for the new values. An
        error before the program runs leaves the states as they are; one while it runs says which values are lost.
        Inside of another transform, whose own failure must leave the states as they were, copies are given.

    Returns:
      The compiled function, with `lower`, `trace` and `clear_cache` as in JAX. What these give can be called
      over states, too.

    Raises:
      TypeError: a static argument is not hashable.
      StateTraceError: the call stands inside a raw JAX transform and writes; use `statetransform.transform` there, too.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jit.html

    Example:
      >>> from statetransform import State, transform
      >>> u = State(1.0, name="u")
      >>> @transform.jit
      ... def grow(rate):
      ...     u.value = u.value * (1 + rate)
      >>> grow(0.5)
      >>> float(u.value)
      1.5
      >>> grow.lower(0.5).compile()(0.5)
      >>> float(u.value)
      2.25
    """
    given = {
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "device": device,
        "backend": backend,
        "inline": inline,
        "compiler_options": compiler_options,
    }
    defaults = {
        "in_shardings": _NOT_GIVEN,
        "out_shardings": _NOT_GIVEN,
        "keep_unused": False,
        "inline": False,
    }
    options = {name: value for name, value in given.items() if value is not defaults.get(name)}
    return decorate(
        Jitted,
        fun,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_states=donate_states,
        **options,
    )
