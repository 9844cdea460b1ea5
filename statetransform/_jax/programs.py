"""Parts of jaxprs and of types that are not public JAX; the memory half and reports need them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.interpreters import partial_eval

from .both import (
    _DIRECT,
    Tracer,
    _chain,
    consts_of,
    eval_jaxpr,
    opened,
    take_current_trace,
    zeros,
)

try:
    from jax._src.lax.lax import empty2
except ImportError:
    empty2 = None

try:
    from jax._src.lax.control_flow import loops as _loops
except ImportError:
    _loops = None

try:
    from jax._src.config import persistent_cache_min_compile_time_secs as _seconds_to_cache
except ImportError:
    _seconds_to_cache = None


def is_in_loop() -> bool:
    """Whether the step of one of JAX's loops is being traced, whoever called it; no trace says whose body it is."""
    frame, file = sys._getframe(), getattr(_loops, "__file__", None)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def without_cache() -> contextlib.AbstractContextManager[Any]:
    """Keeps programs out of JAX's folder for compiled ones, in this thread.

    JAX writes those for devices that are not there, and warns each time that it cannot read them. Its public settings
    are for all threads. (`enable_compilation_cache` would not do: the first program decides for the whole process.)
    """
    return contextlib.nullcontext() if _seconds_to_cache is None else _seconds_to_cache(float("inf"))


# `jnp.zeros(...)` that is moved to the host is allocated on the device first. JAX's own `scan` makes the arrays for
# outputs in host memory as follows: from a scalar that is in host memory by its type alone.


def host_room(aval: Any, rows: int) -> Any:
    """An array of such values in host memory, `[rows, *aval.shape]`, whose content means nothing."""
    space, varying = jax.memory.Space.Host, tuple(sorted(aval.mat.varying))
    zero = jnp.zeros((), aval.dtype)
    scalar = jax.device_put(zero, space) if empty2 is None else empty2(aval.dtype, memory_space=space)
    return zeros(aval, (rows,), jax.lax.pcast(scalar, varying, to="varying") if varying else scalar)


def is_array_type(aval: Any) -> bool:
    """Whether an abstract value is that of an array, and not of a reference."""
    return isinstance(aval, jax.core.ShapedArray)


# With `jax_remat3`, `checkpoint_name` does not bind `name_p` but a "high" primitive whose identity sits in a
# parameter. Both classes are private, so they are recognised by the name that a printed jaxpr shows.
_NAMING_CLASSES = frozenset({"CheckpointName", "CheckpointNameFwd"})


def with_equations(jaxpr: Any, eqns: Sequence[Any], outvars: Sequence[Any], consts: Mapping[Any, Any]) -> Any:
    """A closed jaxpr with the inputs of an open one, and their names; `consts` has values by their variables."""
    info = jaxpr.debug_info._replace(result_paths=None)  # the outputs may be others
    new = jaxpr.replace(constvars=list(consts), eqns=eqns, outvars=outvars, debug_info=info)
    return jex.ClosedJaxpr(new, list(consts.values()))  # pyright: ignore[reportPrivateImportUsage]


class NamedVariable(jex.Var):
    """A variable that prints with a name. JAX's printer makes up letters, and takes no names from outside."""

    def __init__(self, name: str, aval: Any) -> None:
        super().__init__(aval)
        self.name = name

    def pretty_print(self, context: Any, *, print_dtype: bool = True) -> str:
        """What JAX's printer shows. A release that does not ask for it prints letters."""
        return self.name


def name_in_params(primitive: Any, params: Any) -> str | None:
    """The name that an application of ``checkpoint_name`` gives, in either of JAX's two encodings."""
    if primitive is primitives.name_p:
        return params["name"]
    high = params.get("_prim")
    if high is not None and type(high).__name__ in _NAMING_CLASSES:
        return high.name
    return None


def given_name(eqn: Any) -> str | None:
    """The name that an equation gives to its output, or ``None`` for any other equation.

    >>> import jax
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> jaxpr = jax.make_jaxpr(lambda x: checkpoint_name(x * 2, "twice"))(1.0)
    >>> [given_name(eqn) for eqn in opened(jaxpr).eqns]
    [None, 'twice']
    """
    return name_in_params(eqn.primitive, eqn.params)


def names_held(policy: Any) -> frozenset[str]:
    """The names of values that one of JAX's own policies holds: no policy of theirs can be asked for them.

    They are the only sets of texts that such a policy refers to, be it a function or, in other releases, an object.

    >>> sorted(names_held(jax.checkpoint_policies.save_only_these_names("a", "b")))
    ['a', 'b']
    """
    if not (getattr(policy, "__module__", None) or "").startswith("jax."):
        return frozenset()
    if isinstance(policy, types.FunctionType):
        held = inspect.getclosurevars(policy).nonlocals
    else:
        held = getattr(policy, "__dict__", {})
    found: set[str] = set()
    for value in held.values():
        if callable(value):
            found |= names_held(value)
        elif isinstance(value, set | frozenset | tuple | list) and all(isinstance(name, str) for name in value):
            found |= set(value)
    return frozenset(found)


def key_of_policy(policy: Any) -> Any:
    """What is equal for two policies that equal calls of JAX's own functions have made; another one itself.

    >>> make = jax.checkpoint_policies.save_only_these_names
    >>> key_of_policy(make("a", "b")) == key_of_policy(make("b", "a")) != key_of_policy(make("a"))
    True
    """
    is_of_jax = (getattr(policy, "__module__", None) or "").startswith("jax.")
    if not is_of_jax or not isinstance(policy, types.FunctionType) or not policy.__closure__:
        return policy
    held = [cell.cell_contents for cell in policy.__closure__]
    return policy.__code__, *[frozenset(x) if isinstance(x, set | list | tuple) else key_of_policy(x) for x in held]


