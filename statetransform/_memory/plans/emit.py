"""From a plan to programs: the forward pass with what it keeps, and the backward pass with its recomputation.

Where the backward pass begins to compute something again, an `optimization_barrier` keeps the order. It ties what was
made since the last one to what is read up to the next one. So nothing that is behind it can run before it or be merged
with what was computed before, and nothing that is before it can run later. Values that only wait are left alone: each
operand costs compile time in every barrier that it goes through. Between two barriers compilers order the runs as they
like, so there are more where much is alive, and where the plan has no room for another order.

In the forward pass each cheap value that is read behind a later product, such as the sum along a stack of layers, gets
a barrier of its own. Otherwise compilers compute it again where it is read, and hold what it is made of up to there.
For a compiler that removes barriers see `barriers`.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax
from ..programs.primitives import Kind, kind_of
from . import cost
from .barriers import behind, has_number, keeps_barriers, tied
from .graph import Graph
from .joint import Joint
from .pools import is_unpooled, unpooled
from .simulate import lifetimes, profile, split_of

# Where much is alive there is a barrier before each run, or in long plans before every few, as each costs compile time:
# the same step compiles to other bytes in another program where compilers have a choice.
_BARRIERS = 200
_MUCH = 0.5  # of the most bytes
_DRAWN = 16  # times the bytes that a node reads: if it makes more, it is taken for one that draws random numbers
# These compute equal numbers where they use them.
_READS_NUMBERS = cost.VIEWS | cost.ELEMENTWISE | cost.REDUCTIONS


class Emitted:
    """A plan as two functions.

    Args:
      joint: what was planned.
      sequence: the plan.

    Attributes:
      kept: the values that the forward pass hands to the backward pass, by number.
    """

    def __init__(self, joint: Joint, sequence: Sequence[int]) -> None:
        self._joint, self._sequence = joint, list(sequence)
        self._split = split_of(joint.graph, sequence)
        lives = lifetimes(joint.graph, sequence)
        s = self._split
        used = set(_needed_later(joint.graph, self._sequence[s:]))
        used |= {v for a in joint.gradients for v in _values_of(joint, a) if v not in _made(joint.graph, sequence[s:])}
        self.kept: list[int] = sorted({v for v, first, _ in lives if first < s and v in used})
        kept = {joint.variables[v] for v in self.kept}  # as they are: the backward pass begins with them
        self._lives, self._forms = lives, {var: form for var, form in _forms(joint).items() if var not in kept}
        self._ends = _only_for_scalars(joint, sequence[:s], {*self.kept})
        # Where loops are in the place of barriers, they cost more, and what is given would be copied for them.
        self._has_loops = not keeps_barriers()
        self._live = profile(joint.graph, sequence)

    def forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs, and what is kept."""
        run = _Run(self._joint, inputs, (), self._forms, self._lives)
        outputs = self._run_forward(run)
        kept = [run.env[self._joint.variables[v]] for v in self.kept]
        large = {i: x for i, x in enumerate(outputs) if jnp.shape(x)}
        if kept and not self._has_loops:
            done = tied([*large.values(), *kept])
            large, kept = dict(zip(large, done, strict=False)), done[len(large) :]
        return [large.get(i, x) for i, x in enumerate(outputs)], kept

    def backward(self, inputs: Sequence[Any], kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients."""
        joint = self._joint
        run = _Run(joint, inputs, cotangents, self._forms, self._lives)
        run.env.update({joint.variables[v]: x for v, x in zip(self.kept, kept, strict=True)})
        run.made += [joint.variables[v] for v in self.kept]
        return self._run_backward(run)

    @property
    def cost(self) -> float:
        """The operations of both passes, with what is computed where it is read."""
        counted = 0.0
        for run_pass in (self._run_forward, self._run_backward):
            run = _Count(self._joint, self._forms, self._lives)
            run.env.update(dict.fromkeys((self._joint.variables[v] for v in self.kept), 0))
            run_pass(run)
            counted += run.operations
        return counted

    def _run_forward(self, run: _Run) -> list[Any]:
        draws, apart = ({}, {}) if self._has_loops else (self._draws(), self._apart())
        for t, i in enumerate(self._sequence[: self._split]):
            if t in draws:
                run.tie(*draws[t])
            run.node(t, i)
            if t in apart:
                run.tie(apart[t], [])
        return [run.read(atom) for atom in self._joint.outputs]

    def _run_backward(self, run: _Run) -> list[Any]:
        barriers = self._barriers()
        for t in range(self._split, len(self._sequence)):
            if t in barriers:
                run.tie(*barriers[t])
            run.node(t, self._sequence[t])
        return [run.read(atom) for atom in self._joint.gradients]

    def _draws(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """The nodes of the forward pass that make much of next to nothing, each with what the barrier before it ties.

        Random numbers depend on a key alone: compilers draw those of all layers at the start.
        """
        joint, graph, found = self._joint, self._joint.graph, dict[int, tuple[list[Any], list[Any]]]()
        last = {v: last for v, _, last in self._lives if v not in self._ends}
        size = lambda values: sum(graph.sizes[v] for v in values)
        made: list[int] = []
        for t, i in enumerate(self._sequence[: self._split]):
            node = graph.nodes[i]
            given = [var for var in joint.roots([a for eqn in node.eqns for a in eqn.invars]) if var in joint.given]
            least = size(node.outputs) // _DRAWN
            if size(node.inputs) + sum(cost.nbytes(var.aval) for var in given) >= least:
                made += node.outputs
                continue
            latest = next((v for v in reversed(made) if graph.sizes[v] >= least and last.get(v, -1) > t), None)
            if latest is not None:
                values = [joint.variables[v] for v in (latest, *node.inputs)]
                found[t] = list(dict.fromkeys(values)), list(dict.fromkeys(given))
        return found

    def _apart(self) -> dict[int, list[Any]]:
        """The cheap values of the forward pass that are read behind a later product, by the run that makes them."""
        graph, sequence = self._joint.graph, self._sequence[: self._split]
        last = {v: t for t, i in enumerate(sequence) for v in graph.nodes[i].inputs}
        products = np.cumsum([graph.nodes[i].is_product for i in sequence])
        found = dict[int, list[Any]]()
        for t, i in enumerate(sequence):
            node = graph.nodes[i]
            if node.eqns[-1].primitive.name not in cost.ELEMENTWISE:
                continue
            far = [v for v in node.outputs if last.get(v, 0) > t and products[last[v] - 1] > products[t]]
            if far:
                found[t] = [self._joint.variables[v] for v in far]
        return found

    def _barriers(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """The runs with a barrier before them, each with the values and the given variables that it ties."""
        sequence, found = self._sequence, dict[int, tuple[list[Any], list[Any]]]()
        starts = self._starts()
        ends = [*starts[1:], len(sequence)]
        for before, start, end in zip([self._split, *starts], starts, ends, strict=False):
            given = [a for i in sequence[start:end] for a in (*self._anchors(i), *self._copied(i))]
            found[start] = self._tied(before, start, end), list(dict.fromkeys(given))
        return found

    def _starts(self) -> list[int]:
        """The runs with a barrier before them: where something is computed again, or much is alive or was made."""
        graph, sequence, split = self._joint.graph, self._sequence, self._split
        done, was_again, found = set(sequence[:split]), False, []
        most, room = int(self._live.max(initial=0)), 0
        stretch = 1 + (len(sequence) - split) // _BARRIERS
        for t, i in enumerate(sequence[split:], split):
            node = graph.nodes[i]
            room -= node.scratch + sum(graph.sizes[v] for v in node.outputs if v not in node.inplace)
            is_long = t - max([split, *found[-1:]]) >= stretch and self._live[t] >= _MUCH * most
            if (i in done and not was_again) or ((room < 0 or is_long) and not self._has_loops):
                found.append(t)
                room = most - int(self._live[t])
            was_again = i in done
            done.add(i)
        return found

    def _tied(self, before: int, start: int, end: int) -> list[Any]:
        """The variables of the values that a barrier ties: between one at a step before and one at the end."""
        joint, graph, sequence = self._joint, self._joint.graph, self._sequence
        made = {v for i in sequence[before:start] for v in graph.nodes[i].outputs}
        read = {v for i in sequence[start:end] for v in graph.nodes[i].inputs}
        alive = [v for v in self._alive(start) if v in made or v in read]
        variables = [joint.variables[v] for v in (*alive, *sorted(made & graph.gradients))]
        return list(dict.fromkeys(self._forms.get(var, var) for var in variables))

    def _alive(self, start: int) -> list[int]:
        """The values that are computed before a run and used by it or behind it."""
        gradients = self._joint.graph.gradients
        found = {v for v, first, last in self._lives if first < start <= last and v not in gradients}
        return sorted(found - self._ends)

    def _anchors(self, i: int) -> list[Any]:
        """For a node that is made of given variables only: the smallest of them."""
        node = self._joint.graph.nodes[i]
        if node.inputs:
            return []
        read = self._joint.roots([atom for eqn in node.eqns for atom in eqn.invars])
        given = [var for var in read if var in self._joint.given]
        return sorted(given, key=lambda var: getattr(var.aval, "size", 0))[:1]

    def _copied(self, i: int) -> list[Any]:
        """The given variables that are copied for a node, moved or repeated: at the start and for all, if not tied."""
        joint = self._joint
        if self._has_loops:
            return []
        eqns = joint.graph.nodes[i].eqns
        copied = [
            atom for eqn in eqns for atom in (*cost.copied(eqn, joint.views), *filter(self._is_moved, eqn.invars))
        ]
        return [var for var in joint.roots(copied) if var in joint.given]

    def _is_moved(self, atom: Any) -> bool:
        """Whether an atom is a view that compilers may hold as an array: with dimensions in another order, or more."""
        while not isinstance(atom, jex.Literal) and (view := self._joint.views.get(atom)) and view.invars:
            if view.primitive.name in ("transpose", "broadcast_in_dim"):
                return True
            atom = view.invars[0]
        return False


class Pulled:
    """The two passes that JAX makes of a function, in the form of a plan.

    Args:
      fun: a function of flat inputs with a list of outputs.
      moves: which inputs are differentiated.
      outputs: which outputs have cotangents.
    """

    def __init__(self, fun: Callable[..., list[Any]], moves: Sequence[bool], outputs: Sequence[bool]) -> None:
        self._fun, self._moves, self._outputs = fun, moves, outputs
        self._tree: Any = None

    def forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs, and the residuals."""

        def fun(*some: Any) -> tuple[list[Any], list[Any]]:
            rest = iter(some)
            out = self._fun(*[next(rest) if moves else x for moves, x in zip(self._moves, inputs, strict=True)])
            return list(itertools.compress(out, self._outputs)), out

        _, pull, out = jax.vjp(fun, *itertools.compress(inputs, self._moves), has_aux=True)
        kept, self._tree = jax.tree.flatten(pull)
        return out, kept

    def backward(self, inputs: Sequence[Any], kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients."""
        del inputs
        return list(self._tree.unflatten(kept)(list(cotangents)))


def _needed_later(graph: Graph, sequence: Sequence[int]) -> set[int]:
    """The values that a part of a sequence uses and does not compute before."""
    needed: set[int] = set()
    for i in reversed(sequence):
        needed.difference_update(graph.nodes[i].outputs)
        needed.update(graph.nodes[i].inputs)
    return needed


def _only_for_scalars(joint: Joint, sequence: Sequence[int], wanted: set[int]) -> set[int]:
    """The values of the forward pass that lead to a loss only: `grad`, which does not want it, does not compute it."""
    wanted |= {v for v in joint.graph.results if joint.variables[v].aval.shape}
    found: set[int] = set()
    for i in reversed(sequence):
        node = joint.graph.nodes[i]
        if wanted.isdisjoint(node.outputs) and i not in joint.graph.pinned:
            found.update(node.outputs)
        else:
            wanted.update(node.inputs)
    return found - wanted


def _made(graph: Graph, sequence: Sequence[int]) -> set[int]:
    return {v for i in sequence for v in graph.nodes[i].outputs}


def _values_of(joint: Joint, atom: Any) -> list[int]:
    """The values that an atom is a view of."""
    return [joint.numbers[var] for var in joint.roots([atom]) if var in joint.numbers]


def _forms(joint: Joint) -> dict[Any, Any]:
    """For the variables that are nothing but gradients, or parts of them, in another order or shape: what is read.

    It is made at once. A compiler that sees the product for a weight's gradient together with its transpose computes
    it in that order; where it does not, there are two of them for a while, and one more copy.
    """
    graph, numbers, found = joint.graph, joint.numbers, dict[Any, Any]()
    gradients = list(dict.fromkeys(atom for atom in joint.gradients if not isinstance(atom, jex.Literal)))
    parts, summed = list(gradients), set(graph.gradients)
    for node in reversed(graph.nodes):
        if node.is_backward and node.eqns[-1].primitive.name == "add_any" and not summed.isdisjoint(node.outputs):
            parts += node.eqns[-1].invars
            summed.update(node.inputs)
    uses = collections.Counter(v for node in graph.nodes for v in node.inputs)
    uses.update(v for atom in (*joint.outputs, *gradients) for v in _values_of(joint, atom))
    for atom in dict.fromkeys(parts):
        values = [] if atom in numbers else _values_of(joint, atom)
        if len(values) == 1 and uses[values[0]] == 1 and graph.nodes[graph.producer[values[0]]].is_backward:
            root = joint.variables[values[0]]
            if cost.nbytes(root.aval) == cost.nbytes(atom.aval):
                found[root] = atom
    return {**_forms_for_loops(joint), **found}


def _forms_for_loops(joint: Joint) -> dict[Any, Any]:
    """The same for elementwise results that nothing but a loop reads, in another order: it would have a copy made."""
    eqns = [eqn for node in joint.graph.nodes for eqn in node.eqns]
    reads = collections.defaultdict[int, set[Any]](set)
    for atom in [*joint.outputs, *joint.gradients, *[atom for eqn in eqns for atom in eqn.invars]]:
        for v in _values_of(joint, atom):
            reads[v].add(atom)
    found = dict[Any, Any]()
    for atom in [atom for eqn in eqns if kind_of(eqn) is Kind.LOOP for atom in eqn.invars]:
        if len(values := _values_of(joint, atom)) != 1 or atom in joint.numbers or reads[values[0]] != {atom}:
            continue
        root, maker = joint.variables[values[0]], joint.graph.nodes[joint.graph.producer[values[0]]]
        if maker.eqns[-1].primitive.name in cost.ELEMENTWISE and cost.nbytes(root.aval) == cost.nbytes(atom.aval):
            found[root] = atom
    return found


class _Run:
    """Evaluates nodes, making views where they are used, and those that are gradients at once."""

    def __init__(
        self,
        joint: Joint,
        inputs: Sequence[Any],
        cotangents: Sequence[Any],
        forms: Mapping[Any, Any],
        lives: Sequence[tuple[int, int, int]],
    ) -> None:
        self._joint, self._forms, self._lives = joint, forms, lives
        self.env: dict[Any, Any] = dict(zip(joint.jaxpr.constvars, joint.consts, strict=True))
        self.env.update(zip(joint.jaxpr.invars[: joint.n_inputs], inputs, strict=True))
        self.env.update(zip(joint.jaxpr.invars[joint.n_inputs :], cotangents, strict=False))
        self._views: dict[Any, Any] = {}
        self._roots: dict[Any, frozenset[Any]] = {}  # of the views, the variables that they are made of
        self._now = 0  # the step
        self.made: list[Any] = []  # variables, the last one at the end

    def read(self, atom: Any) -> Any:
        """The value of an atom, now."""
        if isinstance(atom, jex.Literal):
            return atom.val
        if atom in self.env:
            return self.env[atom]
        if atom not in self._views:
            view = self._joint.views[atom]
            (self._views[atom],) = self._bind(view)
            read = [a for a in view.invars if not isinstance(a, jex.Literal)]
            self._roots[atom] = frozenset[Any]().union(*(self._roots[a] if a in self._views else {a} for a in read))
        return self._views[atom]

    def _forget(self, changed: Collection[Any]) -> None:
        """Views of what has changed are made again, and those that cost nothing."""
        for atom in list(self._views):
            if cost.is_view(self._joint.views[atom]) or not self._roots[atom].isdisjoint(changed):
                del self._views[atom]

    def node(self, t: int, i: int) -> None:
        """Runs one node, at a step of the plan."""
        self._now, node = t, self._joint.graph.nodes[i]
        for eqn in node.eqns:
            outputs = self._bind(eqn)
            if not self.env.keys().isdisjoint(eqn.outvars):
                self._forget(eqn.outvars)
            self.env.update(zip(eqn.outvars, outputs, strict=True))
            for form in [self._forms[var] for var in eqn.outvars if var in self._forms]:
                self.env[form] = self.read(form)
        self.made += node.eqns[-1].outvars

    def tie(self, values: list[Any], given: list[Any]) -> None:
        """Puts a barrier around some variables."""
        names = [*values, *given]
        self.env.update(zip(names, self._barrier([self.env[var] for var in names]), strict=True))
        self._forget(names)

    def _barrier(self, values: list[Any]) -> list[Any]:
        return tied(values)

    def _bind(self, eqn: Any) -> Sequence[Any]:
        inputs = [self.read(atom) for atom in eqn.invars]
        with _jax.in_place_of(eqn):
            if eqn.primitive.name not in _READS_NUMBERS:
                self._delay(eqn, inputs)
            if eqn.primitive.name == "scan":
                return _with_late_stacks(eqn, inputs, self._late)
            if is_unpooled(eqn):
                cotangent, x = inputs
                return [unpooled(eqn.params, cotangent, x)]
            return _jax.bind(eqn.primitive, inputs, eqn.params)

    def _delay(self, eqn: Any, inputs: list[Any]) -> None:
        """Makes the arrays of equal or counted numbers that an operation writes into when it is their turn.

        They depend on nothing: compilers make all of them at the start. Sorting writes into the numbers that it orders.
        """
        views = {k: self._joint.views.get(a) for k, a in enumerate(eqn.invars) if not isinstance(a, jex.Literal)}
        fills = {k: view for k, view in views.items() if view is not None and _is_fill(view)}
        others = [x for k, x in enumerate(inputs) if k in views and k not in fills]
        for k, view in fills.items():
            number = self._late(others, view.invars[0].val if view.invars else 0, view.outvars[0].aval)
            (found,) = _jax.bind(view.primitive, [number] if view.invars else [], view.params)
            inputs[k] = found if view.invars else found + number

    def _late(self, inputs: Sequence[Any], number: Any, aval: Any, length: int = 1) -> Any:
        """A number, to fill arrays of a type with, behind some inputs and the last large value that is alive.

        The inputs may be there from the start, as indices are. So no compiler knows the number before the value is
        there. Values of integers do not count, since they may be made of constants.
        """
        number, size = np.asarray(number, aval.dtype), length * cost.nbytes(aval)
        alive = {self._joint.variables[v] for v, first, last in self._lives if first < self._now <= last}
        varies_as = lambda x: _jax.varying_axes(x) <= _jax.varying_axes(aval)
        is_large = lambda x: _DRAWN * cost.nbytes(jax.typeof(x)) >= size and jnp.issubdtype(x.dtype, jnp.inexact)
        fits = lambda x: is_large(x) and has_number(x) and varies_as(x)
        last = next((x for var in reversed(self.made) if var in alive and fits(x := self.env[var])), None)
        number = number if last is None else behind(number, last)
        # In `shard_map`, the barrier of JAX 0.10 makes all of its operands vary over the devices if one does.
        before = list(filter(varies_as, inputs))
        return lax.optimization_barrier((jnp.asarray(number), *before))[0] if before else number


class _Count(_Run):
    """Counts the operations instead."""

    def __init__(self, joint: Joint, forms: Mapping[Any, Any], lives: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(joint, [0] * joint.n_inputs, [0] * len(joint.jaxpr.invars), forms, lives)
        self.operations = 0.0
        self._made_of = collections.defaultdict[Any, list[Any]](list)  # by variable, the views that count for something

    def read(self, atom: Any) -> Any:
        """Counts what is computed to read an atom."""
        if isinstance(atom, jex.Literal) or atom in self.env or atom in self._views:
            return 0
        view = self._joint.views[atom]
        self._bind(view)
        if self._joint.operations(view):
            self._views[atom] = 0
            for root in self._joint.roots([atom]):
                self._made_of[root].append(atom)
        return 0

    def _forget(self, changed: Collection[Any]) -> None:
        for var in changed:
            for atom in self._made_of.pop(var, ()):
                self._views.pop(atom, None)

    def _bind(self, eqn: Any) -> Sequence[Any]:
        for atom in eqn.invars:
            self.read(atom)
        self.operations += self._joint.operations(eqn)
        return [0] * len(eqn.outvars)

    def _barrier(self, values: list[Any]) -> list[Any]:
        return values


def _with_late_stacks(eqn: Any, inputs: Sequence[Any], late: Callable[..., Any]) -> list[Any]:
    """A scan that makes the arrays that it stacks its outputs in when it runs, not at the start."""
    body, consts = _jax.opened(eqn.params["jaxpr"]), _jax.consts_of(eqn.params["jaxpr"])
    n_consts, n_carry = cost.counts_of_scan(eqn)
    own, init, xs = inputs[:n_consts], list(inputs[n_consts : n_consts + n_carry]), list(inputs[n_consts + n_carry :])
    length = eqn.params["length"]

    def stack(aval: Any) -> Any:
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            return _jax.zeros(aval, (length,))
        return _jax.zeros(aval, (length,), late(inputs, 0, aval, length))

    def step(state: Any, x: Any) -> Any:
        (i, *xs), (carry, stacks) = x, state
        out = _jax.eval_jaxpr(body, consts, *own, *carry, *xs)
        rows = zip(stacks, out[n_carry:], strict=True)
        return (out[:n_carry], [lax.dynamic_update_index_in_dim(ys, y, i, 0) for ys, y in rows]), None

    stacks = [stack(var.aval) for var in body.outvars[n_carry:]]
    places = jnp.arange(length, dtype=jnp.int32)
    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry, stacks = lax.scan(step, (init, stacks), [places, *xs], **options)[0]
    return [*carry, *stacks]


def _is_fill(view: Any) -> bool:
    return view.primitive.name in ("broadcast_in_dim", "iota") and all(isinstance(a, jex.Literal) for a in view.invars)


def whole(emitted: Emitted, n_inputs: int) -> Any:
    """Both passes as one function of inputs and cotangents, as the outermost gradient runs them."""

    # Each under `jit`, as there: compilers merge equal operations of one, not of both.
    forward, backward = jax.jit(emitted.forward), jax.jit(emitted.backward)

    def step(*xs: Any) -> list[Any]:
        outputs, kept = forward(xs[:n_inputs])
        return [*outputs, *backward(xs[:n_inputs], kept, xs[n_inputs:])]

    return jax.named_call(step, name="budgeted_step")
