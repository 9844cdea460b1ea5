"""What the package knows of other frameworks, one module each, imported when something of the framework is met.

A cell implements `Cell` of `_states/cell.py`. `descriptor` has all of it for a value in an attribute.
"""

import jax

from .._base.errors import hint
from .._base.library import adapt
from .._states.adapters import offer
from .attributes import attr, register_state_type

__all__ = ["attr", "register_state_type"]

offer("flax.nnx", f"{__name__}.nnx")
offer("brainstate", f"{__name__}.brainstate")
offer(jax.Ref, f"{__name__}.ref")
adapt("flax")
adapt("brainstate")
adapt("torch")  # for torchax; following all that torch may run takes minutes
adapt("torchax")
hint("states", "flax.nnx", ", or `st.states(model, nnx.Param)` for a model of flax.nnx")
hint(
    "arguments",
    "equinox",
    "For an equinox module, pass only the arrays: `params, static = eqx.partition(model, eqx.is_array)`, and "
    "`eqx.combine(params, static)` inside.",
)
