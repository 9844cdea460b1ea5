"""`brainstate.State`: the value is in `__dict__["_value"]`, through which all of brainstate goes.

What is private of brainstate here, and why:

* `State._value`: where the value is; a descriptor stands on the class under that name.
* `State.__init__` writes `vars(self)` past the descriptor, so it is wrapped: that is how a cell made within a transform
  is noticed.
* `State._check_tracer_write_outside_trace` is asked before a user's write outside of brainstate's own transforms: there
  a write inside a raw JAX transform is refused. What brainstate's transforms store themselves does not pass it.
* `random.DEFAULT`: the state behind `brainstate.random`, to which no path of the user's leads.
* `TRACE_CONTEXT.state_stack`: brainstate's transforms, from the outermost. Each records what is read and written, swaps
  a traced value of its own in, and restores the old one at the end. A read that leaves a frame of ours must be recorded
  by those around the frame, and not by those within; a value that one swaps in lies over the frame's until it is
  restored.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
from collections.abc import Iterator
from typing import Any, NamedTuple

import brainstate
import jax

from .._base.errors import StateTransformError
from .._objects.hooks import listening, settings
from .._objects.plain import MISSING, NOT_SET
from .._states.adapters import register, register_owner
from .._states.cell import DictEntry
from .._states.frame import UNSET, Frame, innermost, on_entering, stack
from .descriptor import CellDescriptor
from .handles import Foreign, dict_of

_KNOWN = "0.5 and 0.6"


@dataclasses.dataclass(frozen=True)
class Setting:
    """The step of a recorded structure to what the environment says of a name.

    Args:
      key: what is asked for.
    """

    key: Any

    shows = True
    read_all = staticmethod(brainstate.environ.all)

    @property
    def name(self) -> str:
        return f"environ[{self.key!r}]"

    def __call__(self, _: Any) -> Any:
        return brainstate.environ.get(self.key, default=NOT_SET)


def _note_settings() -> None:
    """Makes what the environment says, `with environ.context(fit=True)`, count in the traces that ask for it."""
    environ: Any = brainstate.environ
    get, of_jax = environ.get, (environ.PLATFORM, environ.HOST_DEVICE_COUNT)

    @functools.wraps(get)
    def noting(key: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("env") is None and key not in of_jax:
            for listener in listening.listeners:
                listener.asks(Setting(key))
        return get(key, *args, **kwargs)

    environ.get = noting
    settings.append(Setting.read_all)


class Notes(NamedTuple):
    """What is noted at a frame when it is entered.

    Attributes:
      depth: how many of brainstate's transforms are around it.
      under: by state, what was there before one of those within it has swapped a value in.
    """

    depth: int
    under: dict[Any, Any]


class BrainStates(CellDescriptor):
    """How the handle of a `brainstate.State` comes by its value.

    Args:
      context: brainstate's transforms that are active in this thread.
    """

    hidden = frozenset({"_been_writen", "_hooks_manager", "_source_info", "_trace_state", "_level"})

    def __init__(self, context: Any) -> None:
        super().__init__("_value")
        self._context = context

    def initial_name(self, cell: Any) -> str | None:
        return dict_of(cell).get("_name")

    def in_dict(self, kind: type) -> DictEntry:
        return DictEntry("_value", "_been_writen", self._is_busy)

    def way_to(self, state: Any) -> Any:
        return self._default if state._ref() is brainstate.random.DEFAULT else None

    def _default(self, _: Any) -> Foreign:
        return self.handle(brainstate.random.DEFAULT)

    def _is_busy(self) -> Any:
        return self._context.state_stack

    def note(self, frame: Frame) -> None:
        """Notes at a frame how many of brainstate's transforms are around it, and what they have swapped in."""
        frame.notes = Notes(len(self._context.state_stack), {})

    @contextlib.contextmanager
    def _outside(self, frame: Frame) -> Iterator[None]:
        """As if the innermost frame were the one around this, with the transforms that are active there."""
        stacks, inner = self._context.state_stack, stack.frame
        hidden = stacks[frame.notes.depth :]
        del stacks[frame.notes.depth :]
        stack.frame = frame.parent
        try:
            yield
        finally:
            stack.frame = inner
            stacks.extend(hidden)

    def read_around(self, frame: Frame, state: Any) -> Any:
        cell = state._ref()
        around = 0 if frame.parent is None else frame.parent.notes.depth
        if cell is None or frame.notes.depth == around or state._is_native_to(frame.parent):
            return super().read_around(frame, state)
        with self._outside(frame):
            return cell.value

    def committed(self, cell: Any) -> Any:
        if stack.frame is None and self._context.state_stack:
            return cell.value
        held = dict_of(cell).get("_value", MISSING)
        return UNSET if held is MISSING else held

    def commit(self, cell: Any, value: Any) -> None:
        if self._context.state_stack:
            cell.value = value
        else:
            dict_of(cell).update(_value=value, _been_writen=True)

    def read_in(self, frame: Frame, state: Any) -> Any:
        if (cell := self._left_inside(frame, state)) is not None:
            return cell.value
        return super().read_in(frame, state)

    def check_write(self, frame: Frame, state: Any, value: Any) -> None:
        if self._left_inside(frame, state) is None:
            super().check_write(frame, state, value)

    def receive(self, frame: Frame, state: Any, value: Any, site: Any) -> None:
        if (cell := self._left_inside(frame, state)) is not None:
            cell.value = value
        else:
            super().receive(frame, state, value, site)

    def _left_inside(self, frame: Frame, state: Any) -> Any:
        """The cell, if a transform of brainstate's within a frame is to hear of what a transform of ours does to it."""
        is_within = len(self._context.state_stack) > frame.notes.depth
        return state._ref() if is_within and not state._is_native_to(frame) else None

    def write(self, frame: Frame, state: Foreign, value: Any) -> None:
        under = frame.notes.under
        if value is under.get(state, MISSING):  # put back
            frame.values[state] = under.pop(state)
        elif frame.is_here():
            under.pop(state, None)
            if value is not frame.values.get(state, MISSING) or state in frame.sites:
                frame.write(state, value)
        else:  # a transform of brainstate's swaps a value in; it says so before where it is the user's write
            under.setdefault(state, frame.read(state))
            frame.values[state] = value

    def is_random(self, state: Any) -> bool:
        return issubclass(state._kind, brainstate.random.RandomState)

    def takes_tracers(self, state: Any) -> bool:
        cell = state._ref()  # type: ignore[attr-defined]
        return bool(self._context.state_stack) or (cell is not None and dict_of(cell)["_trace_state"].is_valid())

    def check_raw_write(self, state: Foreign, value: Any) -> None:
        """Nothing: what transforms of brainstate's store in between is their own affair."""

    def check_handle_write(self, state: Foreign, value: Any) -> None:
        if innermost() is None and not self.takes_tracers(state):
            super().check_raw_write(state, value)

    def made(self, frame: Frame, cell: Any) -> None:
        """Takes the value of a new cell out of its attributes."""
        if "_value" in dict_of(cell) and self.existing_handle(cell) is None:
            self.create(frame, cell, dict_of(cell).pop("_value"))


