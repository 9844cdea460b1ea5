"""`custom_vjp` and `custom_jvp`: derivative rules for functions that use states."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

import jax
import numpy as np

from .._base.errors import check_function
from .._base.functions import name_of
from .._jax import has_tracer, runs_rule_directly, zero_tangent
from .._traces.arguments import NO_SELF, integers
from .._traces.lift import method_of
from .._traces.wrapper import Transformed
from ._rules import RuleCall, as_function


class CustomRule(Transformed):
    """A function with a derivative rule of its own. The rule is among its options, so that copies have it, too."""

    _kind: Any  # JAX's class
    _how_to_set: str  # what the user writes to give the function its rule
    _with_fixed: Callable[..., tuple[Any, ...]]  # all arguments, the fixed ones as JAX gives them to the function
    _rules_of: Callable[..., list[Callable[..., Any]]]  # some rules as those of the pure function of a call

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        is_method: bool = False,
        is_static: bool = False,
        nondiff_argnums: Any = (),
        nondiff_argnames: Any = (),
        rules: dict[str, tuple[tuple[Callable[..., Any], ...], dict[str, Any]]] | None = None,
    ) -> None:
        # Rules are set on this object, so it is itself what a static or class method would be.
        is_method, is_static = is_method or isinstance(fun, classmethod), is_static or isinstance(fun, staticmethod)
        fun = fun.__func__ if isinstance(fun, staticmethod | classmethod) else fun
        check_function(self._kind.__name__, fun)
        super().__init__(fun, is_method=is_method)
        self._options["is_static"] = self._is_static = is_static
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
        self._nondiff = {"nondiff_argnums": integers(nondiff_argnums), "nondiff_argnames": names}
        self._kind(fun, **self._nondiff)  # JAX says what is wrong
        self._options["rules"] = self._rules = rules or {}  # by the method of JAX's class that takes them

    def _set_rules(self, method: str, *rules: Callable[..., Any], **options: Any) -> None:
        self._options["rules"] = self._rules = {**self._rules, method: (rules, options)}

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if self._is_method:
            return self._bound(self._call_bound, type(obj) if owner is None else owner)
        return self if self._is_static else super().__get__(obj, owner)

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._rules:
            name = name_of(self.__wrapped__)
            raise AttributeError(f"{name}: no rule was set; {self._how_to_set.format(name.rpartition('.')[2])}")
        fun = method_of(self.__wrapped__, obj)
        args = self._positional(fun, args, kwargs)
        nondiff = self._kind(fun, **self._nondiff).nondiff_argnums
        free = [arg for i, arg in enumerate(args) if i not in nondiff]
        args = self._with_fixed(args, nondiff)
        is_set = lambda option: any(options.get(option) for _, options in self._rules.values())
        call = RuleCall(fun, args, nondiff, symbolic_zeros=is_set("symbolic_zeros"))
        has_remat = "defremat" in self._rules
        if has_remat or not runs_rule_directly(self._kind.__name__, free) or is_set("optimize_remat"):
            call.stage(traces_rules=not has_remat)
        pure = self._kind(as_function(lambda *args: None, call.run))
        for method, (rules, options) in self._rules.items():
            getattr(pure, method)(*self._rules_of(call, obj, *rules), **options)
        inputs = call.take_arguments()
        return call.finish(inputs, *pure(*inputs))

    def _positional(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults included, as JAX gives them to the rules."""
        bound = inspect.signature(as_function(fun, lambda *args: None)).bind(*args, **kwargs)
        bound.apply_defaults()
        names = ", ".join(name for name in bound.kwargs if name in kwargs)
        if names:
            raise TypeError(
                f"{name_of(self.__wrapped__)}: a custom rule receives all arguments by position, but {names} cannot be "
                "passed so. Make these positional parameters, or close over the values."
            )
        return bound.args


