"""Arguments: which are static, which are passed by reference, and how decorators meet methods.

Static values and objects are no arrays, so they cannot be arguments of a JAX function. They are replaced in place by
pytree nodes without leaves: a `Static`, which holds the value, or a `Reference`, which stands for any object; the
objects come beside the tree, in order. So no index ever shifts, and no tree definition, which JAX's caches hold for
ever, holds an object.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from .._base.functions import name_of, named_like
from .._base.library import HOLDERS, is_ours, is_users_class, is_users_function
from .._objects.plain import is_plain
from .._states import pytrees
from .._states.adapters import by_reference
from .._states.state import State

NO_SELF: Any = object()
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
_TYPED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
_HOLDERS = (
    *HOLDERS, functools.partial, types.MethodType, types.MappingProxyType, set, frozenset, collections.deque
)  # fmt: skip


@jax.tree_util.register_static
class Static:
    """A static argument in the place of its value. Equal when type and value are."""

    __slots__ = ("key", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.key = (strict(value), value)  # 1, 1.0 and True are equal, but not the same static argument

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def strict(value: Any) -> Any:
    """What tells equal values of different types apart, in tuples, too."""
    if type(value) is tuple:
        return tuple(map(strict, value))
    if type(value) is float:
        return float, repr(value)
    return type(value)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Reference:
    """In the place of an object that is passed by reference. All are equal: the objects come beside the tree."""

    def __repr__(self) -> str:
        return "<by reference>"


REFERENCE = Reference()


def is_reference(node: Any) -> bool:
    """Whether a node stands for an object."""
    return isinstance(node, Reference)


def is_hidden(node: Any) -> bool:
    """Whether a node stands for a static value or an object."""
    return isinstance(node, Static | Reference)


@dataclasses.dataclass(eq=False, slots=True)
class ByReference:
    """A static argument that is passed by reference, even if it is a pytree."""

    obj: Any


def hide(tree: Any) -> tuple[Any, list[Any]]:
    """A pytree with each object in it replaced by `REFERENCE`, and the objects in order."""
    leaves, treedef = pytrees.flatten(tree)
    objects: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, _ARRAYS):
            continue
        if isinstance(leaf, ByReference):
            objects.append(leaf.obj)
        elif is_by_reference(leaf):
            objects.append(leaf)
        else:
            continue
        leaves[i] = REFERENCE
    return (treedef.unflatten(leaves), objects) if objects else (tree, objects)


def reveal(tree: Any, objects: Sequence[Any] = ()) -> Any:
    """The reverse of `hide`, also for static arguments."""
    each = iter(objects)

    def shown(leaf: Any) -> Any:
        if isinstance(leaf, Static):
            return leaf.value
        if isinstance(leaf, ByReference):
            return leaf.obj
        return next(each) if isinstance(leaf, Reference) else leaf

    return jax.tree.map(shown, tree, is_leaf=is_hidden)


def without_objects(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A pytree with None in the place of each object, which has no derivative, and what puts `REFERENCE` back."""
    treedef = jax.tree.structure(tree)
    shown = jax.tree.map(lambda leaf: None if is_reference(leaf) else leaf, tree, is_leaf=is_reference)
    return shown, lambda tree: treedef.unflatten(jax.tree.leaves(tree))


def revealing(fun: Callable[..., Any], objects: Sequence[Any]) -> Callable[..., Any]:
    """The function for arguments in which these objects are hidden."""
    if not objects:
        return fun

    @named_like(fun)
    def revealed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = reveal((args, kwargs), objects)
        return fun(*args, **kwargs)

    return revealed


def hide_self(obj: Any) -> tuple[Any, list[Any]]:
    """The instance of a method as an argument: as a pytree if it is one, else by reference."""
    leaves, _ = pytrees.flatten(obj)
    return (REFERENCE, [obj]) if len(leaves) == 1 and leaves[0] is obj else hide(obj)


def is_by_reference(leaf: Any) -> bool:
    """Whether an argument goes by reference: what is no array, no scalar, no text and of no library class."""
    if isinstance(leaf, State):
        return True
    if isinstance(leaf, _ARRAYS):
        return False
    if (is_reference := by_reference(leaf)) is not None:
        return is_reference
    if hasattr(leaf, "dtype") or isinstance(leaf, str | bytes):
        return False
    if isinstance(leaf, types.FunctionType):
        return is_users_function(leaf)
    if isinstance(leaf, type):
        return is_users_class(leaf)
    kind = type(leaf)
    if isinstance(leaf, _HOLDERS):
        return True
    if is_ours(kind):
        return hasattr(leaf, "__wrapped__")
    return is_users_class(kind) and not hasattr(kind, "__jax_array__")


def abstract(arguments: Any) -> Any:
    """The arguments of a trace that is only looked at: as in JAX, what has a shape and a dtype stands for an array."""
    is_like = lambda leaf: hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, _TYPED)
    make = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
    return jax.tree.map(lambda leaf: make(leaf) if is_like(leaf) else leaf, arguments)


