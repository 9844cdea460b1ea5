"""`jit`: compiled calls over states, with a dispatch path that adds little to JAX's own.

A call goes through the programs of the function, the one used last first. A program that was used a few times has a
generated function, its `way_in`, that follows the recorded paths from the function, the instance and the arguments to
the states, and checks the structure on the way; no signature is computed and no pytree walked in Python. It calls the
compiled program with the states' values, by JAX's own dispatch, and stores what comes back. Whatever does not fit goes
the slow way: find a trace or make one, keep it, call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import jax

from .._jax import forget_failed_calls, is_jit_disabled, is_top_level
from .._states.frame import active, look_at, stack
from .._states.state import State
from .._traces.arguments import NO_SELF, StaticArguments, abstract, hide, integers, positional_parameters
from .._traces.families import NEVER, Unshared, cache_of
from .._traces.lift import at_once, method_of
from .._traces.shardings import placed
from .._traces.tracebacks import boundary, hide_frames
from .._traces.wrapper import Bound, Transformed, decorate, unbound
from ._ahead_of_time import AheadOfTime
from ._options import ByState, bound_as_in, check_arguments, check_sharding, entries
from ._programs import Program, Store, Untraced
from ._way_in import OTHER


class Jitted(Transformed):
    """A function under `jit`."""

    where = "jit"

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        is_method: bool = False,
        static_argnums: Any = None,
        static_argnames: Any = None,
        donate_states: bool = False,
        state_shardings: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(fun, is_method=is_method)
        check_arguments(fun, static_argnums, static_argnames, options)
        self.donates = donate_states
        self._jax_options = options
        self._fun, self._instance = unbound(fun)
        self._static = StaticArguments(self._fun, static_argnums, static_argnames)
        self._shardings: ByState | None = None
        if state_shardings is not None:
            self._shardings = ByState("jit", "state_shardings", state_shardings, "sharding", _sharding)
        self._moves_inputs = any(given is not None for given in (state_shardings, options.get("in_shardings")))
        own = () if self._shardings is None else (Unshared(),)
        self._store = cache_of(self._fun, ("jit", self.donates, *own, *sorted(self._jax_options.items())), Store)

    def clear_cache(self) -> None:
        """Forgets every trace and compiled program."""
        self._store.clear()

    def jax_options(
        self, args: tuple[Any, ...], keywords: Collection[str], has_self: bool, leading: int, n_donated: int
    ) -> dict[str, Any]:
        """The options for the underlying `jax.jit`, whose function has leading arguments and a second output.

        `leading` arguments come before `args`, which are without `self`; the first `n_donated` of them are given away.
        """
        options = dict(self._jax_options)
        if not options:
            return {"donate_argnums": tuple(range(n_donated))}
        parameters, rest = positional_parameters(self._fun)
        parameters = parameters[has_self:]
        names = options.pop("donate_argnames", None) or ()
        names = (names,) if isinstance(names, str) else tuple(names)
        # A name stands for a position where the call gives the argument by position: inputs have names of their own.
        by_position = [i for i, name in enumerate(parameters[: len(args)]) if name in names]
        by_name = [name for name in names if name in keywords]
        # Negative ones count from the end of the signature, as those that are static do.
        is_from_end = lambda i: i < 0 and rest is None
        by_number = [i + len(parameters) if is_from_end(i) else i for i in integers(options.get("donate_argnums"))]
        donated = [*by_position, *by_number]
        options["donate_argnums"] = (*range(n_donated), *[i + leading if i >= 0 else i for i in donated])
        if by_name:
            options["donate_argnames"] = by_name
        if "in_shardings" in options:
            # None: the states keep the shardings that they have.
            options["in_shardings"] = (*(None,) * leading, *self.in_shardings(len(args), has_self))
        if "out_shardings" in options:
            options["out_shardings"] = (options["out_shardings"], None)
        return options

    def in_shardings(self, n_args: int, has_self: bool) -> list[Any]:
        """What `in_shardings` says of each argument by position, without `self`."""
        return entries("jit", "in_shardings", self._jax_options["in_shardings"], self._static, n_args, has_self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._owners or self._is_method or (self._may_take_class and args and isinstance(args[0], type)):
                return super().__call__(*args, **kwargs)
            if not active:
                out = self._store.way_in(self, self._instance, args, kwargs)
                if out is not OTHER:
                    return out
                return self._search(NO_SELF, args, kwargs, self._store.programs[1:])
            return self._call(NO_SELF, args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _call_bound(self, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if not active:
                out = self._store.way_in(self, obj, args, kwargs)
                if out is not OTHER:
                    return out
                return self._search(obj, args, kwargs, self._store.programs[1:])
            return self._call(obj, args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._search(obj, args, kwargs, self._store.programs)

    def _search(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any], programs: Sequence[Program]) -> Any:
        """A call that the program used last does not take, or one within a transform; one of `programs` may take it."""
        if stack.frame is None:
            instance = self._instance if obj is NO_SELF else obj
            for program in programs:
                if (way_in := program.way_in) is None:
                    continue
                if (out := way_in(program, self, instance, args, kwargs)) is not OTHER:
                    self._store.use(program)
                    return out
        if is_jit_disabled():
            return at_once(method_of(self._fun, self._instance if obj is NO_SELF else obj), *args, **kwargs)
        program, *found = self.run("__call__", obj, args, kwargs)
        return program.finish(*found)

    def _failed(self, program: Program, error: Exception, obj: Any, args: Any, kwargs: Any) -> Any:
        """After an error in a program: OTHER when it is not the user's, but says that another program has to run."""
        # New types, or an object where there was an array.
        if isinstance(error, Untraced) or (isinstance(error, TypeError) and hide((args, kwargs))[1]):
            return OTHER
        if states := program.match(self.hidden(obj, args, kwargs)[2]):
            program.explain(error, states, (args, kwargs))
        raise error

    def _look_at(self, program: Program, obj: Any, args: Any, kwargs: Any) -> None:
        """Says of the states that a program has read that they are constants of a raw transform around it."""
        for state in program.match(self.hidden(obj, args, kwargs)[2]) or ():
            look_at(state)

    def _finish(self, program: Program, obj: Any, args: Any, kwargs: Any, results: Any, states: list[State]) -> Any:
        """After a program gave more than ordinary values of written states."""
        return program.finish(states, results, self.hidden(obj, args, kwargs)[2])

    def run(self, method: str, obj: Any, args: Any, kwargs: Any) -> tuple[Program, Sequence[State], Any, Any]:
        """Calls a method of the `jax.jit` function that fits these arguments, tracing where none does.

        Gives the program, its states, what the method returned, and the roots.
        """
        has_self = obj is not NO_SELF or self._instance is not NO_SELF
        args, kwargs, roots = self.hidden(obj, args, kwargs)
        treedef = jax.tree.structure((args, kwargs))
        fitting = self._fitting(treedef, roots, args, kwargs)
        first = [*itertools.islice(fitting, 1)]
        for program, states in first:
            run = program.jitted_for(method)
            try:
                results = program.run(run, states, args, kwargs)
            except Untraced:
                forget_failed_calls(run)
                break
            if stack.frame is None:  # it is not used within a transform
                program.write_way_in(args, kwargs)
            self._store.family.repeats = NEVER
            self._store.use(program)
            return program, states, results, roots
        places = _Places(self, has_self) if self._moves_inputs else None
        call = self._store.find(self._fun, args, kwargs, roots[1:], places)
        states = call.states
        known = (program for program, _ in itertools.chain(first, fitting) if program.takes(call.trace))
        program = next(known, None)
        if program is None:
            if self._shardings is not None:
                self._shardings.warn_unmatched(self._fun, [*states, *call.created])
            program = Program(self, call, treedef, args, has_self)
        results = program.run(program.jitted_for(method), states, args, kwargs, call)
        if call.trace.structure is not None:
            self._store.use(program)
            self._store.family.add(program.treedef, program)  # for others to find
        return program, states, results, roots

    def _fitting(
        self, treedef: Any, roots: Sequence[Any], args: Any, kwargs: Any
    ) -> Iterator[tuple[Program, list[State]]]:
        """The programs that fit a call, with the states that each has found in it.

        One after the other as they are asked for: functions of equal code may have many programs, and a trace around
        depends on all that is looked at.
        """
        for program in self._store.known(treedef):
            states = program.match(roots)
            if states is not None and program.is_for(states, (args, kwargs)):
                yield program, states

    @boundary
    def trace(self, /, *args: Any, _instance: Any = NO_SELF, **kwargs: Any) -> AheadOfTime:
        """Traces for these arguments and the states' present types; as the method of :func:`jax.jit`."""
        return self._ahead_of_time("trace", _instance, args, kwargs)

    @boundary
    def lower(self, /, *args: Any, _instance: Any = NO_SELF, **kwargs: Any) -> AheadOfTime:
        """Traces and lowers; as the method of :func:`jax.jit`."""
        return self._ahead_of_time("lower", _instance, args, kwargs)

    @boundary
    def eval_shape(self, /, *args: Any, _instance: Any = NO_SELF, **kwargs: Any) -> Any:
        """Shapes and dtypes of the output; as the method of :func:`jax.jit`."""
        return self._ahead_of_time("trace", _instance, args, kwargs)._shapes()

    def _ahead_of_time(self, method: str, obj: Any, args: Any, kwargs: Any) -> AheadOfTime:
        may_bind = obj is NO_SELF and bool(self._owners or self._is_method or self._may_take_class)
        if is_unbound := may_bind and bool(args) and self._binds(args[0]):
            obj, args = args[0], args[1:]
        has_self = obj is not NO_SELF or self._instance is not NO_SELF
        args, kwargs = abstract(self._static.hide(args, kwargs, has_self))
        with jax.disable_jit(False):  # as in JAX, asking for a program gives one
            program, states, stage, _ = self.run(method, obj, args, kwargs)
        return AheadOfTime(self, stage, program, states, obj, is_unbound, args, kwargs)


