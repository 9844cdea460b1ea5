"""What `jit` compiles and keeps: one `jax.jit` function per set of states, found again by the next call."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax

from .._core.arguments import Static, WeakIdDict, identity
from .._core.errors import StateTraceError, lost_in_donation
from .._core.frame import Frame, leave, read, stack
from .._core.guard import Guard
from .._core.jaxcompat import Tracer, concrete_array, is_jit_disabled
from .._core.log import TraceLog
from .._core.outcome import Layout
from .._core.stage import Record, signature_of, states_of, trace

_layout_numbers = itertools.count()
FastPath = tuple[Any, ...]


class Restage(Exception):
    """Leaves a trace of `jax.jit` whose inputs lack a state that the function uses."""

    def __init__(self, record: Record) -> None:
        super().__init__("the states used are not the states passed")
        self.record = record


class Disabled(Exception):
    """Leaves a call of `jax.jit` under :func:`jax.disable_jit`: JAX calls the function then, with values."""


class Entry:
    """One `jax.jit` function, and the states whose values it takes before the arguments.

    Args:
      fun: gives the function, if it is still there.
      donates: whether the buffers of written states are given away.
      options: for `jax.jit`.
      roots: the function, and the objects among its arguments.
      record: the trace to start from.
      log: takes the traces.
    """

    def __init__(
        self,
        fun: Callable[[], Any],
        donates: bool,
        options: dict[str, Any],
        roots: Sequence[Any],
        record: Record,
        log: TraceLog,
    ) -> None:
        self._log = log
        self.pending: Record | None = record
        self.guard: Guard = Guard(roots, states_of(record))
        reads = record.read_tokens
        written = set(record.layout.written) if donates else set()
        self.tokens: dict[str, list[Any]] = {
            "donated": [token for token in reads if token in written],
            "passed": [token for token in reads if token not in written],
            "static": [token for token, _ in record.statics],
        }
        self.pick: dict[str, Callable[[list[Any]], Sequence[Any]]] = {
            group: self.picker(tokens) for group, tokens in self.tokens.items()
        }
        self.first: Callable[[Any], Any] | None = None  # picks the states of the first plain layout
        self.first_written: tuple[Any, ...] | None = None
        self.layouts: dict[int, tuple[Layout, Callable[[Any], Any]]] = {}
        self._fun = fun
        self._donates = donates
        self._instance: Any = None
        name = getattr(fun(), "__name__", type(fun()).__name__)
        self.jitted: Any = jax.jit(self._pure(name), **options)

    def _pure(self, name: str) -> Callable[..., Any]:
        def pure(passed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.trace((), passed, args, kwargs)

        def pure_donating(donated: Any, passed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.trace(donated, passed, args, kwargs)

        if self._donates:
            pure = pure_donating

        pure.__name__ = pure.__qualname__ = name
        return pure

    def picker(self, tokens: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """Selects the states of some tokens out of all that the guard found."""
        position = {token: i for i, token in enumerate(self.guard.tokens)}
        positions = [position[token] for token in tokens]
        if positions == list(range(len(position))):
            return lambda states: states
        if len(positions) > 1:
            return itemgetter(*positions)
        return lambda states: [states[i] for i in positions]

    def inputs(self, states: list[Any], instance: Any) -> tuple[Any, ...]:
        """The leading arguments. Mostly there are only values to pass, as on the hot path."""
        donated, passed, static = (
            [read(state) for state in self.pick[group](states)] for group in ("donated", "passed", "static")
        )
        if self.is_simple and not _has_leaves(instance):
            self._instance = instance
            return (passed,)
        leading = (passed, Static(tuple(static)), instance)
        if stack.frame is not None:  # the states keep their values until the transform around is done
            donated = jax.tree.map(_copy, donated)
        return (donated, leading) if self._donates else (leading,)

    def explain(self, error: Exception, states: list[Any]) -> None:
        """Says what an error in a call that gives buffers away has to do with the states."""
        donated, passed = (self.pick[group](states) for group in ("donated", "passed"))
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

    @property
    def is_simple(self) -> bool:
        """Whether no state is donated or static."""
        return not self._donates and not self.tokens["static"]

    def trace(self, donated: Any, passed: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by JAX for a signature that it has not seen: one trace, re-bound into JAX's own."""
        if is_jit_disabled():
            raise Disabled
        static, instance = (), self._instance
        if isinstance(passed, tuple):
            passed, static, instance = passed[0], passed[1].value, passed[2]
        if instance is not None:
            args = (instance, *args)
        with Frame() as frame:
            for group, values in (("donated", donated), ("passed", passed), ("static", static)):
                for token, value in zip(self.tokens[group], values, strict=True):
                    frame.seed(token.get(), value)  # type: ignore[arg-type]
            leaves, record, values = self._record(args, kwargs)
            out, written, born = record.bind(leaves, values)
        pick = self.picker(record.layout.written)
        if record.layout.is_plain and self.first_written in (None, record.layout.written):
            self.first, self.first_written = pick, record.layout.written
            return out, written
        number = next(_layout_numbers)
        self.layouts[number] = record.layout, pick
        return out, {number: (written, born)}

    def _record(self, args: Any, kwargs: Any) -> tuple[list[Any], Record, list[Any]]:
        leaves = jax.tree.leaves((args, kwargs))
        record, values = self.pending, None
        if record is not None and record.signature == signature_of((args, kwargs)):
            self.pending = None
            values = record.values()
        if record is None or values is None:
            record = trace(self._fun(), args, kwargs)
            self._log.add(record)
            values = record.values()
        if values is None or not self.fits(record, self._donates):
            raise Restage(record)
        return leaves, record, values

    def fits(self, record: Record, donates: bool) -> bool:
        """Whether this entry passes what a trace needs, and donates nothing that it does not give back."""
        donated, passed, static = (set(self.tokens[group]) for group in ("donated", "passed", "static"))
        reads, written = set(record.read_tokens), set(record.layout.written)
        return (
            reads <= donated | passed
            and {token for token, _ in record.statics} <= static
            and written <= set(self.guard.tokens)
            and (not donates or donated == reads & written)
        )

    def finish(self, states: list[Any], results: Any) -> Any:
        """Stores what came back from the compiled function, and returns its output.

        The first plain layout needs no number: its values come back as a mere list.
        """
        out, written = results
        if type(written) is dict:
            ((number, (written, born)),) = written.items()
            layout, pick = self.layouts[number]
            if not layout.is_plain:
                return layout.finish(out, written, born)
        else:
            pick = self.first
        if written:
            assert pick is not None
            leave(zip(pick(states), written, strict=True))
        return out