def is_remat(eqn: Any) -> bool:
    """Whether an equation is a call of ``jax.checkpoint``, in either of JAX's two encodings."""
    if eqn.primitive is primitives.remat_p:
        return True
    return type(eqn.params.get("_prim")).__name__ == "RematTraced"


def remat_params(eqn: Any) -> tuple[Any, Any]:
    """The jaxpr and the policy of a ``jax.checkpoint`` equation."""
    if eqn.primitive is primitives.remat_p:
        return eqn.params["jaxpr"], eqn.params["policy"]
    high = eqn.params["_prim"].params
    return high["jaxpr"], high["policy"]


def effects_that_stay(eqn: Any) -> list[str]:
    """The effects of an equation that may be neither repeated nor left out, as JAX prints them.

    The classes of effects are private, so they are known by name: what `jax.debug` does out of order may be repeated,
    and the name of an axis is no effect on anything.
    """
    return [str(e) for e in eqn.effects if type(e).__name__ not in ("DebugEffect", "NamedAxisEffect")]


def part_of(jaxpr: Any, invars: Sequence[Any], outvars: Sequence[Any], among: Sequence[Any] | None = None) -> Any:
    """The part of a jaxpr that computes some of its variables out of others, by some of its equations or all.

    `jax.interpreters.partial_eval.dce_jaxpr` keeps only outputs that the jaxpr has; these need not be among them.
    """
    needed, eqns = set(outvars), []
    for eqn in reversed(jaxpr.eqns if among is None else among):
        if needed.intersection(eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, jex.Var))
    names = tuple(f"const {i}" for i in range(len(invars)))
    info = jaxpr.debug_info._replace(arg_names=names, result_paths=None)
    effects = set().union(*[eqn.effects for eqn in eqns])
    return jaxpr.replace(invars=list(invars), outvars=list(outvars), eqns=eqns[::-1], debug_info=info, effects=effects)


def without_unused(jaxpr: Any, is_used: Sequence[bool]) -> tuple[Any, tuple[bool, ...]]:
    """A jaxpr with some of its outputs and what they need, also in loops and branches, and which inputs these are."""
    part, inputs = partial_eval.dce_jaxpr(jaxpr, list(is_used))
    return part, tuple(inputs)


def without_constvars(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """An open jaxpr whose constants are its first inputs, and the values of these constants.

    Goes through a new trace, since `replace` on a jaxpr would also have to rewrite its debug information, whose form
    is not the same in any two releases. Re-evaluation keeps every equation's source.
    """
    consts = tuple(consts_of(jaxpr))
    if not consts:
        return opened(jaxpr), ()
    avals = [*(jax.typeof(c) for c in consts), *(v.aval for v in opened(jaxpr).invars)]
    body = opened(jaxpr)

    def call(*args: Any) -> list[Any]:
        return eval_jaxpr(body, args[: len(consts)], *args[len(consts) :])

    call.__name__ = function_of(jaxpr)[0] or call.__name__
    return opened(jax.make_jaxpr(call)(*avals)), consts


def function_of(jaxpr: Any) -> tuple[str | None, str]:
    """The name of the function that a jaxpr was traced from, and its file; empty where JAX does not say."""
    info = getattr(opened(jaxpr), "debug_info", None)
    where = str(getattr(info, "func_src_info", None) or "")
    return getattr(info, "func_name", None), where.partition(" at ")[2].rpartition(":")[0]


def name_scopes(eqn: Any) -> str:
    """The name scopes of an equation, as profiles show them."""
    return str(eqn.source_info.name_stack)


class UserFrame(NamedTuple):
    """One line of a call stack; `column` is None where it is not known."""

    file: str
    line: int
    column: int | None
    function: str


_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))? \((?P<function>.*)\)")


def user_frames(eqn: Any, at_most: int) -> list[UserFrame]:
    """The innermost lines that led to an equation, innermost first, without those of JAX and of Python's library.

    JAX exports the stack as text only, so this reads the text.
    """
    lines = source_info_util.summarize(eqn.source_info, num_frames=at_most).split("\n")
    return [frame for line in reversed(lines) if (frame := _frame(line))]  # JAX prints the outermost line first


@functools.lru_cache(maxsize=4096)
def _frame(text: str) -> UserFrame | None:
    match = _FRAME.fullmatch(text)
    if match is None:
        return None
    column = int(match["column"]) if match["column"] else None
    return UserFrame(match["file"], int(match["line"]), column, match["function"])


def lanes_of(values: Iterable[Any]) -> list[int]:
    """The sizes of the axes that the `vmap` traces around have taken from some values, none where JAX hides them.

    A tracer of `vmap` shows an array without that axis, and no public function says how large it is. Behind a trace
    that stages nothing is known: its values get their lanes, if any, when the program is run.
    """
    found: dict[int, int] = {}
    for x in values:
        while isinstance(x, Tracer):
            if hasattr(x, "batch_dim"):
                if x.batch_dim is not None and hasattr(x._trace, "axis_data"):
                    found[id(x._trace.tag)] = x._trace.axis_data.size
                x = x.val
            else:
                x = getattr(x, "primal", None)
    return list(found.values())


def vmaps_around() -> tuple[tuple[int, ...], bool]:
    """The sizes of the `vmap` around up to where JAX stages, the innermost first, and whether that is innermost of all.

    No public function says so; each of the traces of `vmap` knows its axis.
    """
    with take_current_trace() as trace:
        chain = list(itertools.takewhile(lambda each: type(each).__name__ in _DIRECT, _chain(trace)))
        sizes = tuple(each.axis_data.size for each in chain if hasattr(each, "axis_data"))
        return sizes, bool(chain) and hasattr(chain[0], "axis_data")