class _Places:
    """Where the options of a function under `jit` put its inputs."""

    def __init__(self, jitted: Jitted, has_self: bool) -> None:
        self._jitted, self._has_self = jitted, has_self
        self._mesh = jax.sharding.get_mesh() if is_top_level() else None  # JAX does not say it within a trace

    def of_arguments(self, args: tuple[Any, ...]) -> Any:
        """Those of `in_shardings`."""
        if self._jitted._jax_options.get("in_shardings") is None:
            return args
        n = int(self._has_self)
        given = (*(None,) * n, *self._jitted.in_shardings(len(args) - n, self._has_self))
        try:
            given = jax.tree.broadcast(given, args, is_leaf=lambda x: x is None)
            return jax.tree.map(lambda x, sharding: placed(x, sharding, self._mesh), args, given)
        except ValueError:  # which JAX refuses with the argument's name
            return args

    def of_state(self, state: State, value: Any) -> list[Any]:
        """Those of `state_shardings`."""
        wanted = self._jitted._shardings
        sharding = None if wanted is None else wanted.of(state)
        if sharding is not None:
            check_sharding("jit: `state_shardings`", state, value, sharding, jax.sharding.get_abstract_mesh())
        return [placed(leaf, sharding, self._mesh) for leaf in jax.tree.leaves(value)]


