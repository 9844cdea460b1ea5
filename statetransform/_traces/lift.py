"""Enter, call, leave: the three verbs from which every transform is made.

Transforms that JAX does not stage (`grad`, `vjp`, `jvp`, `linearize`, `vmap`) run the function directly:
a `Lift` pushes a frame, seeds it with the differentiated or batched values, runs the body, and returns
what was written as an auxiliary output. Transforms that stage go through
`TraceCache`: `Staged` is the decorator, and `find_for_once` of `traces` serves the function that a loop or branch gets.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .._jax import trace_state
from .._objects.hooks import not_recorded
from .._states import pytrees
from .._states.find import selects
from .._states.frame import Frame, innermost, own_arrays, trace_around
from .._states.installing import waiting
from .._states.raw_reads import Fresh
from .._states.reachable import install_for_all_in
from .._states.state import State
from .._states.values import Values
from .._uses.leaks import refuse_leaks
from .arguments import NO_SELF, StaticArguments, hide, revealing
from .families import Unshared, cache_of
from .outcome import Outcome, Results, pack
from .traces import TraceCache
from .wrapper import Transformed, unbound


class Lift:
    """One direct run of a function with some states' values given from outside.

    Args:
      fun: the function.
      make_frame: the frame to run it in.
      is_pure: whether the caller threads the values explicitly.
      called_from: the state of JAX's traces where the user called the transform, if that is not the present one.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        make_frame: Callable[[], Frame] = Frame,
        is_pure: bool = False,
        called_from: Any = None,
    ) -> None:
        if not sys.modules.keys().isdisjoint(waiting):
            install_for_all_in(fun)
        self._fun, self._is_pure = fun, is_pure
        self._make_frame = make_frame
        self._outer, self._called_from = trace_around(), called_from or trace_state()
        around = innermost()
        self._is_in_raw = around is not None and around.is_below_raw()
        self._trace: Callable[[], Any] = lambda: None
        self.outcome: Outcome | None = None

    def call(self, values: Mapping[State, Any], args: Any, kwargs: Any) -> Results:
        """The pure function: runs in the JAX transform, with `values` as the values on entry."""
        attempt = Fresh(self._fun, innermost())
        while True:
            with attempt as is_fresh:
                own_args, own_kwargs = pytrees.detached((args, kwargs))
                with self._make_frame() as frame:
                    frame.is_fresh, frame.outer, frame.is_in_raw = is_fresh, self._outer, self._is_in_raw
                    frame.called_from, frame.is_pure = self._called_from, self._is_pure
                    if frame.here != self._called_from:
                        self._trace = weakref.ref(frame.trace)
                    for state, value in values.items():
                        frame.seed(state, own_arrays(value))
                    try:
                        out = [self._fun(*own_args, **own_kwargs)]
                    except Exception:  # not what makes it begin again
                        frame.abandon()
                        raise
                    del own_args, own_kwargs
                    results, self.outcome = pack(frame, out.pop())
                return results

    def leave(self, out: Any, written: list[Any] | None, born: list[Any]) -> Any:
        """After the JAX transform has returned: hands the writes on, or drops them for None, and returns the output."""
        assert self.outcome is not None
        self._outer = self._called_from = None
        if (trace := self._trace()) is not None:  # which is over, so a tracer of it is somewhere
            with not_recorded():
                refuse_leaks(trace, (self._fun,))
        return self.outcome.finish(out, written, born)

    def reveal(self, values: Mapping[State, Any], out: Any, written: list[Any], born: list[Any]) -> tuple[Any, Values]:
        """The output and the values after the call, for callers that thread the values explicitly."""
        assert self.outcome is not None
        with Frame() as frame:  # takes what is left, so that nothing reaches the states
            out = self.outcome.finish(out, written, born)
            return out, Values({**values, **frame.written(), **frame.born})


def with_aux(results: Results, has_aux: bool, where: str) -> tuple[Any, Any]:
    """Results as `(output, auxiliary data)`, what was written being auxiliary."""
    out, written, born = results
    if not has_aux:
        return out, (None, written, born)
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(
            f"{where}: with has_aux=True the function must return a pair (output, aux), not {type(out).__name__}"
        )
    return out[0], (out[1], written, born)


def at_once(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function as it is, its writes being one: when it raises, none has happened."""
    lifted = Lift(fun)
    return lifted.leave(*lifted.call({}, args, kwargs))


def method_of(fun: Callable[..., Any], obj: Any) -> Callable[..., Any]:
    """The method of an instance, or the function itself."""
    if obj is NO_SELF:
        return fun
    return fun.__get__(obj) if isinstance(fun, Transformed) else types.MethodType(fun, obj)


class Direct(Transformed):
    """A function under a transform that runs it directly.

    Subclasses define `_run(fun, args, kwargs)`, with the objects among the arguments hidden; `fun` finds them.
    """

    _run: Callable[..., Any]

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        (args, kwargs), objects = hide((args, kwargs))
        return self._run(revealing(method_of(self.__wrapped__, obj), objects), args, kwargs)


class Staged(Transformed):
    """A function under a JAX transform that maps functions to functions and stages them.

    Args:
      around: the JAX transform, applied within the one trace, or to what was traced; None for none.
      where: its name, for messages; None for that of the subclass.
      static_argnums, static_argnames: as in :func:`jax.jit`.
      states: which states are lifted; None for all.
    """

    _counts_given: ClassVar[bool] = False  # whether negative `static_argnums` count from the last argument of a call
    _option: ClassVar[str] = "around"  # or "around_program", see `stage.trace`

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        around: Callable[..., Callable[..., Any]] | None,
        where: str | None = None,
        is_method: bool = False,
        static_argnums: Any = (),
        static_argnames: Any = (),
        states: Any = None,
    ) -> None:
        super().__init__(fun, is_method=is_method)
        self._around, self.where = around, where or self.where
        # As in JAX, a wrapper that is made anew for the same function finds the traces of the last one.
        self._fun, self._instance = unbound(fun)
        self._static = StaticArguments(self._fun, static_argnums, static_argnames, self._counts_given)
        self._is_lifted = None if states is None else selects(states)
        self._key_of_states = _key_of(states)
        self._store = self._store_for(around)

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs, roots = self.hidden(obj, args, kwargs)
        around = self._around_call(args, kwargs, obj is not NO_SELF or self._instance is not NO_SELF)
        store = self._store if around is self._around else self._store_for(around)
        return store.find(self._fun, args, kwargs, roots[1:]).run()

    def _store_for(self, around: Any) -> TraceCache:
        make = functools.partial(TraceCache, is_lifted=self._is_lifted, **{self._option: around})
        return cache_of(self._fun, (around, self._key_of_states), make)

    def _around_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], has_self: bool) -> Any:
        """The JAX transform for a call with these arguments, the instance in front; they are hidden."""
        return self._around


def _key_of(states: Any) -> Any:
    """What `states=` adds to the key of a cache, which must not keep the states alive."""
    if states is None or isinstance(states, type) or callable(states):
        return states
    return Unshared()
