"""`flax.nnx.Variable`: the value is in the slot `_raw_value`, through which all of nnx goes.

What is private of flax here, and why:

* `Variable._raw_value`: where the value is; a property stands on the class under that name, and the slot under another.
* `Variable.__getattr__` asks the value for what the variable lacks, and must not where that is the slot.
* `TraceState.__init__` and `is_valid`: nnx lets a variable or a module be used only in the JAX trace that made it. The
  function under a transform of ours is as good as the place of the call: what is valid there is valid in the frame's
  own trace, and what is made in that trace is valid at the place of the call.
* `HijaxVariable._leaves` and `_treedef`, `_get_hijax_state`, `_set_hijax_state`, `_new_hijax_from_variable`: a variable
  with `hijax=True` is a JAX value of its own type, with the value in `_leaves`. JAX would make it a constant of our
  traces, so within a frame it is a Python object whose value the frame has.
* `Pytree._pytree__state` says in which trace a module was made. nnx replaces it whenever it takes a module apart and
  puts it together, so it is no part of the structure.
* `Pytree._setattr` sets an attribute of a module. Plain values count as they do of any object; a traced value is
  refused in a module from outside the function, where it would stay behind.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

import flax
import jax
from flax import nnx
from flax.nnx import tracers, variablelib

from .._base.errors import StateTraceError, StateTransformError
from .._jax import TOP_LEVEL, Tracer, has_tracer, is_top_level
from .._states.adapters import as_state, is_node, register, register_by_value, register_owner
from .._states.frame import UNSET, Frame, active, innermost, no_frame, peek, stack
from .descriptor import CellDescriptor
from .handles import IN_ATTRIBUTE, Adopted, Foreign, Native

_KNOWN = "0.12"
_SLOT = "_statetransform_slot"  # what the class had under `_raw_value`


class Variables(CellDescriptor):
    """How the handle of a `Variable` comes by its value. With `ref=True` that is a `jax.Ref`, the cell itself."""

    hidden = frozenset({"_trace_state"})

    def __init__(self, name: str, below: Any) -> None:
        super().__init__(name, below)
        self._slot = below.__get__

    def can_lift(self, value: Any) -> bool:
        return not variablelib.is_array_ref(value) and super().can_lift(value)

    def state_of(self, cell: Any, is_named: bool = False) -> Foreign | None:
        held = self.stored(cell)
        if type(held) is not jax.Ref:
            return super().state_of(cell, is_named)
        state = as_state(held)
        state._kind = cell.var_type
        return state

    def handle(self, cell: Any) -> Foreign:
        state = super().handle(cell)
        state._kind = cell.var_type
        return state

    def slot(self) -> tuple[str, type]:
        return _SLOT, Adopted

    def stored(self, cell: Any) -> Any:
        held = super().stored(cell)
        if type(held) is not MadeRef or (value := held._value) is UNSET:
            return held
        with contextlib.nullcontext() if has_tracer(value) else jax.ensure_compile_time_eval():
            ref = jax.new_ref(value)
        self.store(cell, ref)
        return ref

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
                return self.plain(cell) if kind is Native or kind is MadeRef else held
            value = held._value
            return value if value is not UNSET else self.plain(cell)

        get.cell = self  # type: ignore[attr-defined]
        return property(get, self.__set__, self.__delete__)

    def __set__(self, cell: Any, value: Any) -> None:
        frame = innermost()
        if frame is not None and frame.is_here() and variablelib.is_array_ref(value):
            if type(value) is jax.Ref:  # one from outside
                self.store(cell, value)
            else:  # one of the trace, which it cannot leave
                _make_ref(self, frame, cell, value[...])
            return
        super().__set__(cell, value)

    def made_in(self, cell: Any) -> Any:
        return object.__getattribute__(cell, "_trace_state")  # of which a trace notes nothing

    def takes_tracers(self, state: Any) -> bool:
        return state._made.is_valid()  # a variable of the raw trace around

    def check_raw_write(self, state: Foreign, value: Any) -> None:
        """Left to nnx."""

    def check_handle_write(self, state: Foreign, value: Any) -> None:
        if not state._made.is_valid():
            raise StateTraceError.raw_write(state)


class MadeRef(Adopted):
    """In the place of a Ref that a variable is to hold: it is made once the function that made the variable is done."""

    __slots__ = ()


def _make_ref(cells: CellDescriptor, frame: Frame, cell: Any, value: Any) -> None:
    """Makes a variable with `ref=True` within a frame."""
    state = object.__new__(MadeRef)
    state._stand_for(cell, cells)
    state._value = UNSET
    cells.store(cell, state)
    frame.born[state] = value


class HijaxVariables(Variables):
    """How the handle of a variable with `hijax=True` comes by its value, which is kept as a tuple of leaves."""

    hidden = frozenset()
    made_in, takes_tracers = CellDescriptor.made_in, CellDescriptor.takes_tracers

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if cell is None or type(held := self.stored(cell)) is not jax.Ref:
            held = super().__get__(cell, owner)
        return held if cell is None else tuple(jax.tree.leaves(held))

    def __set__(self, cell: Any, leaves: Any) -> None:
        super().__set__(cell, _structure(cell).unflatten(leaves))

    def as_property(self) -> property:
        def get(cell: Any) -> Any:
            return self.__get__(cell)

        get.cell = self  # type: ignore[attr-defined]
        return property(get, self.__set__)

    def stored(self, cell: Any) -> Any:
        held = super().stored(cell)
        return _structure(cell).unflatten(held) if type(held) is tuple else held

    def store(self, cell: Any, value: Any) -> None:
        super().store(cell, value if isinstance(value, IN_ATTRIBUTE) else tuple(jax.tree.leaves(value)))

    def check_handle_write(self, state: Foreign, value: Any) -> None:
        if innermost() is None:
            CellDescriptor.check_raw_write(self, state, value)

    def check_value(self, state: Foreign, value: Any) -> None:
        if jax.tree.structure(value) != (kept := jax.tree.structure(peek(state))):
            raise ValueError(f"a variable with hijax=True keeps the structure of its value, {kept}")


def _structure(cell: Any) -> Any:
    """The structure of a value: the only child of its variable's structure."""
    return cell._treedef.children()[0]


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
    return TOP_LEVEL if frame.called_from is None else frame.called_from


