"""Transformed functions: decorators that work bare, with arguments, as a call, and on methods."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from .._base.errors import check_function
from .._objects.hooks import not_recorded
from .._objects.lookup import class_lookup
from .arguments import NO_SELF, hide, hide_self
from .tracebacks import hide_frames

# From Python 3.14 on `__annotate__` instead of `__annotations__`: to read the latter evaluates names not yet defined.
_PARTS = functools.WRAPPER_ASSIGNMENTS


class Transformed:
    """A function under a transform.

    Subclasses define `_call(obj, args, kwargs)`, where `obj` is the instance of a method or `NO_SELF`.
    Argument indices never count it.
    """

    __wrapped__: Callable[..., Any]
    __name__: str
    __qualname__: str
    where: str  # the transform's name, for messages
    _options: dict[str, Any]
    _static: Any = ()
    _store: Any = None  # its traces, if it is not run at every call
    _fun: Callable[..., Any]  # without the instance, if it is a bound method
    _instance: Any = NO_SELF
    _bound: Callable[..., Any]  # the class of its methods
    _call: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        if sys.version_info >= (3, 14) and "__annotations__" in vars(cls):
            del cls.__annotations__  # else those of the class hide the function's

    def __new__(cls, fun: Callable[..., Any], *, is_method: bool = False, **options: Any) -> Self:
        """Notes the options, for copies."""
        new = super().__new__(cls)
        new._options = options
        return new

    def __init__(self, fun: Callable[..., Any], *, is_method: bool = False, **options: Any) -> None:
        functools.update_wrapper(self, fun, assigned=_PARTS, updated=())
        if getattr(fun, "__isabstractmethod__", False):
            self.__isabstractmethod__ = True
        if isinstance(fun, types.FunctionType):  # what the user has set on it, as JAX does
            is_free = lambda name: not (name.startswith("_") or hasattr(type(self), name))
            self.__dict__.update({name: value for name, value in vars(fun).items() if is_free(name)})
        self.__wrapped__ = fun
        self._is_method = is_method
        self._owners: tuple[weakref.ref[type], ...] = ()
        self._may_take_class = _is_in_class(fun)

    def _call_bound(self, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(obj, args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if args and (self._owners or self._is_method or self._may_take_class) and self._binds(args[0]):
                return self._call(args[0], args[1:], kwargs)
            return self._call(NO_SELF, args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _binds(self, first: Any) -> bool:
        """Whether the first argument is the instance, as in `Heat.step(heat, dt)`."""
        if self._is_method or (self._may_take_class and isinstance(first, type) and self._is_class_method_of(first)):
            return True
        return any((owner := ref()) is not None and isinstance(first, owner) for ref in self._owners)

    def _is_class_method_of(self, cls: type) -> bool:
        """Whether a class has this function in a `classmethod`, which calls it with the class and tells nobody."""
        found = class_lookup(cls, self.__name__)
        fun = found.__func__ if isinstance(found, classmethod) else None
        while fun is not None and fun is not self:
            fun = getattr(fun, "__wrapped__", None)
        return fun is self

    def __set_name__(self, owner: type, name: str) -> None:
        self.belongs_to(owner)

    def belongs_to(self, owner: type) -> None:
        """Says that instances of a class are `self`; to the transforms below, too, which are called with them."""
        fun: Any = self
        while fun is not None:
            if isinstance(fun, Transformed):
                fun._owners = (*fun._owners, weakref.ref(owner))
            fun = getattr(fun, "__wrapped__", None)

    def hidden(
        self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """Arguments for a trace: the instance in front, static values and objects hidden; and the roots.

        These are the function and the objects.
        """
        obj = self._instance if obj is NO_SELF else obj
        if self._static:
            args, kwargs = self._static.hide(args, kwargs, has_self=obj is not NO_SELF)
        (args, kwargs), objects = hide((args, kwargs))
        if obj is NO_SELF:
            return args, kwargs, (self._fun, *objects)
        instance, inner = hide_self(obj)
        return (instance, *args), kwargs, (self._fun, *inner, *objects)

    @property
    def history(self) -> Any:
        """The traces made so far, for `inspect.explain_retrace`; None where the function runs at every call."""
        return None if self._store is None else self._store.family.log_of(self._fun)

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else self._bound(self._call_bound, obj)

    def with_statics(self, args: Any, kwargs: Any, is_bound: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with `Static` in the place of each static one.

        Args:
          args, kwargs: the arguments.
          is_bound: whether they are those of a bound method, so that `self` is not among them.
        """
        if not self._static:
            return args, kwargs
        if not is_bound and args and self._binds(args[0]):
            rest, kwargs = self._static.hide(args[1:], kwargs, has_self=True)
            return (args[0], *rest), kwargs
        return self._static.hide(args, kwargs, has_self=is_bound or self._instance is not NO_SELF)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} of {self.__wrapped__!r}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        fun = copy.deepcopy(self.__wrapped__, memo)
        # Where the function is the same, so are the states that it reads.
        options = self._options if fun is self.__wrapped__ else _copied(self._options, memo)
        new = type(self)(fun, is_method=self._is_method, **options)
        new._owners = self._owners
        return new

    def __reduce__(self) -> Any:
        found: Any = sys.modules.get(self.__module__) if isinstance(getattr(self, "__module__", None), str) else None
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name  # like a function; one that was made by a call has no name of its own
        owners = [owner for ref in self._owners if (owner := ref()) is not None]
        return _remade, (type(self), self.__wrapped__, self._is_method, self._options, owners)


