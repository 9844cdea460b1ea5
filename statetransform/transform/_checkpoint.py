"""`checkpoint`, also called `remat`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax

from .. import _memory
from .._jax import key_of_policy
from .._memory import ONE, Context, Lanes, MemoryBudget, check_policy
from .._objects.hooks import not_recorded
from .._traces.arguments import Static
from .._traces.lift import Staged
from .._traces.shardings import depend_on_shardings, sharding_of
from .._traces.tracebacks import boundary
from .._traces.wrapper import decorate
from ._options import as_in, entries

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


@overload
def checkpoint(fun: C, *, policy: Any = None, methods: Any = None, **options: Any) -> C: ...
@overload
def checkpoint(fun: Callable[P, R], *, policy: Any = None, states: Any = None, **options: Any) -> Callable[P, R]: ...
@overload
def checkpoint(
    fun: None = None, *, policy: Any = None, states: Any = None, methods: Any = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@boundary
@as_in(jax.checkpoint)
def checkpoint(
    fun: Any = None,
    *,
    prevent_cse: Any = True,
    policy: Any = None,
    static_argnums: Any = (),
    static_argnames: Any = (),
    concrete: bool = False,
    states: Any = None,
    methods: Any = None,
    **others: Any,
) -> Any:
    """Recomputes a function in the backward pass instead of storing its residuals: :func:`jax.checkpoint` with states.

    Every state that the function reads is an argument of the checkpointed computation, so each call sees its current
    value. Every state that it writes is a result, which is written once, however often the body is recomputed. A second
    eager call with the same signature does not run the body. Recomputation draws the same random numbers.

    Args:
      fun (Callable | None): a function, method, static or class method, callable object, or class. Without it, the
        call returns a decorator. Default: None.
      prevent_cse (bool | Sequence[bool]): whether to keep the compiler from merging the recomputation with the
        first evaluation. Set it to False only where a loop separates the two, as in the body of a `scan`. A sequence
        has an entry for each argument that is not static; of a call with keyword arguments it is, as in JAX, a pair:
        for arguments by position and for those by keyword. Default: True.
      policy (Callable | MemoryBudget | None): which intermediates may be kept, as in :func:`jax.checkpoint`; one of
        `statetransform.policies`, which has those of `jax.checkpoint_policies` and more. What it keeps does not depend
        on `jax_remat3`. Default: None.
      static_argnums (int | Sequence[int]): positions of arguments to specialize on, not counting `self`; negative ones
        count from the last argument that a call gives by position, as in JAX.
      static_argnames (str | Iterable[str]): the same by name. A value on which Python branches must be static. A value
        that depends on constants only can be computed under :func:`jax.ensure_compile_time_eval`.
      concrete (bool): no longer supported, as in JAX; True is an error that names the alternatives. Default:
        False.
      states (optional): the states, kinds or predicate to lift; others are constants of the call. Default: None, all.
      methods (str | Iterable[str], optional): for a class, the methods to checkpoint; gives a subclass of the same
        name. Default: `__call__`.

    Returns:
      The function with the same signature, or the subclass.

    Raises:
      TypeError: a static argument is not hashable, or the policy is not callable.
      StateTraceError: on a write to a state that `states` leaves out; add it to `states`.

    Warns:
      PolicyWarning: no value has a name that the policy lists; the message lists the names that exist.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, transform
      >>> count = State(0)
      >>> @transform.checkpoint(static_argnums=(1,))
      ... def power(x, n):
      ...     count.value = count.value + 1
      ...     return x**n
      >>> float(transform.grad(power)(3.0, 2)), int(count.value)
      (6.0, 1)
    """
    if concrete:
        raise NotImplementedError(
            "checkpoint: `concrete=True` is no longer supported, as in JAX: the body is always traced. List "
            "arguments on which Python branches in `static_argnums` or `static_argnames`, and compute what "
            "depends on constants only under `jax.ensure_compile_time_eval()`."
        )
    if not isinstance(policy, MemoryBudget):
        check_policy(policy)
    prevent_cse = tuple(prevent_cse) if isinstance(prevent_cse, Sequence) else prevent_cse
    if not isinstance(prevent_cse, bool | tuple):
        raise TypeError(f"checkpoint: `prevent_cse` must be a bool, or one for each argument, not {prevent_cse!r}")
    if "checkpoint" in others:
        raise TypeError(
            "checkpoint: `checkpoint=` is an option of loops, such as `transform.scan`. A function takes `policy=`, "
            'as in `policy=policies.dots_saveable` or `policy=policies.fit("2GiB")`.'
        )
    if others:
        jax.checkpoint(_refuse, **others)  # says what is wrong
        raise TypeError(f"checkpoint: {', '.join(others)} of this JAX is not known to this version of the package")
    common = {"static_argnums": static_argnums, "static_argnames": static_argnames, "states": states}
    options = {"prevent_cse": prevent_cse, "policy": policy, **common}
    if isinstance(fun, type):
        names = "__call__" if methods is None else methods
        return _with_methods(fun, names, functools.partial(checkpoint, **options))
    if fun is None:
        return functools.partial(checkpoint, methods=methods, **options)
    if methods is not None:
        raise TypeError(f"checkpoint: `methods` names methods of a class, but {fun!r} is not a class")
    _refuse(fun, static_argnames)
    around = Around(policy, prevent_cse)
    return decorate(Checkpointed, fun, around=around, **common)


remat = checkpoint


def _with_methods(cls: type, methods: str | Iterable[str], transform: Callable[[Any], Any]) -> type:
    """A subclass with the same name in which the named methods are transformed."""
    is_one = isinstance(methods, str) or not isinstance(methods, Iterable)
    names: tuple[Any, ...] = (methods,) if is_one else tuple(methods)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"checkpoint: `methods` must be the name of a method, or several, not {methods!r}")
        if not callable(getattr(cls, name, None)) or all(name not in vars(base) for base in cls.__mro__):
            raise AttributeError(
                f"checkpoint: {cls.__qualname__} has no method {name!r}. "
                f'Name the methods to transform: `transform.checkpoint({cls.__name__}, methods=["step"])`.'
            )
    names_of_class = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(cls, name) for name in names_of_class if hasattr(cls, name)}
    members |= {name: transform(inspect.getattr_static(cls, name)) for name in names}
    return type(cls)(cls.__name__, (cls,), members)


@not_recorded()
def _refuse(fun: Any, static_argnames: Any) -> None:
    """Refuses, when decorating, names of arguments that a function does not have."""
    fun = getattr(fun, "__func__", fun)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    if not names or not callable(fun):
        return
    try:
        parameters = inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return
    unknown = [name for name in names if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(
            f"checkpoint: `static_argnames` has {unknown[0]!r}, which is not an argument of "
            f"{getattr(fun, '__qualname__', fun)}; its arguments are {', '.join(parameters) or 'none'}"
        )


class Checkpointed(Staged):
    """A function under `checkpoint`."""

    where = "checkpoint"
    _around: Around
    _counts_given = True  # as in JAX
    _option = "around_program"

    def _around_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], has_self: bool) -> Any:
        _refuse_references((args, kwargs))
        if isinstance(self._around.policy, MemoryBudget):
            lanes = Lanes.around(jax.tree.leaves(args))
            return dataclasses.replace(self._around, lanes=lanes) if lanes.axes else self._around
        flags, of_kwargs = self._around.prevent_cse, True
        if isinstance(flags, bool):
            return self._around
        if not all(isinstance(value, Static) for value in kwargs.values()):
            if len(flags) != 2:
                raise ValueError(
                    f"checkpoint: `prevent_cse` has {len(flags)} entries, but the call has arguments by keyword. As in "
                    "JAX, give a pair then: what holds for arguments by position, and what for those by keyword."
                )
            flags, of_kwargs = flags
            if isinstance(of_kwargs, dict):  # which says nothing of static ones
                of_kwargs = dict.fromkeys(kwargs, True) | of_kwargs
        flags = entries("checkpoint", "prevent_cse", flags, self._static, len(args) - has_self, has_self)
        of_args = (*(True,) * has_self, *[flag is None or flag for flag in flags])
        return dataclasses.replace(self._around, prevent_cse=(of_args, of_kwargs) if kwargs else of_args)


@dataclasses.dataclass(frozen=True)
class Around:
    """:func:`jax.checkpoint` around a program that gives the output, what is written, and new states."""

    policy: Callable[..., Any] | MemoryBudget | None = dataclasses.field(compare=False)
    prevent_cse: Any = dataclasses.field(default=True, compare=False)
    lanes: Lanes = ONE
    _key: Any = dataclasses.field(init=False)  # compared in place of the policy and the flags

    def __post_init__(self) -> None:
        flags, treedef = jax.tree.flatten(self.prevent_cse)
        object.__setattr__(self, "_key", (key_of_policy(self.policy), treedef, *flags))

    def __call__(self, program: Any, arguments: Any, results: Any) -> Callable[..., list[Any]]:
        """A flat function of the inputs of a closed jaxpr, see `stage.trace`."""
        args, kwargs = arguments
        flags = self.prevent_cse
        if not isinstance(flags, bool):  # of states, which are not listed, JAX sees constants
            flags = jax.tree.leaves(jax.tree.broadcast(flags, (args, kwargs) if kwargs else args))
            flags = (*flags, *[False] * (len(program.in_avals) - len(flags)))
        # Of the results, what is written to states rarely has a cotangent.
        active = tuple(jax.tree.leaves(jax.tree.broadcast((True, False, False), results)))
        context = Context(self.lanes, sharding_of, depend_on_shardings, active)
        return _memory.checkpoint(program, self.policy, flags, context)


def _refuse_references(arguments: Any) -> None:
    """A body that writes a `jax.Ref` would write it again when it is recomputed, silently."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        if isinstance(leaf, jax.Ref):
            raise TypeError(
                f"checkpoint: the argument at {jax.tree_util.keystr(path)} is a `jax.Ref`. Recomputation would "
                "repeat the writes to it. Hold the value in a `State`, which is written once."
            )