class StaticArguments:
    """Which arguments of a function are static, by position and by name.

    Args:
      fun: the function; its signature tells names from positions and back.
      argnums: positions, not counting `self`; negative ones count from the end.
      argnames: names.
      counts_given: whether the end is that of the arguments that a call gives, and not of the signature.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        argnums: int | Sequence[int] | None,
        argnames: str | Iterable[str] | None,
        counts_given: bool = False,
    ) -> None:
        self._counts_given = counts_given
        self._argnums = integers(argnums)
        self._argnames = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        self._fun = fun
        self._parameters, rest = positional_parameters(fun) if self else ((), "args")
        self._takes_more = rest is not None

    def __bool__(self) -> bool:
        return bool(self._argnums or self._argnames)

    def hide(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], has_self: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Puts `Static` or `ByReference` in the place of each static argument that was given.

        Args:
          args, kwargs: the arguments, without `self`.
          has_self: whether the function's first parameter is `self`.

        Raises:
          TypeError: a static argument is not hashable.
          ValueError: a position that the function does not have.
        """
        parameters = self._parameters[has_self:]
        positions, names = self._resolve(parameters, len(args))
        label = lambda i: repr(parameters[i]) if i < len(parameters) else f"at position {i}"
        args = tuple(self._static(arg, label(i)) if i in positions else arg for i, arg in enumerate(args))
        kwargs = {key: self._static(arg, repr(key)) if key in names else arg for key, arg in kwargs.items()}
        return args, kwargs

    def positions(self, n_args: int, has_self: bool) -> set[int]:
        """The positions of the static ones among so many arguments, which do not count `self`."""
        return self._resolve(self._parameters[has_self:], n_args)[0]

    def _resolve(self, parameters: tuple[str, ...], n_args: int) -> tuple[set[int], set[str]]:
        positions, names = set(), set(self._argnames)
        for index in self._argnums:
            is_of_call = self._takes_more or (index < 0 and self._counts_given)
            total = n_args if is_of_call else len(parameters)
            if 0 <= index < len(parameters):
                positions.add(index)
            elif -total <= index < total:
                positions.add(index % total)
            elif not self._takes_more:
                what = "the call gives" if is_of_call else "it takes"
                raise ValueError(
                    f"static_argnums={index} of {name_of(self._fun)} is out of range: "
                    f"{what} {total} positional argument(s), not counting `self`"
                )
        names |= {parameters[i] for i in positions if i < len(parameters)}
        return positions | {i for i, name in enumerate(parameters) if name in names}, names

    def _static(self, value: Any, label: str) -> Any:
        if isinstance(value, Static | ByReference):
            return value
        try:
            hash(value)
        except TypeError as error:
            raise UnhashableError(
                f"argument {label} of {name_of(self._fun)} is static, but its value of type "
                f"{type(value).__name__} is not hashable. Static arguments are part of the cache key: "
                "pass a tuple in place of a list, a frozen dataclass in place of a dict; "
                "or leave the argument out of static_argnums/static_argnames so that it is traced."
            ) from error
        # An object goes by reference: what of it counts is what the function looks up, and no cache keeps it alive.
        is_value = is_plain(value) or not (isinstance(value, tuple | frozenset) or is_by_reference(value))
        return Static(value) if is_value else ByReference(value)


class UnhashableError(TypeError, ValueError):
    """A static argument is not hashable: a `ValueError` as in `jax.jit`, and a `TypeError` as its cause is."""


def integers(argnums: int | Sequence[int] | None) -> tuple[int, ...]:
    if argnums is None:
        return ()
    if isinstance(argnums, int) and not isinstance(argnums, bool):
        return (argnums,)
    argnums = tuple(argnums) if isinstance(argnums, Iterable) else (argnums,)
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in argnums):
        raise TypeError(f"static_argnums must be an int or a sequence of ints, not {argnums!r}")
    return tuple(int(i) for i in argnums)


def positional_parameters(fun: Callable[..., Any]) -> tuple[tuple[str, ...], str | None]:
    """Names of the positional parameters, and the `args` of `*args` if a call may give more."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (ValueError, TypeError):
        return (), "args"
    names = tuple([p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    return names, rest[0] if rest else None


def named_arguments(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[str, Any]]:
    """The leaves of the arguments, each with a name as the user would write it: `params['w']`.

    >>> named_arguments(lambda p, *xs, **more: None, ({"w": 1.0}, 2.0), {"z": 3.0})
    [("p['w']", 1.0), ('xs[0]', 2.0), ("more['z']", 3.0)]
    """
    named = []
    for name, part in _parts(fun, args, kwargs):
        leaves = jax.tree_util.tree_leaves_with_path(part, is_leaf=is_leaf)
        named += [(name + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
    return named


def _parts(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments in the order in which JAX flattens them, each with the name of its parameter."""
    try:
        parameters = inspect.signature(fun).parameters
        given = inspect.signature(fun).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return [*[(f"args[{i}]", arg) for i, arg in enumerate(args)], *sorted(kwargs.items())]
    parts: list[tuple[str, Any]] = []
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts += [(f"{name}[{i}]", arg) for i, arg in enumerate(given.get(name, ()))]
        elif name in given and name not in kwargs and parameter.kind is not parameter.VAR_KEYWORD:
            parts.append((name, given[name]))
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    # JAX flattens a dict in the order of its keys.
    parts += [(k if k in parameters or rest is None else f"{rest}[{k!r}]", kwargs[k]) for k in sorted(kwargs)]
    return parts