for _name in ("__code__", "__globals__", "__defaults__", "__kwdefaults__", "__closure__"):  # decorators look for them
    setattr(Transformed, _name, property(operator.attrgetter(f"__wrapped__.{_name}")))
Transformed.__init_subclass__()


def _copied(options: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Options for a copied function, about the copied states; those that cannot be copied, such as devices, stay."""
    copied = {}
    for name, option in options.items():
        try:
            copied[name] = copy.deepcopy(option, memo)
        except Exception:
            copied[name] = option
    return copied


def _remade(
    kind: type[Transformed], fun: Any, is_method: bool, options: dict[str, Any], owners: Sequence[type]
) -> Transformed:
    made = kind(fun, is_method=is_method, **options)
    made._owners = tuple(map(weakref.ref, owners))
    return made


class Bound(functools.partial):  # type: ignore[type-arg]
    """A transformed method together with its instance, like `types.MethodType`.

    A partial object is made and called by the interpreter itself, which a method call on the hot path
    notices.
    """

    __slots__ = ()

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Transformed:
        return self.func.__self__  # type: ignore[attr-defined]

    @property
    def __wrapped__(self) -> Any:
        return types.MethodType(self.__func__.__wrapped__, self.__self__)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def __getattribute__(self, name: str) -> Any:
        if name in _PARTS:
            return getattr(super().__getattribute__("__func__"), name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {self.__self__!r}>"

    def __reduce__(self) -> Any:
        return (getattr, (self.__self__, self.__func__.__name__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(self.func, copy.deepcopy(self.__self__, memo))


Transformed._bound = Bound


@not_recorded()
def decorate(kind: type[Transformed], fun: Any, **options: Any) -> Any:
    """The three spellings of a decorator, on plain, static and class methods.

    Args:
      kind: the class of the transformed function.
      fun: the function, or None when the decorator was called with options only.
      **options: what the class takes besides.
    """
    if fun is None:
        return functools.partial(decorate, kind, **options)
    is_inside = isinstance(fun, staticmethod | classmethod)
    check_function(options.get("where") or kind.where, fun.__func__ if is_inside else fun)
    if isinstance(fun, staticmethod):
        return staticmethod(kind(fun.__func__, is_method=False, **options))
    if isinstance(fun, classmethod):
        return classmethod(kind(fun.__func__, is_method=True, **options))
    return kind(fun, is_method=False, **options)


def unbound(fun: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """The function behind a bound method, which is made anew at each look-up, and the instance."""
    if isinstance(fun, types.MethodType):
        return fun.__func__, fun.__self__
    if isinstance(fun, Bound):
        return fun.__func__, fun.__self__
    return fun, NO_SELF


def _is_in_class(fun: Callable[..., Any]) -> bool:
    """Whether a function is defined in the body of a class."""
    around = getattr(fun, "__qualname__", "").rpartition(".")[0]
    return bool(around) and not around.endswith("<locals>")
