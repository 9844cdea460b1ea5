"""What the package knows of other frameworks, one module each, imported when something of the framework is met.

An adapter is a module with a function `install()`, named by a `register_lazily` below. It makes a `CellDescriptor`
(`descriptor`) and puts it on the class of the cells in place of the attribute that holds the value (or of a property
with the descriptor as `fget.cell`, as for nnx; or of methods, as for `jax.Ref`). Then it tells `_states/adapters.py`:
`register` for cells, `register_owner` or `register_owner_if` for objects that go by reference, `register_by_value` for
pytrees of cells that go by value. `adapt` says that the framework's own functions are not followed, `frame.on_entering`
and `hooks.settings` that it has contexts or settings of its own.

A new framework is a module here, its `register_lazily` and `adapt` below, a row for each kind of its cells in
`tests/adapters/cells.py`, and a line among those that pyproject.toml leaves out of the doctests. The smallest one to
read is `register_state_type` in `attributes`, for a class that keeps the value in a plain attribute; `brainstate` has
what a framework with transforms of its own needs besides.

The list is what a cell implements. `CellDescriptor` has all of it: required are its arguments, `name` and `below`, and
an adapter overrides what its framework does in another way. Marked with * is what the rest of the package asks of a
cell; `handles` and the descriptor itself ask the rest.

Where the value is:
    `stored(cell)`*, `store(cell, value)`: what the attribute holds, an adopted handle perhaps; `MISSING` for nothing.
    `plain(cell)`: the value as it is outside of all transforms; an `AttributeError` where there is none.
    `committed(cell)`, `commit(cell, value)`: how a value goes in at the outermost frame, and comes out of it.
    `can_lift(value)`: whether a value is one that JAX can hold; others stay plain.
    `check_value(state, value)`: refuses a value that the cell could not hold.
    `create(frame, cell, value)`: a cell that is made inside a transform.

Which state stands for it:
    `existing_handle(cell)`*, `handle(cell)`: the handle (`handles`) or None; the handle, made if there is none.
    `state_of(cell)`*, `is_each`: the handle for a function that runs now, made if each instance of the class is a cell;
        None for a cell that frames leave alone.
    `make_native(cell)`*: from now on the framework manages the cell, and frames leave it alone.
    `name`*, `hidden`*, `shows`*, `is_named_by_path`*, `initial_name(cell)`, `handle_class`: what others see.
    `__call__(cell)`*, `slot()`*, `in_dict(kind)`*, `way_to(state)`*: how a structure and a compiled call get there.

How it goes through frames (those with * are in `Cell` of `_states/cell.py`, since a `State` has them, too; and so are
`is_named_by_path`, `slot`, `in_dict` and `way_to`):
    `read_in`*, `read_around`*: the value inside a frame, and as the function around it sees it.
    `check_write`*, `receive`*, `write`: what a function writes, and what a transform leaves behind.
    `goes_stale`*, `takes_tracers`*, `check_raw_write`, `check_handle_write`, `made_in`: what raw transforms may do.
    `is_random(state)`*: whether `vmap` gives each batch element a key of its own.
"""

import jax

from .._base.errors import hint
from .._base.library import adapt
from .._states.installing import install_for, register_lazily
from .attributes import attr, register_state_type

__all__ = ["attr", "register_state_type"]

register_lazily("flax.nnx", f"{__name__}.nnx")
register_lazily("brainstate", f"{__name__}.brainstate")
register_lazily(f"{jax.Ref.__module__}.{jax.Ref.__qualname__}", f"{__name__}.ref")
install_for(jax.Ref)
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
hint(
    "tracers in flax.core.scope",
    "flax",
    "A module of flax.linen makes and keeps its variables while it runs. Inside of linen modules use `nn.remat`, "
    "`nn.jit`, `nn.scan`. Outside, transform a function of the variables that calls `module.apply(variables, x)`.",
)
