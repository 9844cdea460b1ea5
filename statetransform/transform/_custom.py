"""`custom_vjp` and `custom_jvp`: derivative rules for functions that use states.

JAX wants everything that such a function depends on as an argument, so the states that it reads are
arguments, with cotangents that are zero: a rule says how gradients flow through the arguments only. What
the function writes is a second output, which the rules do not see.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._core.arguments import NO_SELF, hide, integers, positional_parameters, reveal
from .._core.errors import StateStructureError
from .._core.jaxcompat import typeof
from .._core.lift import Lift
from .._core.stage import Call, TraceCache
from .._core.wrapper import Transformed


class CustomRule(Transformed):
    """A function with a derivative rule of its own."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        is_method: bool = False,
        nondiff_argnums: Any = (),
        nondiff_argnames: Any = (),
    ) -> None:
        super().__init__(
            fun,
            is_method=is_method,
            nondiff_argnums=nondiff_argnums,
            nondiff_argnames=nondiff_argnames,
        )
        parameters = positional_parameters(fun) or ()
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        self._nondiff = {*integers(nondiff_argnums), *[parameters.index(name) for name in names]}

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = self._positional(args, kwargs, has_self=obj is not NO_SELF)
        fixed = {i % len(args): args[i] for i in sorted(self._nondiff)}
        free = [i for i in range(len(args)) if i not in fixed]

        def whole(primals: Any) -> tuple[Any, ...]:
            given = iter(primals)
            rest = [fixed[i] if i in fixed else next(given) for i in range(len(args))]
            return tuple(rest) if obj is NO_SELF else (obj, *rest)

        fun = lambda *primals: self.__wrapped__(*whole(primals))
        primals, objects = hide(tuple(args[i] for i in free))
        call = TraceCache().find(fun, primals, {}, objects)
        results = self._apply(
            call, call.values, primals, lambda primals: whole(reveal(tuple(primals), objects)), tuple(fixed.values())
        )
        return call.finish(*results)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any], has_self: bool) -> tuple[Any, ...]:
        """All arguments by position, defaults included, as JAX gives them to the rules."""
        try:
            signature = inspect.signature(self.__wrapped__)
        except (TypeError, ValueError):  # a builtin
            signature = None
        if signature is None and not kwargs:
            return args
        names = ", ".join(kwargs)
        if signature is not None:
            bound = signature.bind(*((None, *args) if has_self else args), **kwargs)
            bound.apply_defaults()
            if not bound.kwargs:
                return bound.args[1:] if has_self else bound.args
            names = ", ".join(bound.kwargs)
        raise TypeError(
            f"{self.__qualname__}: a custom rule is given all arguments by position, which {names} cannot be. "
            "Make these positional parameters, or close over the values."
        )

    def _apply(
        self,
        record: Call,
        values: list[Any],
        primals: tuple[Any, ...],
        whole: Callable[..., Any],
        fixed: Any,
    ) -> Any:
        raise TypeError(f"{type(self).__name__} does not say how it is applied")

    def _run_rule(self, record: Call, rule: Callable[..., Any], values: list[Any]) -> tuple[Any, Any]:
        """Runs a rule with the states' values: its output, and what it wrote, as the function does."""
        states = dict(zip(record.reads, jax.tree.unflatten(record.record.read_tree, values), strict=True))
        lift = Lift(rule)
        out, written, born = lift.call(states, (), {})
        assert lift.outcome is not None
        if lift.outcome.written != record.written:
            raise StateStructureError.rule(self.__qualname__, record.written, lift.outcome.written)
        return out, (written, born)


class CustomVjp(CustomRule):
    """A function with `defvjp`."""

    _rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], **options: Any) -> None:
        """Sets the rule, as :meth:`jax.custom_vjp.defvjp` does."""
        self._rules, self._rule_options = (fwd, bwd), options

    def _apply(
        self,
        record: Call,
        values: list[Any],
        primals: tuple[Any, ...],
        whole: Callable[..., Any],
        fixed: Any,
    ) -> Any:
        if self._rules is None:
            raise AttributeError(f"{self.__qualname__}: no rule was set; call `{self.__name__}.defvjp(fwd, bwd)` first")
        fwd, bwd = self._rules
        pure = jax.custom_vjp(lambda values, *primals: record.record.bind(jax.tree.leaves((primals, {})), values))

        def forward(values: list[Any], *primals: Any) -> Any:
            (out, residuals), effects = self._run_rule(record, lambda: fwd(*whole(primals)), values)
            return (out, *effects), (residuals, values)

        def backward(residuals: Any, cotangents: Any) -> Any:
            residuals, values = residuals
            return [_zero(value) for value in values], *bwd(*fixed, residuals, cotangents[0])

        pure.defvjp(forward, backward, **self._rule_options)
        return pure(values, *primals)