def fast_path(entry: Entry, expected: list[Any]) -> FastPath:
    """What a call needs of a function without static arguments and donated states, and no more.

    The states are held, to compare them with those found without a detour. So this goes when the instance
    dies, and is of no use once other states are found.
    """
    position = {token: i for i, token in enumerate(entry.guard.tokens)}
    find = entry.guard.values_finder(expected, [position[token] for token in entry.tokens["passed"]])
    targets = entry.first(expected) if entry.first is not None else ()
    return entry, find, expected, entry.jitted, targets, concrete_array()


class Family:
    """The entries for one function and the same objects: one, unless signatures use different states."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._hints: dict[Any, Entry] = {}

    def choose(
        self, roots: Sequence[Any], hint: Any, record: Record | None, donates: bool
    ) -> tuple[Entry | None, list[Any]]:
        """The entry to try, and its states.

        Args:
          roots: where guards start.
          hint: the arguments' types; only makes a good guess likely, a wrong one traces again.
          record: a trace that the entry must fit, if there is one already.
          donates: whether the fit must be exact.
        """
        self.entries = [entry for entry in self.entries if entry.guard.is_alive]
        found = [(entry, entry.guard.resolve(roots)) for entry in self.entries]
        usable = [(entry, states) for entry, states in found if states is not None]
        if record is None:
            preferred = self._hints.get(hint)
            usable.sort(key=lambda pair: pair[0] is not preferred)
        else:
            usable = [pair for pair in usable if pair[0].fits(record, donates)]
            for entry, _ in usable[:1]:
                entry.pending = record
                self._hints[hint] = entry
        return usable[0] if usable else (None, [])

    def add(self, entry: Entry, roots: Sequence[Any], hint: Any) -> tuple[Entry, list[Any]]:
        """A new entry, to be used for these arguments from now on."""
        self.entries.append(entry)
        self._hints[hint] = entry
        return entry, entry.guard.resolve(roots) or []


class Store:
    """What is compiled for one function with the same options.

    Attributes:
      fun: gives the function; weakly, as the store lives as long as the function.
      families: the entries, by the tokens of the objects among the arguments.
      fast: what a call of a method needs, by the identity of the instance.
      plain: what a call without an instance needs.
      log: the traces.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        try:
            self.fun: Callable[[], Any] = weakref.ref(fun)
        except TypeError:
            self.fun = lambda: fun
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.families: dict[Any, Family] = {}
        self.fast: dict[int, FastPath] = {}
        self.plain: FastPath | None = None
        self.log = TraceLog()


_stores = WeakIdDict()  # function -> options -> Store


def store_of(fun: Callable[..., Any], options: Any) -> Store:
    """The store for a function: as in JAX, a wrapper that is made anew finds what the last one compiled."""
    stores = _stores.get(fun)
    if stores is None:
        stores = {}
        _stores.set(fun, stores)
    try:
        return stores.setdefault(options, Store(fun))
    except TypeError:  # options that cannot be hashed
        return Store(fun)


def when_gone(obj: Any, store: Store, key: Any) -> None:
    """Lets go of what was compiled for an object when the object dies."""
    store_ref, address = weakref.ref(store), identity(obj)

    def forget() -> None:
        if (store := store_ref()) is not None:
            store.families.pop(key, None)
            store.fast.pop(address, None)

    with contextlib.suppress(TypeError):  # an object without weak references is kept alive by its token
        weakref.finalize(obj, forget).atexit = False


def _has_leaves(tree: Any) -> bool:
    return bool(jax.tree.leaves(tree))


def _is_buffer(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _copy(leaf: Any) -> Any:
    return leaf.copy() if _is_buffer(leaf) else leaf
