"""`flax.nnx.Variable`: the value is in the slot `_raw_value`, through which all of nnx goes.

What is private of flax here, and why:

* `Variable._raw_value`: where the value is; a property stands on the class under that name, and the slot under another.
* `Variable.__getattr__` asks the value for what the variable lacks, and must not where that is the slot.
* `TraceState.__init__` and `is_valid`: nnx lets a variable or a module be used only in the JAX trace that made it. The
  function under a transform of ours is as good as the place of the call: what is valid there is valid in the frame's
  own trace, and what is made in that trace is valid at the place of the call.
* `HijaxVariable`: a JAX value of a kind that no frame can carry. It is refused.
* `Pytree._pytree__state` says in which trace a module was made. nnx replaces it whenever it takes a module apart and
  puts it together, so it is no part of the structure.
* `Pytree._setattr` sets an attribute of a module. Plain values count as they do of any object; a traced value is
  refused in a module from outside the function, where it would stay behind.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

import flax
import jax
from flax import nnx
from flax.nnx import tracers, variablelib

from .._core.cells import Cells
from .._core.errors import StateTraceError, StateTransformError
from .._core.foreign import carries, holds, is_node, register, to_state
from .._core.frame import UNSET, Frame, active, innermost, stack
from .._core.handles import Adopted, Foreign, Native
from .._core.jaxcompat import TOP_LEVEL, Tracer
from .._core.library import adapt

_KNOWN = "0.12"
_SLOT = "_statetransform_slot"  # what the class had under `_raw_value`


class Variables(Cells):
    """How the handle of a `Variable` comes by its value. With `ref=True` that is a `jax.Ref`, the cell itself."""

    unseen = frozenset({"_trace_state"})

    def can_lift(self, value: Any) -> bool:
        return not variablelib.is_array_ref(value) and super().can_lift(value)

    def state_of(self, cell: Any) -> Foreign | None:
        held = self.raw(cell)
        if type(held) is not jax.Ref:
            return super().state_of(cell)
        state = to_state(held)
        state._kind = type(cell)
        return state

    def __init__(self, name: str, below: Any) -> None:
        super().__init__(name, below)
        self._slot = below.__get__

    def slot(self) -> str:
        return _SLOT

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if stack.frame is not None and type(held := self._slot(cell)) is jax.Ref:
            return held
        return super().__get__(cell, owner)

    def as_property(self) -> property:
        """The descriptor as a property: all of nnx goes through here, and Python calls a property's function faster."""

        def get(cell: Any) -> Any:
            if active:  # first, since a trace notes what is looked up on a cell
                return self.__get__(cell)
            held = cell._statetransform_slot  # `_SLOT`, as Python looks it up fastest
            kind = type(held)
            if kind is not Adopted:
                return held if kind is not Native else self.plain(cell)
            value = held._value
            return value if value is not UNSET else self.plain(cell)

        get.cells = self  # type: ignore[attr-defined]
        return property(get, self.__set__, self.__delete__)

    def __set__(self, cell: Any, value: Any) -> None:
        frame = innermost()
        if frame is not None and variablelib.is_array_ref(value) and frame.is_here():
            ref = _option("ref", "has_ref")
            raise StateTraceError(
                f"{type(cell).__name__}({ref}=True) is made within a transform, where JAX's Refs cannot outlive the "
                f"trace. Nothing was changed.\nMake it before the call, or with `{ref}=False`."
            )
        super().__set__(cell, value)

    def made_in(self, cell: Any) -> Any:
        return object.__getattribute__(cell, "_trace_state")  # of which a trace notes nothing

    def takes_tracers(self, state: Foreign) -> bool:
        return state._made.is_valid()  # a variable of the raw trace around

    def refuse_raw(self, state: Foreign, value: Any) -> None:
        """Left to nnx."""

    def refuse_by_handle(self, state: Foreign, value: Any) -> None:
        if not state._made.is_valid():
            raise StateTraceError.raw_write(state)


class _Place:
    """The state of JAX's traces where the outermost frame was called, of what was made in a frame."""

    __slots__ = ("frame", "outermost", "trace")

    def __init__(self, frame: Frame) -> None:
        self.trace = _place_of_the_call(frame)
        self.frame, self.outermost = weakref.ref(frame), weakref.ref(_outermost(frame))

    def __eq__(self, other: object) -> bool:
        return self.trace == (other.trace if isinstance(other, _Place) else other)

    def __hash__(self) -> int:
        return hash(self.trace)


def _outermost(frame: Frame) -> Frame:
    while frame.parent is not None:
        frame = frame.parent
    return frame


def _place_of_the_call(frame: Frame) -> Any:
    """The state of JAX's traces from which the function of a frame was called, by functions of frames around or not."""
    while frame.parent is not None and _is_called_in(frame, frame.parent):
        frame = frame.parent
    return TOP_LEVEL if frame.place is None else frame.place


