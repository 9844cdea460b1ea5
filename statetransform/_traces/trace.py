"""What is kept of a trace.

A `Trace` knows positions and no objects, so it serves all objects of the structure that it was traced for: it numbers
the states in use, those read first. A `Call` is a trace together with the states that one call has found.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from .._base.errors import StateTraceError
from .._jax import emptied, eval_jaxpr, has_inner_consts, has_rule, has_tracer, run_of_caches, typeof
from .._states.frame import leave, look_at_all, read
from .._states.state import State
from .._uses.recorder import Recorder
from .._uses.structure import Mismatch, Structure
from .arguments import reveal
from .outcome import Outcome, with_static
from .shardings import sharding_of

StagedFrame: TypeAlias = Any  # the one of `stage`, which imports this module


class Trace:
    """One trace of a function: a jaxpr from arguments and states read to results.

    Positions count the states in use; the first `len(read_trees)` of them are read.

    Attributes:
      arguments: `(args, kwargs)` that it was traced for, with abstract values as leaves.
      read_tree, read_avals: the tree definition of the list of the values read, and the abstract values of its leaves.
      written: the positions of the written states, in the order of their values.
      sites: where each of them was written.
      static_written, statics: positions with values that the trace wrote, or took for granted.
      static_born: the values of static states that a call makes, by their position among these.
      constants: positions of states left out of the lift, with the leaves that the trace took for granted.
      out_tree: the tree definition of the results.
      born_at: which of the objects in the output are states that the call makes.
      structure: of the objects that it serves; None when it serves one call only.
      shardings: those of the leaves of its arguments and of the states read; None if it does not depend on them.
      fitting: names of the loops whose carry was checked against this trace.
      holds_arrays: whether it may keep an array alive.
      programs: compiled loops and branches whose first function has this trace, by their options.
    """

    def __init__(
        self,
        frame: StagedFrame,
        outcome: Outcome,
        arguments: Any,
        jaxpr: Any,
        consts: Any,
        out_tree: Any,
        over: Sequence[Callable[[], Any]],
    ) -> None:
        self.arguments: Any = arguments
        self.jaxpr: Any = jaxpr
        self._consts: Any = consts
        self.out_tree: Any = out_tree
        self.n_reads: int = len(frame.reads)
        self.read_tree: Any = jax.tree.structure([treedef.unflatten(avals) for treedef, avals in frame.reads.values()])
        self.read_avals: tuple[Any, ...] = tuple([aval for _, avals in frame.reads.values() for aval in avals])
        others = [*outcome.written, *frame.statics, *[s for s, _ in outcome.static_written], *frame.constants]
        #: The states of the call that traced, until that is made.
        self.states: list[State] = list(dict.fromkeys([*frame.reads, *others]))
        position = {state: i for i, state in enumerate(self.states)}
        self.written: tuple[int, ...] = tuple([position[state] for state in outcome.written])
        self.sites: dict[int, Any] = {position[s]: site for s, site in outcome.sites.items() if s in position}
        self.static_written: list[tuple[int, Any]] = [(position[s], value) for s, value in outcome.static_written]
        self.statics: list[tuple[int, Any]] = [(position[s], value) for s, value in frame.statics.items()]
        self.constants: list[tuple[int, list[Any]]] = [(position[s], xs) for s, xs in frame.constants.items()]
        self.has_nodes: bool = outcome.has_nodes
        self.is_closed: bool = outcome.is_closed and frame.is_kept
        self._firsts: list[list[State]] = [outcome.born]
        self._blanks = [state._blank() for state in outcome.born]
        self.static_born: dict[int, Any] = outcome.static_born
        births = {id(state): i for i, state in enumerate(outcome.born)}
        self.born_at: dict[int, int] = {k: births[id(x)] for k, x in enumerate(outcome.objects) if id(x) in births}
        self.objects: list[Any] | None = outcome.objects  # of the call that traced, as `states`
        self._registers: list[int] = []  # of the objects in the output
        self.structure: Structure | None = None
        self.shardings: tuple[Any, ...] | None = None
        self.fitting: set[str] = set()
        self.programs: dict[Any, Any] = {}
        self.holds_arrays = True
        self._run = run_of_caches.value
        self._owners: list[Any] = []
        #: JAX's traces, which are over; one that is alive has left a tracer behind.
        self.over: Sequence[Callable[[], Any]] = over

    def is_current(self, run: int | None) -> bool:
        """False if JAX may have kept the result of a derivative rule in this jaxpr from before the present run.

        JAX runs a rule that it finds in a jaxpr once. A rule that reads a state in a raw transform makes a constant of
        its value, so a result that is kept could contain an old one.
        """
        return self._run == run or not self._has_rule

    @functools.cached_property
    def _has_rule(self) -> bool:
        return has_rule(self.jaxpr)

    @property
    def created(self) -> list[State]:
        """The states that a call makes; not those of any particular call."""
        return list(self._firsts[0] if self._firsts else self._blanks)

    @functools.cached_property
    def out_avals(self) -> Any:
        """The abstract values of the results, in their structure."""
        return self.out_tree.unflatten([var.aval for var in self.jaxpr.outvars])

    def values(self, states: Sequence[State], is_new: bool = False) -> list[Any] | None:
        """The current leaves of the states read, or None when the trace does not fit their types.

        A new trace has the constants of this call. They are not compared: each read of a `jax.Ref` is another array.
        """
        leaves, treedef = jax.tree.flatten(look_at_all(states[: self.n_reads]))
        if treedef != self.read_tree:
            return None
        for leaf, aval in zip(leaves, self.read_avals, strict=True):
            if (now := typeof(leaf)) is not aval and now != aval:
                return None
        for i, constant in () if is_new else self.constants:
            leaves_now = jax.tree.leaves(read(states[i]))
            if len(leaves_now) != len(constant) or any(a is not b for a, b in zip(leaves_now, constant, strict=True)):
                return None
        return leaves

    def is_for(self, leaves: Sequence[Any], values: Sequence[Any]) -> bool:
        """Whether the leaves of the arguments and of the states are where the trace takes them to be."""
        return self.shardings is None or self.shardings == tuple(map(sharding_of, [*leaves, *values]))

    @property
    def consts(self) -> Any:
        """The values of the jaxpr's constant variables, once the trace was found to fit."""
        return [const() if isinstance(const, weakref.ref) else const for const in self._consts]

    def let_go(self) -> None:
        """Holds its constants weakly where each match finds them."""
        assert self.structure is not None
        found = self.structure.arrays()
        self._consts = [found.get(id(const), const) for const in self._consts]
        self.jaxpr = emptied(self.jaxpr)
        self.holds_arrays: bool = any(isinstance(const, jax.Array) for const in self._consts) or has_inner_consts(
            self.jaxpr
        )

    def bind(self, arguments: list[Any], values: list[Any], run: Callable[..., Any] = eval_jaxpr) -> Any:
        """Runs the jaxpr: results from the leaves of the arguments and of the states read."""
        return self.out_tree.unflatten(run(self.jaxpr, self.consts, *arguments, *values))

    def allow_reuse(self, structure: Structure, recorder: Recorder) -> None:
        """Has the trace serve all objects of a structure, unless it has to do with something besides."""
        held = [*self.consts, *[leaf for _, leaves in self.constants for leaf in leaves]]
        if not self.is_closed or (held and has_tracer(held)):
            return
        registers = [recorder.register_of(obj) for obj in self.objects or ()]
        if self.born_at.keys() >= {k for k, found in enumerate(registers) if found is None}:
            self.structure, self._registers = structure, [-1 if found is None else found for found in registers]

    def expires_with(self, roots: Sequence[Any], *forget: Callable[[], Callable[[Trace], None] | None]) -> None:
        """Has the trace forgotten when an object dies whose arrays are constants of the trace.

        The trace holds these arrays, so it would keep alive what nobody else can reach.

        Args:
          roots: the function and the objects among its arguments.
          *forget: weak references to what forgets a trace.
        """
        assert self.structure is not None
        try:
            owners = self.structure.owners_of_arrays(roots)
        except Mismatch:  # a callback of the program has changed one of the objects; no later call will have this trace
            return
        this = weakref.ref(self)

        def died(_: Any) -> None:
            for drop in [drop() for drop in forget]:
                if (trace := this()) is not None and drop is not None:
                    drop(trace)

        self._owners += [weakref.ref(owner, died) for owner in owners]

    def objects_at(self, roots: Sequence[Any]) -> list[Any]:
        """The objects that stand in the output of a call, with anything in the places of states that it makes."""
        if self.objects is not None:
            return self.objects
        if max(self._registers, default=-1) < 0:
            return self._registers
        assert self.structure is not None
        try:
            found = self.structure.registers_at(roots)
        except Mismatch:
            raise StateTraceError(
                "an object in the result cannot be found: while the program ran, a callback or another thread changed "
                "an attribute or item that leads to it.\nLet the callback change a `State` instead."
            ) from None
        return [found[i] for i in self._registers]

    def new_states(self) -> list[State]:
        """The states that one call makes, without their values."""
        if not self._blanks:
            return []
        try:
            return self._firsts.pop()
        except IndexError:
            return [blank._blank() for blank in self._blanks]