def _sharding(key: Any, sharding: Any) -> Any:
    if not isinstance(sharding, jax.sharding.Sharding | jax.P):
        needed = "a `jax.sharding.Sharding` or a `jax.P`"
        raise TypeError(f"jit: in `state_shardings`, {key!r} needs {needed}, not {sharding!r}")
    return sharding


class BoundJitted(Bound):
    """A compiled method with its instance. It has the methods of :class:`jax.stages.Wrapped`, which JAX looks for."""

    __slots__ = ()

    def trace(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As of the function."""
        return self.__func__.trace(*args, _instance=self.__self__, **kwargs)  # type: ignore[attr-defined]

    def lower(self, *args: Any, **kwargs: Any) -> AheadOfTime:
        """As of the function."""
        return self.__func__.lower(*args, _instance=self.__self__, **kwargs)  # type: ignore[attr-defined]

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of the function."""
        return self.__func__.eval_shape(*args, _instance=self.__self__, **kwargs)  # type: ignore[attr-defined]


Jitted._bound = BoundJitted


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
    fun: Callable[Q, V], /, *, donate_states: bool = False, state_shardings: Any = None, **options: Any
) -> Compiled[Q, V]: ...
@overload
def jit(
    *, donate_states: bool = False, state_shardings: Any = None, **options: Any
) -> Callable[[Callable[Q, V]], Compiled[Q, V]]: ...
@bound_as_in(jax.jit)
def jit(fun: Any = None, *, donate_states: bool = False, state_shardings: Any = None, **options: Any) -> Any:
    """Compiles a function that uses states: :func:`jax.jit`.

    The values of the states are passed in with each call, and new values are returned.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      in_shardings (pytree of Sharding): the shardings of the arguments. States keep the shardings that they
        have. Default: those of the arguments.
      out_shardings (pytree of Sharding): the shardings of the output. Default: the compiler's choice.
      static_argnums (int | Sequence[int], optional): positions of arguments that Python sees as they are, not
        counting `self`; they must be hashable, and another value causes another trace. Default: None.
      static_argnames (str | Iterable[str], optional): the same, by name. Default: None.
      donate_argnums (int | Sequence[int], optional): positions of arguments whose buffers the program may reuse.
        Default: None.
      donate_argnames (str | Iterable[str], optional): the same, by name. Default: None.
      keep_unused (bool): whether to keep arguments that the function does not use. Default: False.
      device (Device, optional): deprecated in JAX. Default: None.
      backend (str, optional): deprecated in JAX. Default: None.
      inline (bool): whether to inline the function into the jaxpr of another. Default: False.
      compiler_options (dict, optional): options for XLA. Default: None.
      donate_states (bool): gives the buffers of written states to the program, which may reuse them for the new values.
        An error before the program runs leaves the states as they are; one while it runs says which values are lost.
        Inside of another transform, whose own failure must leave the states as they were, nothing is given.
      state_shardings (Mapping, optional): a mapping from `State`, kind or predicate to the sharding of its value (or,
        under `jax.set_mesh`, a `jax.P`), in and out, also of states that the function makes; other states keep theirs.

    Returns:
      The compiled function, with `lower`, `trace` and `clear_cache` as in JAX. What these give can be called
      with states.

    Raises:
      TypeError: a static argument is not hashable; it is a `ValueError` as well, as in `jax.jit`.
      StateTraceError: the call is inside a raw JAX transform and writes; use `statetransform.transform` there as well.

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
    return decorate(Jitted, fun, donate_states=donate_states, state_shardings=state_shardings, **options)
