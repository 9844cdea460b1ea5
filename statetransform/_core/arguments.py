"""Arguments: which are static, which are passed by reference, and how decorators meet methods.

Static values and objects that hold states are no arrays, so they cannot be arguments of a JAX function.
They are replaced in place by pytree nodes without leaves, whose tree definition says what they are. So no
index ever shifts, and the tree definition of the arguments is all of a cache key but the abstract values.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from .find import has_states
from .state import State
from .values import Token

NO_SELF: Any = object()
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


@jax.tree_util.register_static
class Static:
    """A static argument in the place of its value. Equal when type and value are."""

    __slots__ = ("key", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.key = (
            type(value),
            value,
        )  # 1, 1.0 and True are equal, but not the same static argument

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


@jax.tree_util.register_static
class Ref:
    """An object passed by reference in the place of itself: a `State`, or something that holds states."""

    __slots__ = ("token",)

    def __init__(self, obj: Any) -> None:
        self.token = token_of(obj)

    @property
    def value(self) -> Any:
        """The object."""
        return self.token.get()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.token is other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __repr__(self) -> str:
        return repr(self.token)


class _StrongToken:
    """For the few objects that cannot be referenced weakly."""

    __slots__ = ("_obj",)

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def get(self) -> Any:
        return self._obj


#: As `id`, which is a call of its own kind: with JAX imported an audit hook makes it cost 0.2 us.
identity = object.__hash__


class WeakIdDict:
    """A dict keyed by the identity of objects, which it does not keep alive."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}

    def get(self, obj: Any) -> Any:
        """The value for the object, or None."""
        entry = self._entries.get(identity(obj))
        return None if entry is None else entry[1]

    def set(self, obj: Any, value: Any) -> None:
        """Remembers the value until the object dies."""
        key, entries = identity(obj), self._entries
        try:
            anchor: Any = weakref.ref(obj, lambda _: entries.pop(key, None))
        except TypeError:
            anchor = obj
        entries[key] = (anchor, value)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()


_tokens = WeakIdDict()


def token_of(obj: Any) -> Any:
    """The token of any object; the same one for as long as the object lives."""
    if isinstance(obj, State):
        return obj._token
    token = _tokens.get(obj)
    if token is None:
        try:
            token = Token(obj)
        except TypeError:
            token = _StrongToken(obj)
        _tokens.set(obj, token)
    return token


def hide_self(obj: Any) -> Any:
    """The instance of a method as an argument: as a pytree if it is one, else by reference."""
    return Ref(obj) if jax.tree_util.all_leaves([obj]) else hide(obj)


def hide(tree: Any) -> Any:
    """A pytree with each state, and each object that holds states, replaced by a `Ref`."""
    leaves, treedef = jax.tree.flatten(tree)
    if all(isinstance(leaf, _ARRAYS) for leaf in leaves):
        return tree
    return treedef.unflatten([Ref(leaf) if _is_by_reference(leaf) else leaf for leaf in leaves])


def reveal(tree: Any) -> Any:
    """The reverse of `hide`, also for static arguments."""
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, Static | Ref) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Static | Ref),
    )


def refs_in(treedef: Any) -> list[Any]:
    """The objects that a hidden pytree refers to, in order."""
    tree = jax.tree.unflatten(treedef, [None] * treedef.num_leaves)
    is_ref = lambda leaf: isinstance(leaf, Ref)
    return [leaf.value for leaf in jax.tree.leaves(tree, is_leaf=is_ref) if is_ref(leaf)]


def _is_by_reference(leaf: Any) -> bool:
    if isinstance(leaf, State):
        return True
    return not isinstance(leaf, _ARRAYS) and not hasattr(leaf, "dtype") and has_states(leaf)


class StaticArguments:
    """Which arguments of a function are static, by position and by name.

    Args:
      fun: the function; its signature tells names from positions and back.
      argnums: positions, not counting `self`; negative ones count from the end.
      argnames: names.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        argnums: int | Sequence[int] | None,
        argnames: str | Iterable[str] | None,
    ) -> None:
        self._argnums = integers(argnums)
        self._argnames = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        self._fun = fun
        self._parameters = positional_parameters(fun)

    def __bool__(self) -> bool:
        return bool(self._argnums or self._argnames)

    def hide(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], has_self: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Puts `Static` in the place of each static argument that was given.

        Args:
          args, kwargs: the arguments, without `self`.
          has_self: whether the function's first parameter is `self`.

        Raises:
          TypeError: a static argument is not hashable.
          ValueError: a position that the function does not have.
        """
        parameters = self._parameters[has_self:] if self._parameters is not None else None
        positions, names = self._resolve(parameters, len(args))
        label = lambda i: f"at position {i}" if parameters is None else repr(parameters[i])
        args = tuple(self._static(arg, label(i)) if i in positions else arg for i, arg in enumerate(args))
        kwargs = {key: self._static(arg, repr(key)) if key in names else arg for key, arg in kwargs.items()}
        return args, kwargs

    def _resolve(self, parameters: tuple[str, ...] | None, n_args: int) -> tuple[set[int], set[str]]:
        total = n_args if parameters is None else len(parameters)
        positions, names = set(), set(self._argnames)
        for index in self._argnums:
            if -total <= index < total:
                positions.add(index % total)
            elif parameters is not None:
                raise ValueError(
                    f"static_argnums={index} of {name_of(self._fun)} is out of range: "
                    f"it takes {total} positional argument(s), not counting `self`"
                )
        if parameters is not None:
            names |= {parameters[i] for i in positions}
            positions |= {i for i, name in enumerate(parameters) if name in names}
        return positions, names

    def _static(self, value: Any, label: str) -> Any:
        if isinstance(value, Static):
            return value
        try:
            hash(value)
        except TypeError as error:
            raise TypeError(
                f"argument {label} of {name_of(self._fun)} is static, but its value of type "
                f"{type(value).__name__} is not hashable. Static arguments are part of the cache key: "
                "pass a tuple in place of a list, a frozen dataclass in place of a dict; "
                "or leave the argument out of static_argnums/static_argnames so that it is traced."
            ) from error
        if isinstance(value, State) or (not _is_plain(value) and has_states(value)):
            return Ref(value)  # identity, held weakly: a cache must not keep a model alive
        return Static(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | str | bytes | type | None)


def integers(argnums: int | Sequence[int] | None) -> tuple[int, ...]:
    if argnums is None:
        return ()
    if isinstance(argnums, int) and not isinstance(argnums, bool):
        return (argnums,)
    argnums = tuple(argnums) if isinstance(argnums, Iterable) else (argnums,)
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in argnums):
        raise TypeError(f"static_argnums must be an int or a sequence of ints, not {argnums!r}")
    return tuple(int(i) for i in argnums)


def positional_parameters(fun: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of the positional parameters; None when the signature does not tell (`*args`)."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD)


def name_of(fun: Any) -> str:
    """How errors call a function."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__qualname__", None) or type(fun).__qualname__
