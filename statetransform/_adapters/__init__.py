"""What the package knows of other frameworks, one module each, imported by `_state/adapters.py` when it is needed.

A cell implements `Cell` of `_state/cell.py`. `descriptor` has all of it for a value in an attribute.
"""

import contextlib

import jax

from .._objects.library import adapt
from .._state.adapters import meet, offer
from .._state.errors import StateTransformError, hint
from .attributes import attr, register_state_type

__all__ = ["attr", "register_state_type"]

_REF = f"{jax.Ref.__module__}.{jax.Ref.__qualname__}"

offer("flax.nnx", f"{__name__}.nnx")
offer("brainstate", f"{__name__}.brainstate")
offer(_REF, f"{__name__}.ref")
with contextlib.suppress(StateTransformError):  # which is raised where a `Ref` is met
    meet([_REF])
adapt("flax")
adapt("brainstate")
hint("states", "flax.nnx", ", or `st.states(model, nnx.Param)` for a model of flax.nnx")
hint(
    "arguments",
    "equinox",
    "For an equinox module, pass only the arrays: `params, static = eqx.partition(model, eqx.is_array)`, and "
    "`eqx.combine(params, static)` inside.",
)
