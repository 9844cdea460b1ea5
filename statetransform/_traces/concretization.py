"""Python or NumPy on a traced value: which argument or state the value came from, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import jax

from .._jax import Tracer, argument_names, behind, is_tracer_of
from .._states.frame import stack

CONCRETIZATION_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

#: Functions in which a value is pickled or written to a file.
_SAVING = {"__reduce__", "save", "savez", "savez_compressed", "savetxt"}
_ORIGIN, _TRACED = "The value depends on", "Inside this function the value is traced"


class Culprit:
    """An error, and the tracer that caused it.

    The body hands the tracer out as if it were its result. The trace can then be finished, and its
    jaxpr says on which inputs the tracer depends.

    Args:
      error: the error.
      traces: those whose tracers can be handed out.
    """

    def __init__(self, error: Exception, traces: Sequence[Any]) -> None:
        self.error = error
        of_these = lambda tracer: any(is_tracer_of(tracer, trace) for trace in traces)
        last: Any = None  # the local variable of the innermost frame that Python was given, whatever its trace
        own: list[Any] = []  # those of these traces, of the innermost frame that has some

        def inner(tracer: Any) -> Any:  # behind those of `grad` or `vmap` within the trace
            while isinstance(tracer, Tracer) and not of_these(tracer):
                tracer = behind(tracer)
            return tracer if isinstance(tracer, Tracer) else None

        tb = error.__traceback__
        while tb is not None:
            here = [x for x in tb.tb_frame.f_locals.values() if isinstance(x, Tracer)]
            last = here[-1] if here else last
            own = [x for x in map(inner, here) if x is not None] or own
            tb = tb.tb_next
        found = inner(last)
        if found is None and len({*map(id, own)}) == 1 and not _is_of_a_frame_around(last):
            found = own[0]  # it is of a trace within, made of the only one there
        self.tracers = [] if found is None else [found]

    def explained(self, jaxpr: Any, state_names: Sequence[str]) -> Exception:
        """The error, with a note that names arguments and states."""
        names = argument_names(jaxpr)
        n_args = len(jaxpr.invars) - len(state_names)
        arguments = [f"the argument `{name}`" if name else "an argument" for name in names[:n_args]]
        labels = [*arguments, *state_names]
        sources = [labels[i] for i in sorted(_dependencies(jaxpr, jaxpr.outvars))] if self.tracers else []
        return self.annotated(list(dict.fromkeys(sources)))

    def annotated(self, sources: Sequence[str] = ()) -> Exception:
        """The error, with one note, whatever other traces are around this one: the innermost one that knows."""
        notes = getattr(self.error, "__notes__", [])
        for note in [note for note in notes if _TRACED in note]:
            if note.startswith(_ORIGIN) or not sources:
                return self.error
            notes.remove(note)
        self.error.add_note(self._note(sources))
        return self.error

    def _note(self, sources: Sequence[str]) -> str:
        origin = f"{_ORIGIN} {' and '.join(sources)}.\n" if sources else ""
        if not _SAVING.isdisjoint(frame.name for frame in traceback.extract_tb(self.error.__traceback__)):
            return (
                f"{origin}{_TRACED}, so there is nothing to save yet. Save it after the call has returned, or from the "
                "function of a `jax.debug.callback`."
            )
        said, first = "Python cannot branch on it", ""
        if isinstance(self.error, jax.errors.TracerArrayConversionError):
            said, first = "it has no NumPy value", "  - a function that `jnp` has: write `jnp` in place of `np`;\n"
        return (
            f"{origin}{_TRACED}, so {said}. Use one of these:\n{first}"
            "  - an argument that is known before the call: list it in `static_argnums` or `static_argnames`;\n"
            "  - a state that holds a Python setting: create it with `State(value, static=True)`;\n"
            "  - a value computed from constants only: compute it under `jax.ensure_compile_time_eval()`;\n"
            "  - a decision that must be made on the traced value: use `transform.cond` (or `jnp.where`)."
        )


def _is_of_a_frame_around(tracer: Any) -> bool:
    """Whether the trace of a transform around the innermost one knows a tracer, and so will say where it came from."""
    while isinstance(around := behind(tracer), Tracer):
        tracer = around
    frame = stack.frame and stack.frame.parent
    while frame is not None:
        if is_tracer_of(tracer, frame.trace):
            return True
        frame = frame.parent
    return False


def _dependencies(jaxpr: Any, outvars: Sequence[Any]) -> set[int]:
    """The positions of the inputs on which some variables of a jaxpr depend."""
    needed = {var for var in outvars if not hasattr(var, "val")}
    for eqn in reversed(jaxpr.eqns):
        used = [i for i, var in enumerate(eqn.outvars) if var in needed]
        if not used:
            continue
        inner = eqn.params.get("jaxpr")
        inner = getattr(inner, "jaxpr", inner)
        positions: Any = range(len(eqn.invars))
        if inner is not None and len(inner.invars) == len(eqn.invars) and len(inner.outvars) == len(eqn.outvars):
            positions = _dependencies(inner, [inner.outvars[i] for i in used])
        needed |= {var for i in positions if not hasattr(var := eqn.invars[i], "val")}
    return {i for i, var in enumerate(jaxpr.invars) if var in needed}
