"""What `jit` compiles and keeps: programs, each for one structure of what the function gets.

A `Program` is one function made by `jax.jit`, which takes the values of the states that it uses, then the arguments.
JAX calls it back for types that it has not seen; then it binds the record that the slow path has put there, and never
traces itself. Several records may share a program, for arguments of several types; its structure has the
conditions of all of them. The output structure says which states were written.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._core.arguments import NO_SELF, Static, is_hidden, is_reference
from .._core.errors import StateTraceError, lost_in_donation
from .._core.frame import leave, read, stack
from .._core.jaxcompat import Tracer, concrete_array, is_jit_disabled
from .._core.match import Structure, Writer
from .._core.stage import Call, Record
from .._core.state import State
from .._core.structure import same_plain

_numbers = itertools.count()
_UNROLL_AT_MOST = 20_000  # edges


class Untraced(Exception):
    """Leaves a trace of `jax.jit` for types that the program has no record of."""


class Disabled(Exception):
    """Leaves a call of `jax.jit` under :func:`jax.disable_jit`: JAX calls the function then, with values."""


class _Pending(threading.local):
    """The record that the callback is to bind, for the program that this thread is about to call."""

    program: Program | None = None
    record: Any = None
    places: Any = None
    states: Any = None


_pending = _Pending()


class Program:
    """One `jax.jit` function, for one structure.

    Args:
      fun: the function, for its name.
      call: the call to start from.
      treedef: the tree definition of the hidden arguments.
      has_instance: whether the first argument is an instance that is a pytree.
      donates: whether the buffers of written states are given to the program.
      keeps_places: whether the arguments that are no arrays are passed on, too, because options count them.
      options: for `jax.jit`.
      sharding_of: the sharding of a state's value, in and out; None for a state that keeps its own.

    Attributes:
      structure: finds the states that the program has to do with.
      donated, passed: positions of the states whose values go in.
      statics: positions of static states with their values.
      targets: positions of the states written, in the plainest output.
      is_simple: whether a call through it has the passed values and one argument.
      array_type: the class of what comes out of a compiled program; known with `enter`.
      enter: the generated way in, see `generate`; None before that, False where there can be none.
      uses: how often the slow path took it.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        call: Call,
        treedef: Any,
        *,
        has_self: bool,
        has_instance: bool,
        donates: bool,
        keeps_places: bool,
        options: dict[str, Any],
        sharding_of: Callable[[State], Any] | None = None,
    ) -> None:
        record = call.record
        self.treedef = treedef
        self.structure: Structure | None = record.structure
        reads, written = range(record.n_reads), set(record.written) if donates else set()
        self.donated: tuple[int, ...] = tuple(i for i in reads if i in written)
        self.passed: tuple[int, ...] = tuple(i for i in reads if i not in written)
        self.statics = record.statics
        self.targets: tuple[int, ...] | None = None
        self.enter: Any = None
        self.is_simple = False
        self.array_type: type | None = None
        self.uses = 0
        self.donates = donates
        self._has_self, self._has_instance, self._keeps_places = has_self, has_instance, keeps_places
        self._n_states = len(call.states)
        self._outputs: dict[int, tuple[Record, tuple[int, ...]]] = {}
        self._sharding_of = sharding_of
        self.jitted: Any = jax.jit(self._pure(getattr(fun, "__name__", type(fun).__name__)), **options)

    def _pure(self, name: str) -> Callable[..., Any]:
        def pure(passed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self._bind((), passed, args, kwargs)

        def pure_donating(donated: Any, passed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self._bind(donated, passed, args, kwargs)

        if self.donates:
            pure = pure_donating
        pure.__name__ = pure.__qualname__ = name
        return pure

    def _bind(self, donated: Sequence[Any], passed: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by JAX for types that it has not seen: re-binds the record into JAX's own trace."""
        if is_jit_disabled():
            raise Disabled
        if _pending.program is not self:
            raise Untraced
        record, places, states = _pending.record, _pending.places, _pending.states
        if self._has_instance:
            passed, instance = passed
            args = (instance, *args)
        given = zip((*self.donated, *self.passed), (*donated, *passed), strict=True)
        by_place = {place: self._placed(value, states[place]) for place, value in given}
        inputs = jax.tree.leaves([by_place[places[i]] for i in range(record.n_reads)])
        out, written, born = record.bind(jax.tree.leaves((args, kwargs)), inputs)
        targets = tuple(places[i] for i in record.written)
        written = [self._placed(value, states[i]) for i, value in zip(targets, written, strict=True)]
        if record.is_plain and self.targets in (None, targets):
            self.targets = targets
            return out, written
        number = next(_numbers)
        self._outputs[number] = record, places
        return out, {number: (written, born)}

    def _placed(self, value: Any, state: State) -> Any:
        """A state's value with the sharding that the user wants for it."""
        sharding = None if self._sharding_of is None else self._sharding_of(state)
        return value if sharding is None else jax.tree.map(lambda leaf: _with_sharding(leaf, sharding), value)

    def match(self, roots: Sequence[Any]) -> list[State] | None:
        """The states that it has to do with; None when the structure or a static state is another."""
        if self.structure is None:
            return None
        states = self.structure.match(roots)
        if states is None or any(not same_plain(read(states[i]), value) for i, value in self.statics):
            return None
        return states

    def accept(self, call: Call, states: list[State], roots: Sequence[Any]) -> list[State] | None:
        """Takes in a record for other types, if it does with the values that go in; gives the states."""
        record = call.record
        if record.structure is None or self.structure is None:
            return None
        place = {state: i for i, state in enumerate(states)}
        reads = [place.get(state) for state in call.states[: record.n_reads]]
        inputs = {*self.donated, *self.passed}
        if not inputs.issuperset(reads) or {place.get(call.states[i]) for i, _ in record.statics} - {
            i for i, _ in self.statics
        }:
            return None
        if self.donates and set(self.donated) != {*reads} & {place.get(call.states[i]) for i in record.written}:
            return None
        structure = self.structure.merged(record.structure, roots)
        extra = [state for state in call.states if state not in place]
        if extra:
            structure = structure.with_states(extra, roots)
        self.structure = structure
        self.enter = None if self.enter is not False else False
        return [*states, *extra]

    def places_of(self, call: Call, states: list[State]) -> tuple[int, ...]:
        """For each position of a call's record, the position here."""
        place = {state: i for i, state in enumerate(states)}
        return tuple(place[state] for state in call.states)

    def run(self, method: str, states: Sequence[State], args: Any, kwargs: Any, call: Call | None = None) -> Any:
        """Calls a method of the `jax.jit` function; `call` has the record for these types, if it was looked for."""
        instance, args = (args[0], args[1:]) if self._has_self else (None, args)
        donated = [read(states[i]) for i in self.donated]
        passed: Any = [read(states[i]) for i in self.passed]
        if stack.frame is not None and donated:  # the states keep their values until the transform around is done
            donated = jax.tree.map(_copy, donated)
        if self._has_instance:
            passed = (passed, instance)
        if not self._keeps_places:
            args = [arg for arg in args if not _is_dropped(arg)]
            kwargs = {key: arg for key, arg in kwargs.items() if not _is_dropped(arg)}
        leading = (donated, passed) if self.donates else (passed,)
        before = _pending.program, _pending.record, _pending.places, _pending.states
        if call is None:
            _pending.program = None
        else:
            _pending.program, _pending.record = self, call.record
            _pending.places, _pending.states = self.places_of(call, list(states)), states
        try:
            return getattr(self.jitted, method)(*leading, *args, **kwargs)
        finally:
            _pending.program, _pending.record, _pending.places, _pending.states = before

    def explain(self, error: Exception, states: Sequence[State]) -> None:
        """Says what an error in a call that gives buffers away has to do with the states."""
        donated, passed = [states[i] for i in self.donated], [states[i] for i in self.passed]
        leaves = lambda state: filter(_is_buffer, jax.tree.leaves(read(state)))
        if lost := [state for state in donated if any(leaf.is_deleted() for leaf in leaves(state))]:
            error.add_note(lost_in_donation(lost))
            return
        holders: dict[int, Any] = {}
        for state in (*donated, *passed):
            for leaf in leaves(state):
                other = holders.setdefault(id(leaf), state)
                if other is not state and other in donated:
                    raise StateTraceError.donated_twice(other, state) from error

    def finish(self, states: Sequence[State], results: Any, objects_at: Callable[[Record], list[Any]]) -> Any:
        """Stores what came back from the compiled function, and returns its output."""
        out, written = results
        if type(written) is not dict:
            if written:
                assert self.targets is not None
                leave(zip([states[i] for i in self.targets], written, strict=True))
            return out
        ((number, (written, born)),) = written.items()
        record, places = self._outputs[number]
        call = Call(record, [states[i] for i in places], [], [], objects_at(record) if record.has_nodes else [])
        return call.finish(out, written, born)

    def generate(self, has_self: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Writes the way in: `enter(fun, obj, args, kwargs)` gives what the call needs, or None for another structure.

        That is: `(donated values, passed values, targets, arguments, keyword arguments)`, the first only where
        states are donated, the last only where there are some, and a single argument without a tuple around it.

        Args:
          has_self: whether the first of `args` is an instance.
          args, kwargs: hidden arguments of one call.
        """
        self.enter = False
        structure = self.structure
        if structure is None or self._has_instance or structure.may_refuse() or len(structure.edges) > _UNROLL_AT_MOST:
            return
        lines, rest, rest_kw = _Lines(), [], []
        roots = ["fun"]
        if has_self:
            roots.append("obj")
            args = args[1:]
        else:
            lines.append("if obj is not NO_SELF: return None")
        lines.append(f"if len(args) != {len(args)}: return None")
        lines.append(f"if len(kwargs) != {len(kwargs)}: return None" if kwargs else "if kwargs: return None")
        for i, arg in enumerate(args):
            text = lines.argument(f"args[{i}]", arg, roots)
            if text is None:
                return
            if self._keeps_places or not _is_dropped(arg):
                rest.append(text)
        for key in sorted(kwargs):
            text = lines.argument(f"kwargs[{key!r}]", kwargs[key], roots)
            if text is None:
                return
            if self._keeps_places or not _is_dropped(kwargs[key]):
                rest_kw.append(f"{key!r}: {text}")
        writer = Writer(structure, roots)
        writer.lines[:0] = lines
        writer.names.update(lines.names, NO_SELF=NO_SELF)
        register = structure.states
        for i, value in self.statics:
            name = writer.constant(value)
            writer.lines.append(f"x = r{register[i]}._value")
            writer.leave_if(f"x is not {name} and not same_plain(x, {name})")
        values = lambda places: f"[{', '.join(f'r{register[i]}._value' for i in places)}]"
        parts = [values(self.donated)] if self.donates else []
        parts.append(values(self.passed))
        parts.append(f"({''.join(f'r{register[i]}, ' for i in self.targets or ())})")
        is_single = len(rest) == 1 and not rest_kw
        parts.append(rest[0] if is_single else f"({''.join(f'{text}, ' for text in rest)})")
        if rest_kw:
            parts.append(f"{{{', '.join(rest_kw)}}}")
        self.shape = self.donates, is_single, bool(rest_kw)
        self.is_simple = self.shape == (False, True, False)
        self.array_type = concrete_array()
        self.enter = writer.compile("fun, obj, args, kwargs", f"return {', '.join(parts)}")


class _Lines(list[str]):
    """Lines that check the arguments of a call, and the names that they use."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, Any] = {"same_plain": same_plain}

    def constant(self, value: Any) -> str:
        """A name for an object."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def argument(self, given: str, hidden: Any, roots: list[str]) -> str | None:
        """Checks one argument; gives the expression for what JAX is to get, None where it cannot be written down."""
        if not any(map(is_hidden, jax.tree.leaves(hidden, is_leaf=is_hidden))):
            return given
        if is_reference(hidden):
            roots.append(given)
            return self.constant(hidden)
        if isinstance(hidden, Static):
            value = self.constant(hidden.value)
            self.append(f"if {given} is not {value} and not same_plain({given}, {value}): return None")
            return self.constant(hidden)
        kind = type(hidden)
        if kind not in (list, tuple, dict):
            return None
        self.append(f"if type({given}) is not {kind.__name__} or len({given}) != {len(hidden)}: return None")
        if kind is dict:
            if not all(type(key) in (str, int) for key in hidden):
                return None
            inner = {key: self.argument(f"{given}[{key!r}]", hidden[key], roots) for key in sorted(hidden)}
            return None if None in inner.values() else f"{{{', '.join(f'{k!r}: {v}' for k, v in inner.items())}}}"
        items = [self.argument(f"{given}[{i}]", child, roots) for i, child in enumerate(hidden)]
        if None in items:
            return None
        text = "".join(f"{item}, " for item in items)
        return f"[{text}]" if kind is list else f"({text})"


def _with_sharding(leaf: Any, sharding: Any) -> Any:
    mesh = getattr(sharding, "mesh", None)
    is_explicit = jax.sharding.AxisType.Explicit in getattr(mesh, "axis_types", ())
    return jax.sharding.reshard(leaf, sharding) if is_explicit else jax.lax.with_sharding_constraint(leaf, sharding)


def _is_dropped(arg: Any) -> bool:
    """Whether an argument has nothing for JAX: static values and objects only."""
    leaves = jax.tree.leaves(arg, is_leaf=is_hidden)
    return bool(leaves) and all(map(is_hidden, leaves))


def _is_buffer(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _copy(leaf: Any) -> Any:
    return leaf.copy() if _is_buffer(leaf) else leaf
