"""What `jit` compiles and keeps: programs, each for one structure of what the function gets.

A `Program` is one function made by `jax.jit`, which takes the value of each state that it uses, then the arguments.
JAX calls it back for types that it has not seen; then it binds the trace that the slow path has put there, and never
traces itself. Traces for arguments of several types share a program where they say the same of the objects. The output
structure says which states were written.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax

from .._base.errors import StateTraceError, describe
from .._jax import Tracer, is_jit_disabled, splice
from .._states.frame import leave, look_at_all, read, stack
from .._states.state import State
from .._traces.arguments import is_reference, positional_parameters
from .._traces.families import Family
from .._traces.large_stack import with_large_stack
from .._traces.shardings import depend_on_shardings, sharding_of
from .._traces.trace import Call, Trace
from .._traces.traces import TraceCache
from .._uses.structure import Structure
from ._names import name_inputs
from ._options import ByState, check_sharding
from ._way_in import WayIn, is_dropped, no_way_in, write_way_in

Jitted: TypeAlias = Any  # the one of `_jit`, which imports this module

_PAYS_AFTER = 100  # calls, measured on 760 to 7,600 variables
_EDGES_AT_MOST = 100_000  # those of some 15,000 variables that are all different
_numbers = itertools.count()


class Untraced(Exception):
    """Leaves a call of `jax.jit` for types that the program has no trace of, and under :func:`jax.disable_jit`."""


class _Pending(threading.local):
    """For the callback: the program that this thread is about to call, the trace to bind, and the states."""

    call: tuple[Program, Trace, Sequence[State]] | None = None


_pending = _Pending()


class Program:
    """One `jax.jit` function, for one structure.

    Args:
      jitted: the function under `jit` whose options it has; it is not kept.
      call: the call to start from, with the treedef of its hidden arguments, and those given by position.

    Attributes:
      keeps_places: whether arguments that are not arrays are also passed on, because options count them.
      donated, passed: positions of the states whose values go in; `inputs` are all of them, in order.
      n_leading: how many arguments there are before those of the user.
      jitted, within: the `jax.jit` function, and the one for calls within a transform, which donates no states.
      shardings: those that its trace depends on, as of a `Trace`.
      way_in: the generated function that calls it, see `_way_in`; None before there is one.
    """

    def __init__(self, jitted: Jitted, call: Call, treedef: Any, args: tuple[Any, ...], has_self: bool) -> None:
        trace = call.trace
        self.treedef = treedef
        self.structure: Structure | None = trace.structure
        self.shardings: tuple[Any, ...] | None = trace.shardings
        self.donates: bool = jitted.donates
        self.written: tuple[int, ...] = trace.written
        reads, given_away = range(trace.n_reads), trace.written if self.donates else ()
        self.donated: tuple[int, ...] = tuple([i for i in reads if i in given_away])
        self.passed: tuple[int, ...] = tuple([i for i in reads if i not in given_away])
        self.inputs: tuple[int, ...] = self.donated + self.passed
        self._has_self, self._has_instance = has_self, has_self and not is_reference(args[0])
        self.n_leading: int = len(self.inputs) + self._has_instance
        self.way_in: WayIn | None = None
        self._uses, self._due = 0, 0
        self.keeps_places = bool(jitted._jax_options)
        self._outputs: dict[int, Trace] = {}
        self._wanted: ByState | None = jitted._shardings
        pure = self._pure(jitted._fun, call)
        keywords = call.trace.arguments[1].keys()
        options_of = functools.partial(jitted.jax_options, args[has_self:], keywords, has_self, self.n_leading)
        self.jitted: Any = jax.jit(pure, **options_of(len(self.donated)))
        # A transform around keeps the states' values until it is done, and residuals for longer.
        self.within: Any = jax.jit(pure, **options_of(0)) if self.donated else self.jitted

    def _pure(self, fun: Callable[..., Any], call: Call) -> Callable[..., Any]:
        """What JAX compiles, with parameters named like the states and the arguments."""
        program = weakref.ref(self)  # so that both are freed together

        def pure(*args: Any, **kwargs: Any) -> Any:
            pending = _pending.call
            if is_jit_disabled() or pending is None or pending[0] is not program():
                raise Untraced
            return pending[0].bind(*pending[1:], args, kwargs)

        pure.__name__ = pure.__qualname__ = getattr(fun, "__name__", type(fun).__name__)
        args, kwargs = call.trace.arguments
        args = args[self._has_self :]
        names, rest = positional_parameters(fun)
        names = *names[self._has_self :], *[f"{rest}_{i}" for i in range(len(args))]
        own = [name for name, arg in zip(names, args, strict=False) if self.keeps_places or not is_dropped(arg)]
        instance = ["self"] if self._has_instance else []
        keywords = [key for key, arg in kwargs.items() if self.keeps_places or not is_dropped(arg)]
        states = [call.states[i] for i in self.inputs]
        kinds = [getattr(state, "_kind", type(state)).__name__.lower() for state in states]
        named = [state._name or kind for state, kind in zip(states, kinds, strict=True)]
        return name_inputs(pure, [*named, *instance, *own], keywords)

    def bind(self, trace: Trace, states: Sequence[State], args: Any, kwargs: Any) -> Any:
        """Called by JAX for types that it has not seen: re-binds the trace into JAX's own trace."""
        n = len(self.inputs)
        given = {i: self._with_sharding(value, states[i]) for i, value in zip(self.inputs, args[:n], strict=True)}
        inputs = jax.tree.leaves([given[i] for i in range(n)])
        out, written, born = trace.bind(jax.tree.leaves((args[n:], kwargs)), inputs, splice)
        written = [self._with_sharding(value, states[i]) for i, value in zip(self.written, written, strict=True)]
        if not (created := trace.created) and not trace.static_written and not trace.has_nodes:
            return out, written
        born = [self._with_sharding(value, state) for state, value in zip(created, born, strict=True)]
        number = next(_numbers)
        self._outputs[number] = trace
        return out, {number: (written, born)}

    def _with_sharding(self, value: Any, state: State) -> Any:
        """A state's value with the sharding that the user wants for it; a copy where a cell is written in place."""
        if state._is_in_place:
            value = jax.numpy.copy(value)
        if self._wanted is None or (sharding := self._wanted.of(state)) is None:
            return value
        mesh = jax.sharding.get_abstract_mesh() if isinstance(sharding, jax.P) else getattr(sharding, "mesh", None)
        check_sharding("jit: `state_shardings`", state, value, sharding, mesh)
        is_explicit = jax.sharding.AxisType.Explicit in getattr(mesh, "axis_types", ())
        place = jax.sharding.reshard if is_explicit else jax.lax.with_sharding_constraint
        return jax.tree.map(lambda leaf: place(leaf, sharding), value)

    def match(self, roots: Sequence[Any]) -> list[State] | None:
        """The states that it has to do with; None when the structure is another."""
        return None if self.structure is None else self.structure.match(roots)

    def is_for(self, states: Sequence[State], arguments: Any) -> bool:
        """Whether the arguments and the states are where the trace takes them to be; those around depend on that."""
        if self.shardings is None:
            return True
        depend_on_shardings()
        leaves = jax.tree.leaves((arguments, look_at_all(states[: len(self.inputs)])))
        return self.shardings == tuple(map(sharding_of, leaves))

    def takes(self, trace: Trace) -> bool:
        """Whether a trace for other types, that fits the same objects, says the same of them and of the states."""
        own = len(self.inputs), self.written, self.shardings
        if self.structure is None or own != (trace.n_reads, trace.written, trace.shardings):
            return False
        return trace.structure is not None and self.structure.is_equal(trace.structure)

    def jitted_for(self, method: str) -> Callable[..., Any]:
        """A method of the `jax.jit` function, or the function itself for a call."""
        if method != "__call__":
            return getattr(self.jitted, method)
        return self.jitted if stack.frame is None else self.within

    def run(
        self, run: Callable[..., Any], states: Sequence[State], args: Any, kwargs: Any, call: Call | None = None
    ) -> Any:
        """Calls a method of the `jax.jit` function; `call` has the trace for these types, if it was looked for."""
        instance, args = (args[0], args[1:]) if self._has_self else (None, args)
        donated = look_at_all([states[i] for i in self.donated])
        passed = look_at_all([states[i] for i in self.passed])
        if stack.frame is not None and run is not self.within:  # a program compiled ahead of time donates
            donated = jax.tree.map(lambda leaf: leaf.copy() if _is_buffer(leaf) else leaf, donated)
        if not self.keeps_places:
            args = [arg for arg in args if not is_dropped(arg)]
            kwargs = {key: arg for key, arg in kwargs.items() if not is_dropped(arg)}
        leading = [*donated, *passed, instance] if self._has_instance else [*donated, *passed]
        before, _pending.call = _pending.call, None
        if call is not None:
            _pending.call = self, call.trace, states
        try:
            return with_large_stack(run, *leading, *args, **kwargs)
        except Exception as error:
            if not isinstance(error, Untraced):
                self.explain(error, states, (args, kwargs))
            raise
        finally:
            _pending.call = before

    def write_way_in(self, args: Any, kwargs: Any) -> None:
        """After a call that went the slow way once more: writes down the way in when that begins to pay."""
        uses = self._uses = self._uses + 1
        if self.structure is None or self._has_instance or any(self.shardings or ()):
            return
        if uses == 2:  # a large structure pays later, and one that is too large never does
            n = len(self.structure.edges)
            self._due = 0 if n > _EDGES_AT_MOST else max(2, min(n // 10, _PAYS_AFTER))
        if uses == self._due:
            self.way_in = write_way_in(self, self._has_self, args, kwargs)

    def explain(self, error: Exception, states: Sequence[State], arguments: Any) -> None:
        """Says what an error in a call has to do with buffers that were given away."""
        donated, passed = [states[i] for i in self.donated], [states[i] for i in self.passed]
        lost = [state for state in (*donated, *passed) if any(leaf.is_deleted() for leaf in _buffers(state))]
        if lost and "deleted" in str(error):  # JAX looks at them before the program starts
            error.add_note(
                f"The array that {' and '.join(map(describe, lost))} held was given to another program before this "
                "call (`donate_states=True`, or `donate_argnums`), together with the state or variable that shared it. "
                "Write the state again, and share a copy next time: `target.value = jnp.copy(online.value)`."
            )
        elif not self.donates:
            return
        elif lost:
            error.add_note(
                f"The buffers of {', '.join(map(describe, lost))} were given to this program (`donate_states=True`), "
                "which failed while it ran, so the values are lost. Write the states again before they are read, or "
                "compile without `donate_states`."
            )
        else:
            _refuse_shared_buffers(error, donated, passed, arguments)

    def finish(self, states: Sequence[State], results: Any, roots: Sequence[Any]) -> Any:
        """Stores what came back from the compiled function, and returns its output."""
        out, written = results
        if type(written) is not dict:
            if written:
                leave(zip([states[i] for i in self.written], written, strict=True))
            return out
        ((number, (written, born)),) = written.items()
        trace = self._outputs[number]
        objects = trace.objects_at(roots) if trace.has_nodes else []
        return Call(trace, states, [], [], objects).finish(out, written, born)


class Store(TraceCache):
    """The traces of a function under `jit` with the same options, and its programs, the one used last first.

    Its `way_in` is that of the first program.
    """

    __slots__ = ("programs", "way_in")  # beside those of the base, or each compiled call looks `way_in` up in a dict

    def __init__(self, family: Family, **options: Any) -> None:
        super().__init__(family, **options)
        self.arrange(())

    def arrange(self, programs: Sequence[Program]) -> None:
        """Sets the programs; those not used for longest go when there are too many."""
        self.programs: tuple[Program, ...] = tuple(programs)[: self._BOUND]
        way_in = self.programs[0].way_in if self.programs else None
        self.way_in: Callable[..., Any] = no_way_in if way_in is None else types.MethodType(way_in, self.programs[0])

    def known(self, treedef: Any) -> list[Program]:
        """The programs for arguments of a structure: of this function, then of others with the same code."""
        own = [program for program in self.programs if program.treedef == treedef]
        return own + [program for program in self.family.known(treedef) if program not in own]

    def use(self, program: Program) -> None:
        """Puts a program in front."""
        self.arrange([program, *[other for other in self.programs if other is not program]])

    def discard(self, trace: Trace) -> None:
        """Keeps a trace no longer, nor the programs that may have it."""
        super().discard(trace)
        gone = [program for program in self.programs if program.takes(trace)]
        for program in gone:
            self.family.discard(program)
        self.arrange([program for program in self.programs if program not in gone])

    def clear(self) -> None:
        """Forgets everything."""
        self.arrange(())
        super().clear()


def _refuse_shared_buffers(error: Exception, donated: Sequence[State], passed: Sequence[State], arguments: Any) -> None:
    """Refuses a buffer that is to be given away and that something else of the call holds, too."""
    holders: dict[int, Any] = {}
    for state in (*donated, *passed):
        for leaf in _buffers(state):
            other = holders.setdefault(id(leaf), state)
            if other is not state and other in donated:
                raise StateTraceError.donated_twice(other, describe(state)) from error
    for leaf in jax.tree.leaves(arguments):
        if (holder := holders.get(id(leaf))) is not None and holder in donated:
            raise StateTraceError.donated_twice(holder, "an argument of the call") from error


def _buffers(state: State) -> Iterable[jax.Array]:
    return filter(_is_buffer, jax.tree.leaves(read(state)))


def _is_buffer(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
