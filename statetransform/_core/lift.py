"""Enter, call, leave: the three verbs from which every transform is made.

Transforms that JAX does not stage (`grad`, `vjp`, `jvp`, `linearize`, `vmap`) run the function directly:
a `Lift` pushes a frame, seeds it with the differentiated or batched values, runs the body, and returns
what was written as an auxiliary output. Transforms that stage use the records of `stage`; `Staged` and
`call_staged` are their two faces: a decorator, and a call with a function argument.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .arguments import NO_SELF, StaticArguments, WeakIdDict, hide, hide_self, refs_in, reveal
from .find import selects
from .frame import Frame, read
from .outcome import Layout, Results, pack
from .stage import TraceCache
from .state import State
from .values import Values
from .wrapper import Transformed


class Lift:
    """One direct run of a function with some states' values given from outside.

    Args:
      fun: the function.
      make_frame: the frame to run it in.
    """

    def __init__(self, fun: Callable[..., Any], make_frame: Callable[[], Frame] = Frame) -> None:
        self._fun = fun
        self._make_frame = make_frame
        self.layout: Layout | None = None

    def call(self, values: Mapping[State, Any], args: Any, kwargs: Any) -> Results:
        """The pure function: runs in the JAX transform, with `values` as the values on entry."""
        with self._make_frame() as frame:
            for state, value in values.items():
                frame.seed(state, value)
            args, kwargs = reveal((args, kwargs))
            results, self.layout = pack(frame, self._fun(*args, **kwargs))
        return results

    def leave(self, out: Any, written: list[Any], born: list[Any]) -> Any:
        """After the JAX transform has returned: hands the writes on and returns the output."""
        assert self.layout is not None
        return self.layout.finish(out, written, born)

    def reveal(self, values: Mapping[State, Any], out: Any, written: list[Any], born: list[Any]) -> tuple[Any, Values]:
        """The output and all values after the call, for who carries the values himself."""
        layout = self.layout
        assert layout is not None
        with Frame() as frame:  # takes what is left, so that nothing reaches the states
            out = layout.finish(out, written, born)
            return out, Values({**values, **frame.written(), **frame.survivors()})


def at_once(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function as it is, its writes being one: when it raises, none has happened."""
    lifted = Lift(fun)
    return lifted.leave(*lifted.call({}, args, kwargs))


def bind(fun: Callable[..., Any], obj: Any) -> Callable[..., Any]:
    """The method of an instance, or the function itself."""
    return fun if obj is NO_SELF else types.MethodType(fun, obj)


class Direct(Transformed):
    """A function under a transform that runs it directly.

    Subclasses define `_run(fun, args, kwargs)`; objects among the arguments are hidden there.
    """

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = hide((args, kwargs))
        return self._run(bind(self.__wrapped__, obj), args, kwargs)

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise TypeError(f"{type(self).__name__} does not say how it runs")


class Staged(Transformed):
    """A function under a JAX transform that maps functions to functions and stages them.

    Args:
      around: the JAX transform, applied within the one trace.
      static_argnums, static_argnames: as in :func:`jax.jit`.
      states: which states are lifted; None for all.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        around: Callable[[Callable[..., Any]], Callable[..., Any]],
        is_method: bool = False,
        static_argnums: Any = (),
        static_argnames: Any = (),
        states: Any = None,
    ) -> None:
        super().__init__(
            fun,
            is_method=is_method,
            around=around,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            states=states,
        )
        self._around = around
        self._static = StaticArguments(fun, static_argnums, static_argnames)
        self._is_lifted = None if states is None else selects(states)
        # As in JAX, a wrapper that is made anew for the same function finds the traces of the last one.
        self._cache, self._fun, self._leading = cache_of(fun, (around, states))

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._static:
            args, kwargs = self._static.hide(args, kwargs, has_self=obj is not NO_SELF)
        args, kwargs = hide((args, kwargs))
        leading = self._leading if obj is NO_SELF else (hide_self(obj),)
        return self._cache.call(self._fun, (*leading, *args), kwargs, self._around, self._is_lifted)


class Differentiated:
    """What a function is differentiated with respect to: states, arguments or both.

    All of it is gathered into one pytree, so that no index has to be shifted.

    Args:
      states: a `State` or a pytree of them, or None.
      argnums: positions, or None.
      args: the arguments, with objects hidden.
      where: the transform's name, for messages.

    Attributes:
      primal: the pytree to differentiate with respect to.
    """

    def __init__(self, where: str, states: Any, argnums: Any, args: tuple[Any, ...]) -> None:
        if states is None and argnums is None:
            argnums = 0
        self._has_states, self._has_arguments = states is not None, argnums is not None
        self._states, self._treedef = jax.tree.flatten(states)
        for state in self._states:
            if not isinstance(state, State):
                raise TypeError(
                    f"{where}: `states=` must be a State or a pytree of States, but has a leaf of type "
                    f"{type(state).__name__}. For the states of a model write `states=st.states(model, st.Param)`."
                )
        if len(set(self._states)) != len(self._states):
            raise ValueError(f"{where}: a state stands twice in `states=`; list each state once")
        self._args = args
        self._single = isinstance(argnums, int)
        self._positions = [_position(where, i, args) for i in ((argnums,) if self._single else argnums or ())]
        values = self._treedef.unflatten([read(state) for state in self._states])
        chosen = tuple(args[i] for i in self._positions)
        chosen = chosen[0] if self._single else chosen
        self.primal = (
            (values, chosen) if self._has_states and self._has_arguments else (values if self._has_states else chosen)
        )

    def split(self, primal: Any) -> tuple[dict[State, Any], tuple[Any, ...]]:
        """The states' values and the whole argument list, for other values of `primal`."""
        values, chosen = None, ()
        if self._has_states and self._has_arguments:
            values, chosen = primal
        elif self._has_states:
            values = primal
        else:
            chosen = primal
        args = list(self._args)
        for i, arg in zip(self._positions, (chosen,) if self._single else chosen, strict=True):
            args[i] = arg
        return dict(zip(self._states, self._treedef.flatten_up_to(values), strict=True)), tuple(args)


def _position(where: str, index: int, args: tuple[Any, ...]) -> int:
    if not -len(args) <= index < len(args):
        raise ValueError(
            f"{where}: argnums={index}, but the function was called with {len(args)} positional argument(s)"
        )
    arg = args[index]
    if not jax.tree.leaves(arg) and refs_in(jax.tree.structure(arg)):
        raise TypeError(
            f"{where}: argument {index} is passed by reference (it is a state, or holds states), and nothing can be "
            "differentiated with respect to it. Name the states instead: `states=st.states(model, st.Param)`."
        )
    return index % len(args)


_caches = WeakIdDict()  # function -> kind -> TraceCache


def cache_of(fun: Callable[..., Any], kind: Any) -> tuple[TraceCache, Callable[..., Any], tuple[Any, ...]]:
    """The cache for one way to transform a function, how to call the function, and its leading arguments.

    It lives as long as the function. A bound method is made anew at each look-up, so its cache belongs to
    the function behind it, and the instance becomes an argument.
    """
    leading: tuple[Any, ...] = ()
    if isinstance(fun, types.MethodType):
        leading = (hide_self(fun.__self__),)
        fun = fun.__func__
    caches = _caches.get(fun)
    if caches is None:
        caches = {}
        _caches.set(fun, caches)
    try:
        cache = caches.get(kind)
    except TypeError:  # options that cannot be hashed
        return TraceCache(), fun, leading
    if cache is None:
        cache = caches[kind] = TraceCache()
    return cache, fun, leading
