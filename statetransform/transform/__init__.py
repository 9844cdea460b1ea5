"""State-aware versions of JAX's transforms, under JAX's names."""

# A new transform is one JAX call with states going in and out. Which of three engines it takes is decided by JAX:
#
# * JAX runs the function (`grad`, `vmap`): a subclass of `Direct`, whose `_run` makes a `Lift`, calls it inside of the
#   JAX transform and lets `leave` write. `checkify` in `_direct.py` is the smallest, `_vjp.py` the clearest.
# * JAX stages the function (`checkpoint`, `lift`): `decorate(Staged, fun, where="name", around=...)`, where `around` is
#   the JAX transform of a pure function, or of the program that it is traced to: a frozen dataclass, so that equal ones
#   share traces. A function that is looked at once goes through `find_for_once` (`eval_shape`), the body of a loop is a
#   `Body`, a branch `traced_once` (`_bodies.py`).
# * JAX compiles the function (`jit`): `_jit.py`.
#
# `_rules.py` (custom rules) and `_shard_map.py` are hybrids of the first two, and say of what. The signature comes from
# JAX's (`as_in` in `_options.py`). It has a row in `tests/tables.py`, which puts it under most guarantees, a line in
# `__all__`, in docs/reference, in the layers of pyproject.toml and in the changelog. Both classes are shown in
# docs/how-it-works.md, "A transform of your own".

from typing import Any

from .._base.errors import no_attribute
from .._memory import checkpoint_name
from .._traces.functional import Functionalized, functionalize, lift
from ._branches import cond, switch
from ._checkpoint import checkpoint, remat
from ._custom import custom_jvp, custom_vjp
from ._direct import checkify, discard_writes, named_call
from ._grad import grad, hessian, jacfwd, jacrev, value_and_grad
from ._jit import jit
from ._make_jaxpr import eval_shape, make_jaxpr
from ._scan import associative_scan, for_loop, map, scan
from ._shard_map import shard_map
from ._vjp import jvp, linearize, vjp
from ._vmap import vmap
from ._while import fori_loop, while_loop

__all__ = [
    "Functionalized",
    "associative_scan",
    "checkify",
    "checkpoint",
    "checkpoint_name",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "discard_writes",
    "eval_shape",
    "for_loop",
    "fori_loop",
    "functionalize",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lift",
    "linearize",
    "make_jaxpr",
    "map",
    "named_call",
    "remat",
    "scan",
    "shard_map",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    hint = ""
    if name == "pmap":
        hint = " JAX has replaced it: use `transform.jit` with shardings, or `transform.shard_map`."
    elif name == "custom_remat":
        hint = (
            " JAX 0.12 has replaced it: use `f = transform.custom_vjp(f)` and `f.defremat(fwd, rem, bwd)`. Or say what "
            "to keep with `transform.checkpoint(f, policy=...)`."
        )
    raise no_attribute(__name__, name, hint)


for _name in __all__:  # public objects say where they are imported from
    if _name != "checkpoint_name":  # which lives in `policies`
        globals()[_name].__module__ = __name__
