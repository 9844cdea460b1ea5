"""What the errors of JAX and Python leave out: which option was meant, which argument it is, what to write instead."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from typing import Any

from .._base.errors import hints
from .._base.library import is_own_file
from .._jax import typeof
from .arguments import named_arguments

_REVERSIBLE = (
    "A loop of unknown length can be differentiated with a number of stored carries. If the loop is in library code, "
    "write `transform.checkpoint(f, policy=policies.loops(20))` around the function `f` that calls it; in a loop with "
    "`checkpoint=`, `f` is the step. In your own code, write `transform.while_loop(..., checkpoint=20)` or "
    "`transform.fori_loop(..., checkpoint=20)`."
)
_WORD, _WHOLE = re.compile(r"\w+"), re.compile(r"\w+(\[\d+\])?")  # of `*args`, one has a number
_UNKNOWN = re.compile(r"\(\) got an unexpected keyword argument '(\w+)'$")
_IN_A_CALLBACK = re.compile(r'.*callback: .*\n  File "([^"\n]+)", line \d+, in [^\n]+\n[\w.]+: (.+)', re.DOTALL)
_POLICY_OF_A_LOOP = re.compile(
    r"(scan|for_loop|fori_loop|while_loop|map)\(\) got an unexpected keyword argument 'policy'"
)


def explain_call(error: Exception, fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Says of an error in a call of a transform, such as a loop, which option or argument it is about."""
    if not isinstance(error, TypeError) or isinstance(error, RefusedArgument):
        return
    text, parameters = str(error), inspect.signature(fun).parameters
    if (unknown := _UNKNOWN.search(text)) is not None:
        if unknown[1] in kwargs and unknown[1] not in parameters:
            close = difflib.get_close_matches(unknown[1], parameters, n=1)
            error.args = (f"{text}. Did you mean {close[0]!r}?",) if close else error.args
    elif "is not a valid JAX type" in text:
        functions = [name for name, parameter in parameters.items() if "Callable" in str(parameter.annotation)]
        named = [(name, x) for name, x in named_arguments(fun, args, kwargs) if _WORD.findall(name)[0] not in functions]
        if said := _no_array(fun, named, "Close over it."):
            error.args = (said,)


def explain(error: Exception) -> None:
    """Says more of two errors, and less of one.

    A loop that JAX cannot differentiate, and a loop that is given a policy, get a note, once. An error that this
    package raises while a program runs comes from the compiler as the text of a traceback; its last line is kept.
    """
    note, raised = None, _IN_A_CALLBACK.match(str(error))
    if raised is not None and is_own_file(raised[1]):
        error.__init__(raised[2].strip())  # type: ignore[misc]  # errors of the runtime have a text besides `args`
        error.__cause__ = None  # the text once more; this hides the context, too
    if isinstance(error, ValueError) and "does not work for lax.while_loop" in str(error):
        note = _REVERSIBLE
    elif isinstance(error, TypeError) and (found := _POLICY_OF_A_LOOP.match(str(error))):
        note = (
            f"A policy belongs to a function. Put it on the body, `transform.{found[1]}(transform.checkpoint(body, "
            "policy=...), ...)`, or choose what the loop stores with `checkpoint=`."
        )
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


class RefusedArgument(TypeError):
    """An argument is neither an array nor an object of the user's."""


def refused(fun: Any, args: Any, kwargs: Any) -> TypeError:
    """The error for an argument that is neither an array nor an object of the user's."""
    cure = "List it in `static_argnums` or `static_argnames` if Python needs its value."
    said = _no_array(fun, named_arguments(fun, args, kwargs), cure)
    return RefusedArgument(said or "an argument is not a valid JAX type")


def _no_array(fun: Any, named: Iterable[tuple[str, Any]], cure: str) -> str | None:
    """Names the first argument that is no array and what to do, which is `cure` if it is not a part of another one."""
    for name, leaf in named:
        try:
            typeof(leaf)
        except TypeError:
            if _WHOLE.fullmatch(name) is None:
                cure = "Take it out of the pytree: close over it, or pass it as a static argument of its own."
                cure = hints("arguments") or cure
            called, kind = getattr(fun, "__qualname__", type(fun).__qualname__), type(leaf).__name__
            return f"{called}: argument `{name}` is {leaf!r} of type {kind}, which is not a valid JAX type. {cure}"
    return None