def _is_pure(frame: Frame) -> bool:
    """Whether what is written in a frame gets to somebody who takes it as values, and so into no variable."""
    while frame.parent is not None and not frame.is_pure and _is_called_in(frame, frame.parent):
        frame = frame.parent
    return frame.is_pure


def _is_called_in(frame: Frame, parent: Frame) -> bool:
    return frame.place is None or frame.place == parent.here


def install() -> None:
    """Puts the descriptor on the class, and wraps two methods.

    Raises:
      StateTransformError: this flax keeps values elsewhere.
    """
    home, kept = nnx.Variable, tracers.TraceState
    slots = vars(home).get("__slots__", ())
    named = hasattr(nnx.Pytree, "_setattr") and hasattr(variablelib, "is_array_ref")
    if "_raw_value" not in slots or "_jax_trace" not in vars(kept).get("__slots__", ()) or not named:
        raise StateTransformError(
            f"flax {flax.__version__} keeps the values of its variables elsewhere than {_KNOWN}, the version that "
            "statetransform knows. Install that one, or one of statetransform that knows this."
        )
    init, is_valid = kept.__init__, kept.is_valid

    @functools.wraps(init)
    def __init__(self: Any) -> None:
        init(self)
        frame = innermost()
        if frame is not None and frame.is_here():
            self._jax_trace = _Place(frame)

    @functools.wraps(is_valid)
    def valid(self: Any) -> bool:
        if is_valid(self):
            return True
        frame = innermost()
        if frame is None or not frame.is_here():
            return False
        return _is_pure(frame) or self._jax_trace == _place_of_the_call(frame)

    kept.__init__, kept.is_valid = __init__, valid
    cells = Variables("_raw_value", vars(home)["_raw_value"])
    type.__setattr__(home, _SLOT, vars(home)["_raw_value"])
    home.__getattr__ = _without_slot(home.__getattr__)
    type.__setattr__(home, "_raw_value", cells.as_property())
    for name in ("_get_hijax_state", "_set_hijax_state"):
        if hasattr(variablelib, name):
            setattr(variablelib, name, _refusing(getattr(variablelib, name)))
    if hasattr(variablelib, "HijaxVariable"):
        register(variablelib.HijaxVariable, Refused(""), is_node=True)
    nnx.Pytree._setattr = _keeping_tracers_out(nnx.Pytree._setattr, is_valid)
    holds(nnx.Pytree, unseen=["_pytree__state"])
    carries(nnx.State)
    adapt(flax)
    register(home, cells, is_node=True)


def _without_slot(getattr_: Any) -> Any:
    """`__getattr__` that does not ask the value of a variable for the slot in which the value is missing."""

    @functools.wraps(getattr_)
    def __getattr__(self: Any, name: str) -> Any:
        if name == _SLOT:
            raise AttributeError("_raw_value")
        return getattr_(self, name)

    return __getattr__


def _option(name: str, older: str) -> str:
    """What this flax calls an option of variables."""
    return name if name in inspect.signature(nnx.Variable.__init__).parameters else older


class Refused(Cells):
    """In the place of a variable that cannot be lifted."""

    def state_of(self, cell: Any) -> Foreign | None:
        raise _no_hijax(cell)


def _no_hijax(variable: Any) -> StateTraceError:
    kind = getattr(variable, "var_type", type(variable)).__name__
    hijax = _option("hijax", "is_hijax")
    return StateTraceError(
        f"{kind}({hijax}=True) cannot be carried by a transform of statetransform. Nothing was changed.\n"
        f"Create the variable with `{hijax}=False`."
    )


def _refusing(function: Any) -> Any:
    @functools.wraps(function)
    def refusing(variable: Any, *args: Any, **kwargs: Any) -> Any:
        if innermost() is not None:
            raise _no_hijax(variable)
        return function(variable, *args, **kwargs)

    return refusing


def _keeping_tracers_out(setattr_: Any, is_valid: Any) -> Any:
    """Setting an attribute of a module, which may not get a traced value if it is not the function's own."""

    @functools.wraps(setattr_)
    def _setattr(self: Any, name: str, value: Any) -> None:
        frame = innermost()
        if frame is not None and _is_traced(value) and not _is_own(frame, self._pytree__state.trace_state, is_valid):
            raise StateTraceError(
                f"attribute {name!r} of a {type(self).__name__} is given a traced value within a transform, and would "
                f"keep it. Nothing was changed.\nMake it a variable before the call, `self.{name} = "
                f"nnx.Variable(...)`, and write `self.{name}[...] = ...` inside."
            )
        setattr_(self, name, value)

    return _setattr


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value, is_leaf=is_node))


def _is_own(frame: Frame, state: Any, is_valid: Any) -> bool:
    """Whether a module was made by the function that runs in a frame, or by what it called."""
    made = state._jax_trace
    if type(made) is not _Place or is_valid(state):
        return is_valid(state)
    home = made.frame()
    if home is None:
        return made.outermost() is _outermost(frame)
    return home is frame
