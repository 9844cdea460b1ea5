"""Jaxprs: two releases have two classes, equations have names and sources, inputs can be added."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core as jex
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import primitives

# Exported by `jax.core`, and by no module that JAX documents.
eval_jaxpr = jax.core.eval_jaxpr


# JAX unified `Jaxpr` and `ClosedJaxpr` in 0.11. Before, a closed jaxpr wraps an open one in `.jaxpr`.
Jaxpr = (jex.Jaxpr, jex.ClosedJaxpr)  # pyright: ignore[reportPrivateImportUsage]

# With `jax_remat3`, `checkpoint_name` does not bind `name_p` but a "high" primitive whose identity sits in a
# parameter. Both classes are private, so they are recognised by the name that a printed jaxpr shows.
_NAMING_CLASSES = frozenset({"CheckpointName", "CheckpointNameFwd"})


def is_jaxpr(value: object) -> bool:
    """Whether ``value`` is a jaxpr, open or closed."""
    return isinstance(value, Jaxpr)


def opened(jaxpr: Any) -> Any:
    """What a closed jaxpr wraps, which alone may stand in the parameters of an equation; any other jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """The values of a jaxpr's constants; empty for an open jaxpr of the older releases."""
    return getattr(jaxpr, "consts", ())


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


def name_of(eqn: Any) -> str | None:
    """The name that an equation gives to its output, or ``None`` for any other equation.

    >>> import jax
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> jaxpr = jax.make_jaxpr(lambda x: checkpoint_name(x * 2, "twice"))(1.0)
    >>> [name_of(eqn) for eqn in opened(jaxpr).eqns]
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


def has_rule(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, has a function with a derivative rule."""
    for eqn in opened(jaxpr).eqns:
        if eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
            return True
        if any(map(has_rule, filter(is_jaxpr, jax.tree.leaves([*eqn.params.values()], is_leaf=is_jaxpr)))):
            return True
    return False


def effects_that_stay(eqn: Any) -> list[str]:
    """The effects of an equation that may be neither repeated nor left out, as JAX prints them.

    The classes of effects are private, so they are known by name: what `jax.debug` does out of order may be repeated,
    and the name of an axis is no effect on anything.
    """
    return [str(e) for e in eqn.effects if type(e).__name__ not in ("DebugEffect", "NamedAxisEffect")]


def close_over_inputs(closed: Any, source: Any, avals: Sequence[Sequence[Any]], names: Sequence[str]) -> Any:
    """Turns operand-free equations into inputs of a jaxpr.

    Args:
      closed: what `jax.make_jaxpr` returned (a `ClosedJaxpr`; from JAX 0.11 on the same class as `Jaxpr`).
      source: the primitive of these equations, see `bind_in`; what they give becomes inputs, behind those that are
        there, in the order of their `position`.
      avals: the types of what is given at each position. JAX has dropped the equations that nothing uses.
      names: what to call the new inputs.

    Returns:
      The jaxpr, and the values of its constant variables.
    """
    jaxpr, consts = closed.jaxpr, [*map(_own, closed.consts)]
    given = {eqn.params["position"]: eqn.outvars for eqn in jaxpr.eqns if eqn.primitive is source}
    new = [var for i, types in enumerate(avals) for var in given.get(i) or map(jex.Var, types)]
    # The debug info names each input, so it has to follow their number.
    info = jaxpr.debug_info
    if info.arg_names is not None:
        info = info._replace(arg_names=(*info.arg_names, *names))
    eqns = [_with_own_consts(eqn) for eqn in jaxpr.eqns if eqn.primitive is not source]
    held = {"consts": consts} if hasattr(jaxpr, "consts") else {}
    return jaxpr.replace(invars=[*jaxpr.invars, *new], eqns=eqns, debug_info=info, **held), consts


def _own(const: Any) -> Any:
    """A constant as an object that no cache of JAX holds.

    JAX converts the dtype of a NumPy array once, for as long as what the first conversion gave is alive: an array that
    has changed since would be seen as it was. The data are not copied.
    """
    return type(const)(np.asarray(const), const.aval) if _is_converted(const) else const


def _is_converted(const: Any) -> bool:
    """Whether a constant is a NumPy array as JAX has converted it; the class is not exported."""
    return type(const).__name__ == "TypedNdArray"


def _with_own_consts(eqn: Any) -> Any:
    """An equation whose jitted function, if it has one, holds constants that no cache of JAX holds, see `_own`."""
    if eqn.primitive is primitives.remat_p:
        eqns = [*map(_with_own_consts, (body := eqn.params["jaxpr"]).eqns)]
        is_same = all(map(operator.is_, eqns, body.eqns))
        return eqn if is_same else eqn.replace(params={**eqn.params, "jaxpr": body.replace(eqns=eqns)})
    closed = eqn.params.get("jaxpr")
    if not isinstance(closed, jex.ClosedJaxpr) or not any(map(_is_converted, closed.consts)):
        return eqn
    return eqn.replace(params={**eqn.params, "jaxpr": closed.replace(consts=[*map(_own, closed.consts)])})


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


def argument_names(jaxpr: Any) -> Sequence[str | None]:
    """What the function that a jaxpr was traced from calls its arguments, leaf by leaf: `x`, `tree['a']`."""
    return jaxpr.debug_info.arg_names or ()


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