class CustomVjp(CustomRule):
    """A function with `defvjp` and `defremat`."""

    _kind, _how_to_set = jax.custom_vjp, "call `{}.defvjp(fwd, bwd)` first"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Sets the rule, as :meth:`jax.custom_vjp.defvjp` does."""
        bound = inspect.signature(jax.custom_vjp.defvjp).bind(None, fwd, bwd, *args, **options)
        given = {name: x for name, x in bound.arguments.items() if name not in ("self", "fwd", "bwd")}
        self._set_rules("defvjp", fwd, bwd, **given)

    def defremat(
        self, fwd: Callable[..., Any], rem: Callable[..., Any], bwd: Callable[..., Any], **options: Any
    ) -> None:
        """Sets the rules under `checkpoint`, as `defremat` of :class:`jax.custom_vjp` does where JAX has it.

        JAX 0.12 has it, with its options `jax_custom_vjp3` and `jax_remat3`. The rules `fwd` and `rem` run in place of
        the function and must write the same states. Rules may read the states that the function reads.

        Args:
          fwd (Callable): `fwd(*args) -> (out, residuals)`; the residuals are stored.
          rem (Callable): `rem(residuals, *args) -> (out, residuals)`, called in the backward pass.
          bwd (Callable): `bwd(residuals, cotangents) -> cotangents`, of the residuals that `rem` returns.

        Raises:
          AttributeError: this JAX has no such rules.
        """
        if not hasattr(jax.custom_vjp, "defremat"):
            raise AttributeError(
                f"{name_of(self.__wrapped__)}.defremat: this JAX has no rules for recomputation; 0.12 has. Say what to "
                "keep with `transform.checkpoint(f, policy=...)`."
            )
        self._set_rules("defremat", fwd, rem, bwd, **options)

    def _with_fixed(self, args: tuple[Any, ...], nondiff: tuple[int, ...]) -> tuple[Any, ...]:
        if has_tracer([args[i] for i in nondiff]):
            raise jax.errors.UnexpectedTracerError(
                f"{name_of(self.__wrapped__)}: an argument that `nondiff_argnums` names is traced. Leave it out of "
                "`nondiff_argnums`, and let the backward rule return None for it."
            )
        return args

    def _rules_of(self, call: RuleCall, obj: Any, *rules: Callable[..., Any]) -> list[Callable[..., Any]]:
        fwd, *rem, bwd = rules
        fwd, bwd = method_of(fwd, obj), _with_self(bwd, obj, call)
        if not rem:
            return call.vjp(fwd, bwd)
        again = rem[0] if obj is NO_SELF else lambda residuals, *args: rem[0](residuals, obj, *args)
        return call.remat(fwd, again, bwd)


class CustomJvp(CustomRule):
    """A function with `defjvp`."""

    _kind, _how_to_set = jax.custom_jvp, "decorate one with `@{}.defjvp`"

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Sets the rule, as :meth:`jax.custom_jvp.defjvp` does."""
        self._set_rules("defjvp", jvp, symbolic_zeros=symbolic_zeros)
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets a rule for each argument, as :meth:`jax.custom_jvp.defjvps` does."""
        if any(self._nondiff.values()):
            raise TypeError(f"{name_of(self.__wrapped__)}: `defjvps` cannot be used together with `nondiff_argnums`")

        def rule(primals: Any, tangents: Any) -> Any:
            out = self(*primals)
            dots = [jvp(dot, out, *primals) for dot, jvp in zip(tangents, jvps, strict=False) if jvp is not None]
            total = lambda zero, *dots: zero if zero.dtype == jax.dtypes.float0 else sum(dots, zero)
            return out, jax.tree.map(total, jax.tree.map(zero_tangent, out), *dots)

        self.defjvp(rule)

    def _with_fixed(self, args: tuple[Any, ...], nondiff: tuple[int, ...]) -> tuple[Any, ...]:
        is_array = lambda leaf: isinstance(leaf, jax.Array | np.ndarray)
        stop = lambda arg: jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if is_array(leaf) else leaf, arg)
        return tuple(stop(arg) if i in nondiff else arg for i, arg in enumerate(args))

    def _rules_of(self, call: RuleCall, obj: Any, *rules: Callable[..., Any]) -> list[Callable[..., Any]]:
        return call.jvp(_with_self(rules[0], obj, call))


def _with_self(rule: Callable[..., Any], obj: Any, call: RuleCall) -> Callable[..., Any]:
    """A rule of a method as JAX calls it; one that takes an argument more takes the instance first."""
    if obj is NO_SELF:
        return rule
    try:
        inspect.signature(rule).bind(*[None] * call.n_rule_args)
    except (TypeError, ValueError):
        return method_of(rule, obj)
    return rule


@overload
def custom_vjp(fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> CustomVjp: ...
@overload
def custom_vjp(
    *, nondiff_argnums: Any = (), nondiff_argnames: Any = ()
) -> Callable[[Callable[..., Any]], CustomVjp]: ...
def custom_vjp(fun: Any = None, nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> Any:
    """Defines a reverse-mode rule for a function that uses states: :class:`jax.custom_vjp`.

    Gradients flow through the arguments only. A state that the function reads has no cotangent, so it is an error if it
    is differentiated: pass its value as an argument. What the function writes to states has no derivative.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      nondiff_argnums (Sequence[int]): positions of arguments that are not differentiated; the rules get them
        first. Default: ().
      nondiff_argnames (Sequence[str]): the same, by name. Default: ().

    Returns:
      The function, with `defvjp`. The forward rule runs in place of the function and must write the same states. The
      forward rule of a method gets the instance first, and so does a backward rule that has a parameter for it.
      Rules may read any state, but a backward rule none that the call has written. Where JAX stages the function
      (in a loop, a branch, `jit`, `checkpoint`), they are traced with it. `defremat` sets rules for recomputation, as
      JAX 0.12 has them with its options `jax_custom_vjp3` and `jax_remat3`.

    Raises:
      StateStructureError: a rule writes other states than its function, which JAX has staged.
      StateTraceError: a backward rule reads a state that the call has written, or a state that the function reads is
        differentiated, by `states=` or because an outer function has computed it from what is differentiated.

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
    options = {"nondiff_argnums": nondiff_argnums, "nondiff_argnames": nondiff_argnames}
    return functools.partial(CustomVjp, **options) if fun is None else CustomVjp(fun, **options)


@overload
def custom_jvp(fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> CustomJvp: ...
@overload
def custom_jvp(
    *, nondiff_argnums: Any = (), nondiff_argnames: Any = ()
) -> Callable[[Callable[..., Any]], CustomJvp]: ...
def custom_jvp(fun: Any = None, nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> Any:
    """Defines a forward-mode rule for a function that uses states: :class:`jax.custom_jvp`.

    Tangents flow through the arguments only. It is an error if a state that the function reads has one: pass its value
    as an argument. What the function writes to states has no tangent.

    Args:
      fun, nondiff_argnums, nondiff_argnames: as for :func:`custom_vjp`.

    Returns:
      The function, with `defjvp` and `defjvps`. The rule runs in place of the function and must write the same
      states. A rule of a method that has a parameter for the instance gets it first. It may read any state. Where JAX
      stages the function (in a loop, a branch, `jit`, `checkpoint`), it is traced with it.

    Raises:
      StateStructureError: a rule writes other states than its function, which JAX has staged.
      StateTraceError: a state that the function reads has a tangent.

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
    options = {"nondiff_argnums": nondiff_argnums, "nondiff_argnames": nondiff_argnames}
    return functools.partial(CustomJvp, **options) if fun is None else CustomJvp(fun, **options)