def _is_pure(frame: Frame) -> bool:
    """Whether what is written in a frame gets to somebody who takes it as values, and so into no variable."""
    while frame.parent is not None and not frame.is_pure and _is_called_in(frame, frame.parent):
        frame = frame.parent
    return frame.is_pure


def _is_called_in(frame: Frame, parent: Frame) -> bool:
    return frame.called_from is None or frame.called_from == parent.here


def install() -> None:
    """Puts the descriptors on the classes, and wraps the methods and functions that stand above.

    Raises:
      StateTransformError: this flax keeps values elsewhere.
    """
    home, kept = nnx.Variable, tracers.TraceState
    slots = vars(home).get("__slots__", ())
    named = hasattr(nnx.Pytree, "_setattr") and hasattr(variablelib, "is_array_ref")
    if "_raw_value" not in slots or "_jax_trace" not in vars(kept).get("__slots__", ()) or not named:
        raise StateTransformError(
            f"flax {flax.__version__} stores the values of its variables in another place than {_KNOWN}, which "
            "this version of statetransform supports. Install that one, or another version of statetransform."
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
    if hasattr(variablelib, "HijaxVariable"):
        _install_hijax(cells, variablelib.HijaxVariable)
    nnx.Pytree._setattr = _keeping_tracers_out(nnx.Pytree._setattr, is_valid)
    register_owner(nnx.Pytree, hidden=["_pytree__state"])
    register_by_value(nnx.State)
    register(home, cells, may_be_pytree=True)


def _without_slot(getattr_: Any) -> Any:
    """`__getattr__` that does not ask the value of a variable for the slot in which the value is missing."""

    @functools.wraps(getattr_)
    def __getattr__(self: Any, name: str) -> Any:
        if name == _SLOT:
            raise AttributeError("_raw_value")
        return getattr_(self, name)

    return __getattr__


def _install_hijax(cells: Variables, home: Any) -> None:
    """The same for variables with `hijax=True`."""
    get, put, new = (
        getattr(variablelib, f"_{name}") for name in ("get_hijax_state", "set_hijax_state", "new_hijax_from_variable")
    )
    its = HijaxVariables("_leaves", vars(home)["_leaves"])

    @functools.wraps(get)
    def _get_hijax_state(variable: Any) -> Any:
        if type(variable) is not home or innermost() is None:
            return get(variable)
        leaves, treedef = variable._leaves, variable._treedef
        with no_frame():
            found = treedef.unflatten(leaves)
        cells.make_native(found)
        return found

    @functools.wraps(put)
    def _set_hijax_state(hijax: Any, variable: Any) -> None:
        treedef = jax.tree.structure(variable)
        if type(hijax) is not home or innermost() is None:
            if type(hijax) is home and is_top_level():
                object.__setattr__(hijax, "_treedef", treedef)  # the leaves come next
            put(hijax, variable)
        elif treedef != hijax._treedef:
            raise StateTraceError(
                f"{type(variable).__name__}(hijax=True) is given metadata or a value of another structure within a "
                "transform, which JAX's high types do not allow. Nothing was changed.\nDo it before the call, or "
                "create the variable with `hijax=False`."
            )
        else:
            object.__setattr__(hijax, "_leaves", tuple(jax.tree.leaves(variable)))

    @functools.wraps(new)
    def _new_hijax_from_variable(variable: Any) -> Any:
        frame = innermost()
        if frame is None or not frame.is_here():
            return new(variable)
        leaves, treedef = jax.tree.flatten(variable)
        made = object.__new__(home)
        for name, value in (("_treedef", treedef), ("_var_type", type(variable)), ("_ref", variable.ref)):
            object.__setattr__(made, name, value)
        if variable.ref and not isinstance(leaves[0], jax.Ref):
            _make_ref(its, frame, made, leaves[0])
        else:
            object.__setattr__(made, "_leaves", leaves)
        return made

    for function in (_get_hijax_state, _set_hijax_state, _new_hijax_from_variable):
        setattr(variablelib, function.__name__, function)
    type.__setattr__(home, _SLOT, vars(home)["_leaves"])
    type.__setattr__(home, "_leaves", its.as_property())
    register(home, its, may_be_pytree=True)


def _keeping_tracers_out(setattr_: Any, is_valid: Any) -> Any:
    """Setting an attribute of a module, which may not get a traced value if it is not the function's own."""

    @functools.wraps(setattr_)
    def _setattr(self: Any, name: str, value: Any) -> None:
        frame = innermost()
        if frame is not None and _is_traced(value) and not _is_own(frame, self._pytree__state.trace_state, is_valid):
            raise StateTraceError(
                f"attribute {name!r} of an instance of {type(self).__name__} is given a traced value within a "
                f"transform, and would keep it. Nothing was changed.\nMake it a variable before the call, "
                f"`self.{name} = nnx.Variable(...)`, and write `self.{name}[...] = ...` inside."
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
