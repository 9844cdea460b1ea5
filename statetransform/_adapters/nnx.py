"""`flax.nnx.Variable`: the value is in the slot `_raw_value`, through which all of nnx goes.

What is private of flax here, and why:

* `Variable._raw_value`: where the value is; a descriptor stands on the class under that name.
* `TraceState.__init__` and `is_valid`: nnx lets a variable or a module be used only in the JAX trace that made it. The
  function under a transform of ours is as good as the place of the call: what is valid there is valid in the frame's
  own trace, and what is made in that trace is valid at the place of the call.
* `Variable.hijax`: such a variable is a JAX value of a kind that no frame can carry, and is refused.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from typing import Any

import flax
from flax import nnx
from flax.nnx import tracers, variablelib

from .._core.cells import Cells, Foreign
from .._core.errors import StateTraceError, StateTransformError
from .._core.foreign import holds, register
from .._core.frame import Frame, stack
from .._core.jaxcompat import TOP_LEVEL, set_current_trace, trace_state

_KNOWN = "0.12"


class Variables(Cells):
    """How the handle of a `Variable` comes by its value."""

    unseen = frozenset({"_trace_state"})

    def takes_tracers(self, state: Foreign) -> bool:
        return True  # a variable of the raw trace around; nnx refuses the others

    def refuse_raw(self, state: Foreign, value: Any) -> None:
        """Left to nnx."""


def _place_of_the_call(frame: Frame) -> Any:
    """The state of JAX's traces where the outermost frame was called."""
    while frame.parent is not None:
        frame = frame.parent
    if frame.outer is None:
        return TOP_LEVEL
    with set_current_trace(frame.outer):
        return trace_state()


def install() -> None:
    """Puts the descriptor on the class, and wraps two methods.

    Raises:
      StateTransformError: this flax keeps values elsewhere.
    """
    home, kept = nnx.Variable, tracers.TraceState
    slots = vars(home).get("__slots__", ())
    if "_raw_value" not in slots or "_jax_trace" not in vars(kept).get("__slots__", ()):
        raise StateTransformError(
            f"flax {flax.__version__} keeps the values of its variables elsewhere than {_KNOWN}, the version that "
            "statetransform knows. Install that one, or one of statetransform that knows this."
        )
    init, is_valid = kept.__init__, kept.is_valid

    @functools.wraps(init)
    def __init__(self: Any) -> None:
        init(self)
        frame = stack.frame
        if frame is not None and frame.is_here():
            self._jax_trace = _place_of_the_call(frame)

    @functools.wraps(is_valid)
    def valid(self: Any) -> bool:
        if is_valid(self):
            return True
        frame = stack.frame
        return frame is not None and frame.is_here() and self._jax_trace == _place_of_the_call(frame)

    kept.__init__, kept.is_valid = __init__, valid
    cells = Variables("_raw_value", vars(home)["_raw_value"])
    type.__setattr__(home, "_raw_value", cells)
    for name in ("_get_hijax_state", "_set_hijax_state"):
        if hasattr(variablelib, name):
            setattr(variablelib, name, _refusing(getattr(variablelib, name)))
    holds(nnx.Pytree)
    register(home, cells, is_node=True)


def _refusing(function: Any) -> Any:
    @functools.wraps(function)
    def refusing(variable: Any, *args: Any, **kwargs: Any) -> Any:
        if stack.frame is not None:
            raise StateTraceError(
                f"{type(variable).__name__}(hijax=True) cannot be carried by a transform of statetransform. Nothing "
                "was changed.\nCreate the variable with `hijax=False`."
            )
        return function(variable, *args, **kwargs)

    return refusing