def install() -> None:
    """Puts the descriptor on the class, and wraps two methods and `environ.get`.

    Raises:
      StateTransformError: this brainstate keeps values elsewhere.
    """
    home: Any = brainstate.State
    context = getattr(getattr(brainstate, "_state", None), "TRACE_CONTEXT", None)
    init, refuse = vars(home).get("__init__"), vars(home).get("_check_tracer_write_outside_trace")
    keeps = "_value" in vars(home(0.0)) and not hasattr(home, "_value")
    if init is None or refuse is None or not keeps or not isinstance(getattr(context, "state_stack", None), list):
        version = importlib.metadata.version("brainstate")
        raise StateTransformError(
            f"brainstate {version} stores the values of its states in another place than {_KNOWN}, which "
            "this version of statetransform supports. Install that one, or another version of statetransform."
        )
    cells = BrainStates(context)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        frame = innermost()
        if frame is not None:
            cells.made(frame, self)

    @functools.wraps(refuse)
    def check(self: Any, value: Any) -> None:
        frame = innermost()
        if frame is None:
            refuse(self, value)
            cells.check_handle_write(cells.handle(self), value)
        elif (state := cells.state_of(self)) is not None:
            frame.check_write(state)

    home.__init__, home._check_tracer_write_outside_trace = __init__, check
    home._value = cells
    on_entering.append(cells.note)
    frame = stack.frame
    while frame is not None:  # it was imported within a transform
        cells.note(frame)
        frame = frame.parent
    _note_settings()
    register_owner(brainstate.graph.Node)
    register(home, cells, may_be_pytree=not jax.tree_util.all_leaves([home(0.0)]))
