"""The way out: pure functions of states' values, and state-aware versions of other transforms."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, overload

from .._base.errors import check_function
from .._states.frame import look_at
from .._states.state import State
from .._states.values import Values
from .arguments import StaticArguments, hide, reveal
from .families import Family
from .lift import Lift, Staged, method_of
from .trace import Call
from .tracebacks import boundary
from .traces import TraceCache
from .wrapper import decorate


class Functionalized:
    """A stateful function as a pure one; see `functionalize`."""

    def __init__(self, fun: Callable[..., Any], static_argnums: Any = (), static_argnames: Any = ()) -> None:
        functools.update_wrapper(self, fun, updated=())  # type: ignore[arg-type]
        self.__wrapped__ = fun
        self._options = static_argnums, static_argnames
        self._static = StaticArguments(fun, static_argnums, static_argnames)
        self._cache = TraceCache(Family(), is_pure=True)
        self._last: Callable[[], Call | None] = lambda: None

    @property
    def history(self) -> Any:
        """The traces made so far, for `inspect.explain_retrace`."""
        return self._cache.family.log_of(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<functionalized {self.__wrapped__!r}>"

    def __reduce__(self) -> Any:
        return Functionalized, (self.__wrapped__, *self._options)

    def __get__(self, obj: Any, owner: type | None = None) -> Functionalized:
        return self if obj is None else Functionalized(method_of(self.__wrapped__, obj), *self._options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is a pure function of the states' values, and is not called itself. "
            "Write `out, new_values = pure.apply(pure.values(*args), *args)`, or call the function behind it."
        )

    def _check_values(self, values: Any) -> None:
        what, wrong = "is", values
        if isinstance(values, Mapping):
            what, wrong = "has the key", next((key for key in values if not isinstance(key, State)), None)
            if wrong is None:
                return
        raise TypeError(
            f"apply: the first argument must be a mapping from State to value, but it {what} {wrong!r} of type "
            f"{type(wrong).__name__}. Write `pure.apply(pure.values(*args), *args)`."
        )

    def _hide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
        if self._static:
            args, kwargs = self._static.hide(args, kwargs, has_self=False)
        (args, kwargs), objects = hide((args, kwargs))
        return args, kwargs, objects

    @boundary
    def trace(self, /, *args: Any, **kwargs: Any) -> Call:
        """Traces the function for the types of these arguments; nothing is written."""
        args, kwargs, objects = self._hide(args, kwargs)
        call = self._cache.find(self.__wrapped__, args, kwargs, objects)
        last = self._last()
        if last is not None and last.trace is call.trace and last.states == call.states:
            return last  # as long as the user has it, the same one
        self._last = weakref.ref(call)
        return call

    @boundary
    def values(self, /, *args: Any, **kwargs: Any) -> Values:
        """The current values of all states that a call with these arguments reads or writes."""
        call = self.trace(*args, **kwargs)
        return Values({state: look_at(state) for state in (*call.reads, *call.written)})

    @boundary
    def apply(self, values: Mapping[State, Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The pure call: no state is read that `values` holds, and none is written.

        Args:
          values: values on entry. States that are missing are constants with their present value.
          `*args`, `**kwargs`: the function's arguments.

        Returns:
          The output, and the values afterwards of all states in `values` and of those written.
        """
        if not isinstance(values, Values):
            self._check_values(values)
        args, kwargs, objects = self._hide(args, kwargs)
        args, kwargs = reveal((args, kwargs), objects)
        lift = Lift(self.__wrapped__, is_pure=True)
        out, written, born = lift.call(values, args, kwargs)
        return lift.reveal(values, out, written, born)


@overload
def functionalize(fun: Callable[..., Any], static_argnums: Any = (), static_argnames: Any = ()) -> Functionalized: ...
@overload
def functionalize(
    *, static_argnums: Any = (), static_argnames: Any = ()
) -> Callable[[Callable[..., Any]], Functionalized]: ...
def functionalize(fun: Any = None, static_argnums: Any = (), static_argnames: Any = ()) -> Any:
    """The pure function behind a stateful one, for raw JAX transforms (:func:`jax.jit`, ...) and other libraries.

    Args:
      fun: the function; None for the form with arguments.
      static_argnums, static_argnames: as in :func:`jax.jit`.

    Returns:
      An object with `trace(*args)` (the states read, written and created, the abstract values, the jaxpr),
      `values(*args)` (the current values) and the pure call `apply(values, *args) -> (out, new values)`.

    References:
      https://docs.jax.dev/en/latest/jit-compilation.html#side-effects-and-pure-functions

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax
      >>> def f(x):
      ...     n.value = n.value + 1
      ...     return x * n.value
      >>> pure = transform.functionalize(f)
      >>> out, new = jax.jit(pure.apply)(pure.values(2.0), 2.0)
      >>> float(out), int(new[n]), n.value
      (2.0, 1, 0)
    """
    if fun is None:
        return functools.partial(functionalize, static_argnums=static_argnums, static_argnames=static_argnames)
    check_function("functionalize", fun)
    return Functionalized(fun, static_argnums, static_argnames)


def lift(jax_transform: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a transform of functions state-aware, if it keeps the argument convention as :func:`jax.named_call` does.

    Args:
      jax_transform: takes a function, and gives one that takes the same arguments and returns a result of the
        same structure. It calls the function once: a second call is a `TypeError` where states are used.

    Returns:
      The transform for functions that use states; options follow the function as they do in `jax_transform`.

    References:
      https://docs.jax.dev/en/latest/jax-101.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax
      >>> compiled = transform.lift(jax.jit)
      >>> def f(x):
      ...     n.value = n.value + 1
      ...     return x
      >>> float(compiled(f)(2.0)), int(n.value)
      (2.0, 1)
    """

    if not callable(jax_transform):
        raise TypeError(f"lift: expected a transform of functions, such as `jax.jit`, not {jax_transform!r}")

    @functools.wraps(jax_transform, updated=())
    def transform(fun: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        static = {name: kwargs.pop(name) for name in ("static_argnums", "static_argnames") if name in kwargs}
        around = _Applied(jax_transform, args, tuple(sorted(kwargs.items())))
        return decorate(Staged, fun, where=getattr(jax_transform, "__name__", "lift"), around=around, **static)

    return transform


@dataclasses.dataclass(frozen=True)
class _Applied:
    """A JAX transform with its options; equal ones share traces."""

    transform: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def __call__(self, body: Callable[..., Any]) -> Callable[..., Any]:
        return self.transform(body, *self.args, **dict(self.kwargs))