class CustomJvp(CustomRule):
    """A function with `defjvp`."""

    _rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Sets the rule, as :meth:`jax.custom_jvp.defjvp` does."""
        self._rule, self._symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets a rule for each argument, as :meth:`jax.custom_jvp.defjvps` does."""
        if self._nondiff:
            raise TypeError(f"{self.__qualname__}: `defjvps` cannot be used together with `nondiff_argnums`")

        def rule(primals: Any, tangents: Any) -> Any:
            out = self(*primals)
            dots = [jvp(dot, out, *primals) for dot, jvp in zip(tangents, jvps, strict=False) if jvp is not None]
            return out, jax.tree.map(_total, jax.tree.map(_zero, out), *dots)

        self.defjvp(rule)

    def _apply(
        self,
        record: Call,
        values: list[Any],
        primals: tuple[Any, ...],
        whole: Callable[..., Any],
        fixed: Any,
    ) -> Any:
        if self._rule is None:
            raise AttributeError(f"{self.__qualname__}: no rule was set; decorate one with `@{self.__name__}.defjvp`")
        rule = self._rule
        pure = jax.custom_jvp(lambda values, *primals: record.record.bind(jax.tree.leaves((primals, {})), values))

        def jvp(primals: Any, tangents: Any) -> Any:
            values, *primals = primals
            call = lambda: rule(*fixed, reveal(tuple(primals)), reveal(tuple(tangents[1:])))
            (out, out_tangent), (written, born) = self._run_rule(record, call, values)
            zeros = jax.tree.map(_zero, (written, born))
            return (out, written, born), (out_tangent, *zeros)

        pure.defjvp(jvp, symbolic_zeros=self._symbolic_zeros)
        return pure(values, *primals)


def _total(zero: Any, *tangents: Any) -> Any:
    return zero if zero.dtype == jax.dtypes.float0 else sum(tangents, zero)


def _zero(value: Any) -> Any:
    """A zero tangent, of type float0 for what has no tangent."""
    aval = typeof(value)
    if jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def custom_vjp(fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> CustomVjp:
    """Gives a function over states a reverse-mode rule: :class:`jax.custom_vjp`.

    Gradients flow through the arguments only.

    Args:
      fun, nondiff_argnums, nondiff_argnames: as in :class:`jax.custom_vjp`.

    Returns:
      The function, with `defvjp`. The forward rule runs in place of the function and has to write the same states.

    Raises:
      StateStructureError: a rule writes other states than the function, in whose place it runs.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.custom_vjp.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> @transform.custom_vjp
      ... def f(x):
      ...     return w.value * x
      >>> f.defvjp(lambda x: (w.value * x, None), lambda residual, ct: (100 * ct,))
      >>> float(transform.grad(f)(2.0))
      100.0
    """
    return CustomVjp(fun, nondiff_argnums=nondiff_argnums, nondiff_argnames=nondiff_argnames)


def custom_jvp(fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> CustomJvp:
    """Gives a function over states a forward-mode rule: :class:`jax.custom_jvp`.

    Tangents flow through the arguments only.

    Args:
      fun, nondiff_argnums, nondiff_argnames: as in :class:`jax.custom_jvp`.

    Returns:
      The function, with `defjvp` and `defjvps`. The rule runs in place of the function and has to write the same
      states.

    Raises:
      StateStructureError: a rule writes other states than the function, in whose place it runs.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.custom_jvp.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> @transform.custom_jvp
      ... def f(x):
      ...     return w.value * x
      >>> @f.defjvp
      ... def rule(primals, tangents):
      ...     return w.value * primals[0], 7 * tangents[0]
      >>> float(transform.grad(f)(2.0))
      7.0
    """
    return CustomJvp(fun, nondiff_argnums=nondiff_argnums, nondiff_argnames=nondiff_argnames)
