"""What the package knows of other frameworks, one module each, imported when something of the framework is met.

An adapter is a module with a function `install()`. It makes a `CellDescriptor` (`descriptor`), puts it on the class of
the cells in place of the attribute that holds the value, and tells `_states/adapters.py`: `register(cls, cell)`. For a
value in a plain attribute that is all (`attributes`). The list is what a cell implements. `CellDescriptor` has all of
it, and an adapter overrides what its framework does in another way.

Where the value is:
    `raw(cell)`, `set_raw(cell, value)`: the plain attribute; `MISSING` where there is none.
    `take(cell)`, `put(cell, value)`: how a value goes in at the outermost frame, and comes out of it.
    `can_lift(value)`: whether a value is one that JAX can hold; others stay plain.
    `check(state, value)`: refuses a value that the cell could not hold.
    `create(frame, cell, value)`: a cell that is made inside a transform.

Which state stands for it:
    `state_of(cell)`, `handle(cell)`, `known(cell)`: the handle (`handles`), found or made.
    `detach(cell)`: from now on the framework manages the cell, and frames leave it alone.
    `kind_of_handle`, `name`, `name_of(cell)`, `is_named_by_path`, `hidden`: what reports and structures see of it.
    `__call__(cell)`, `slot()`, `in_dict(kind)`, `way_to(state)`: how a structure and a compiled call get there.

How it goes through frames (`Cell` in `_states/cell.py`, which is also what a `State` implements):
    `read_in`, `read_around`: the value inside a frame, and as the function around it sees it.
    `write`, `check_write`, `receive`: what a function writes, and what a transform leaves behind.
    `goes_stale`, `takes_tracers`, `refuse_raw`, `refuse_by_handle`, `made_in`: what raw JAX transforms may do with it.
    `is_random(state)`: whether `vmap` gives each batch element a key of its own.
"""

import jax

from .._base.errors import hint
from .._base.library import adapt
from .._states.adapters import meet, offer
from .attributes import attr, register_state_type

__all__ = ["attr", "register_state_type"]

offer("flax.nnx", f"{__name__}.nnx")
offer("brainstate", f"{__name__}.brainstate")
offer(f"{jax.Ref.__module__}.{jax.Ref.__qualname__}", f"{__name__}.ref")
meet(jax.Ref)
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