class Call:
    """One call of a function through its trace.

    Attributes:
      trace: the trace.
      states: the states in use, by position.
      leaves: those of the arguments.
      values: the leaves of the states read.
      objects: those that stand in the output.
      leading: the instance of a method, as an argument that comes in front of those that `apply` is given.
    """

    __slots__ = ("__weakref__", "leading", "leaves", "objects", "states", "trace", "values")

    def __init__(
        self, trace: Trace, states: Sequence[State], leaves: list[Any], values: list[Any], objects: list[Any]
    ) -> None:
        self.trace: Trace = trace
        self.states: Sequence[State] = states
        self.leaves: list[Any] = leaves
        self.values: list[Any] = values
        self.objects: list[Any] = objects
        self.leading: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        made = f", {len(self.created)} created" if self.created else ""
        states = f"{len(self.reads)} states read, {len(self.written)} written{made}"
        return f"<trace of {len(self.in_avals)} inputs: {states}>"

    @property
    def reads(self) -> list[State]:
        """The states read, in the order of their inputs."""
        return list(self.states[: self.trace.n_reads])

    @property
    def written(self) -> list[State]:
        """The states written, in the order of their values."""
        return [self.states[i] for i in self.trace.written]

    @property
    def created(self) -> list[State]:
        """The states that a call makes; not those of any particular call."""
        return self.trace.created

    @property
    def jaxpr(self) -> Any:
        """The jaxpr, from the arguments' leaves and the values read to the results."""
        return self.trace.jaxpr

    @property
    def consts(self) -> Any:
        """The values of the jaxpr's constant variables."""
        return self.trace.consts

    @property
    def in_avals(self) -> list[Any]:
        """The abstract values of the inputs: the arguments' leaves, then those of the states read."""
        return [var.aval for var in self.trace.jaxpr.invars]

    @property
    def out_avals(self) -> Any:
        """The abstract values of the results, in their structure."""
        return self.trace.out_avals

    @property
    def written_avals(self) -> dict[State, Any]:
        """The abstract values of the written states afterwards."""
        return dict(zip(self.written, self.out_avals[1], strict=True))

    @property
    def sites(self) -> dict[State, Any]:
        """Where each written state was written."""
        return {self.states[i]: site for i, site in self.trace.sites.items()}

    def apply(self, args: Any, kwargs: Any, values: Mapping[State, Any]) -> Any:
        """Runs the jaxpr with the values of the states by state, of at least those read."""
        inputs = jax.tree.leaves([values[state] for state in self.reads])
        return self.trace.bind(jax.tree.leaves(((*self.leading, *args), kwargs)), inputs)

    def run(self) -> Any:
        """Binds the jaxpr, leaves the states to whoever is outside and returns the output."""
        return self.finish(*self.trace.bind(self.leaves, self.values))

    def finish(self, out: Any, written: Sequence[Any], born: Sequence[Any]) -> Any:
        """Leaves the states to whoever is outside and returns the output; once for each call."""
        trace, states = self.trace, self.states
        new_states = trace.new_states()
        pairs = [(states[i], value) for i, value in zip(trace.written, written, strict=True)]
        pairs += [(states[i], value) for i, value in trace.static_written]
        leave(pairs, zip(new_states, with_static(born, trace.static_born), strict=True), self.sites)
        if not trace.has_nodes:
            return out
        objects = [new_states[trace.born_at[k]] if k in trace.born_at else obj for k, obj in enumerate(self.objects)]
        return reveal(out, objects)
