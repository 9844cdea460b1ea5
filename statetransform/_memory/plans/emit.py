"""From a plan to programs: the forward pass with what it keeps, and the backward pass with its recomputation.

Where the backward pass begins to compute something again, an `optimization_barrier` keeps the order. It ties what was
made since the last one to what is read up to the next one. So nothing that is behind it can run before it or be merged
with what was computed before, and nothing that is before it can run later. Values that only wait are left alone: each
operand costs compile time in every barrier that it goes through. Between two barriers compilers order the runs as they
like, so there are more where much is alive, and where the plan has no room for another order.

The cotangent of a loss waits for its value, so that `grad` and `value_and_grad` compile to as many bytes.

In the forward pass each cheap value that is read behind a later product, such as the sum along a stack of layers, gets
a barrier of its own, and so does each product that is smaller than what it is made of. Otherwise compilers compute it
again, or only, where it is read, and hold what it is made of up to there. A value that has to take the place of another
has barriers before and behind, so that no larger kernel makes it.
For a compiler that removes barriers see `barriers`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from ..programs.sizes import local_nbytes
from . import cost
from .barriers import behind_all, keeps_barriers
from .forms import forms
from .graph import Graph, Node
from .joint import Joint
from .run import DRAWN, Count, Run, tied_as_made
from .simulate import lifetimes, profile, split_of
from .tricks import ANCHORS, APART, DRAWS, FORMS, MOVED, OFTEN, ROOM

# Of the most bytes: where so much is alive there is a barrier before each run. The same step compiles to other bytes in
# another program where compilers have a choice.
_MUCH = 0.5


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
        made = _made(joint.graph, sequence[s:])
        used |= {v for a in joint.gradients for v in joint.values_of(a) if v not in made}
        self.kept: list[int] = sorted({v for v, first, _ in lives if first < s and v in used})
        kept = {joint.variables[v] for v in self.kept}  # as they are: the backward pass begins with them
        formed = forms(joint) if FORMS.is_on else {}
        self._lives, self._forms = lives, {var: form for var, form in formed.items() if var not in kept}
        # Where loops are in the place of barriers, they cost more, and what is given would be copied for them.
        self._has_loops = not keeps_barriers()
        self._live = profile(joint.graph, sequence)
        self._spans = np.array(lives, np.int64).reshape(-1, 3).T

    def forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs, and what is kept."""
        run = Run(self._joint, inputs, (), self._forms, self._lives)
        outputs = self._run_forward(run)
        kept = [run.env[self._joint.variables[v]] for v in self.kept]
        if self._has_loops:
            return outputs, kept
        if kept:
            names = [*[None] * len(outputs), *[self._joint.variables[v] for v in self.kept]]
            done = tied_as_made(self._joint, names, [*outputs, *kept])
            outputs, kept = done[: len(outputs)], done[len(outputs) :]
        return outputs, [*kept, *filter(_is_number, outputs)]

    def backward(self, inputs: Sequence[Any], kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients."""
        joint, values = self._joint, kept[len(self.kept) :]
        cotangents = [behind_all(values, x) if _is_number(x) else x for x in cotangents]
        run = Run(joint, inputs, cotangents, self._forms, self._lives)
        run.env.update({joint.variables[v]: x for v, x in zip(self.kept, kept, strict=False)})
        run.made += [joint.variables[v] for v in self.kept]
        return self._run_backward(run)

    @property
    def cost(self) -> float:
        """The operations of both passes, with what is computed where it is read."""
        counted = 0.0
        for run_pass in (self._run_forward, self._run_backward):
            run = Count(self._joint, self._forms, self._lives)
            run.env.update(dict.fromkeys((self._joint.variables[v] for v in self.kept), 0))
            run_pass(run)
            counted += run.operations
        return counted

    def _run_forward(self, run: Run) -> list[Any]:
        draws = self._draws() if DRAWS.is_on and not self._has_loops else {}
        apart = self._apart() if APART.is_on and not self._has_loops else {}
        full = self._full() if ROOM.is_on and not self._has_loops else {}
        for t, i in enumerate(self._sequence[: self._split]):
            if t in draws:
                run.tie(*draws[t])
            before, behind = full.get(t, ((), ()))
            if before:
                run.tie(before, [])
            run.node(t, i)
            if behind:
                run.tie(behind, [])
            if t in apart:
                run.tie(apart[t], [])
        return [run.read(atom) for atom in self._joint.outputs]

    def _run_backward(self, run: Run) -> list[Any]:
        barriers = self._barriers()
        for t in range(self._split, len(self._sequence)):
            if t in barriers:
                run.tie(*barriers[t])
            run.node(t, self._sequence[t])
        return [run.read(atom) for atom in self._joint.gradients]

    def _draws(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """The nodes of the forward pass with a barrier before them, each with what that ties.

        Those that make much of next to nothing, and those that are made of what is given alone. Random numbers depend
        on a key alone, and products of the inputs on nothing: compilers make those of all layers at the start.
        """
        joint, graph, found = self._joint, self._joint.graph, dict[int, tuple[list[Any], list[Any]]]()
        last = {v: last for v, _, last in self._lives}
        size = lambda values: sum(graph.sizes[v] for v in values)
        made: list[int] = []
        for t, i in enumerate(self._sequence[: self._split]):
            node = graph.nodes[i]
            given = [var for var in joint.roots(_read(node)) if var in joint.given]
            least = size(node.outputs) // DRAWN
            if size(node.inputs) + sum(local_nbytes(var.aval) for var in given) >= least:
                given = self._anchors(i) if least else []
                if not given:
                    made += node.outputs
                    continue
            latest = next((v for v in reversed(made) if graph.sizes[v] >= least and last.get(v, -1) > t), None)
            if latest is not None:
                values = [joint.variables[v] for v in (latest, *node.inputs)]
                found[t] = list(dict.fromkeys(values)), list(dict.fromkeys(given))
        return found

    def _full(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """What is read and made by the runs of the forward pass that take a place where there is no other.

        GPUs' compilers compute a softmax in one kernel, which takes no place: its sums are to be there before.
        """
        graph, most = self._joint.graph, int(self._live.max(initial=0))
        found, of = dict[int, tuple[list[Any], list[Any]]](), lambda values: [self._joint.variables[v] for v in values]
        for t, i in enumerate(self._sequence[: self._split]):
            node = graph.nodes[i]
            taken = sum(graph.sizes[v] for v in node.inplace)
            if len(node.inputs) > 1 and taken and self._live[t] + taken > most:
                found[t] = of(node.inputs), of(node.inplace)
        return found

    def _apart(self) -> dict[int, list[Any]]:
        """What is read behind a later product of the forward pass, by its run: if cheap, or a small product.

        A sum of small products, as of what a network returns over time, is one fusion on the CPU; GPUs merge them to
        one product. So what they are made of waits for them.
        """
        graph, sequence = self._joint.graph, self._sequence[: self._split]
        last = {v: t for t, i in enumerate(sequence) for v in graph.nodes[i].inputs}
        ends, size = {v: end for v, _, end in self._lives}, lambda values: sum(graph.sizes[v] for v in values)
        products = np.cumsum([graph.nodes[i].is_product for i in sequence])
        found = dict[int, list[Any]]()
        for t, i in enumerate(sequence):
            node = graph.nodes[i]
            is_small = node.is_product and size(node.outputs) < size(node.inputs)
            if not is_small and node.eqns[-1].primitive.name not in cost.ELEMENTWISE:
                continue
            far = [v for v in node.outputs if last.get(v, 0) > t and products[last[v] - 1] > products[t]]
            if far:
                waiting = [v for v in node.inputs if ends.get(v, 0) > t] if is_small else []
                found[t] = [self._joint.variables[v] for v in (*far, *waiting)]
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
        for t, i in enumerate(sequence[split:], split):
            node = graph.nodes[i]
            room -= node.scratch + sum(graph.sizes[v] for v in node.outputs if v not in node.inplace)
            is_full = ROOM.is_on and room < 0
            is_much = OFTEN.is_on and self._live[t] >= _MUCH * most
            if (i in done and not was_again) or ((is_full or is_much) and not self._has_loops):
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
        values, firsts, lasts = self._spans
        return sorted({*values[(firsts < start) & (start <= lasts)].tolist()} - self._joint.graph.gradients)

    def _anchors(self, i: int) -> list[Any]:
        """For a node that is made of given variables only: the smallest of them."""
        node = self._joint.graph.nodes[i]
        if node.inputs or not ANCHORS.is_on:
            return []
        given = [var for var in self._joint.roots(_read(node)) if var in self._joint.given]
        return sorted(given, key=lambda var: getattr(var.aval, "size", 0))[:1]

    def _copied(self, i: int) -> list[Any]:
        """The given variables that are copied for a node, moved or repeated: at the start and for all, if not tied."""
        joint = self._joint
        if self._has_loops or not MOVED.is_on:
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
    """The two passes that JAX makes of a function, to be called as those of a plan.

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


def _read(node: Node) -> list[Any]:
    return [atom for eqn in node.eqns for atom in eqn.invars]


def _is_number(x: Any) -> bool:
    return not jnp.shape(x) and bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


def _made(graph: Graph, sequence: Sequence[int]) -> set[int]:
    return {v for i in sequence for v in graph.nodes[i].outputs}


def whole(emitted: Emitted, n_inputs: int) -> Any:
    """Both passes as one function of inputs and cotangents, as the outermost gradient runs them."""

    # Each under `jit`, as there: compilers merge equal operations of one, not of both.
    forward, backward = jax.jit(emitted.forward), jax.jit(emitted.backward)

    def step(*xs: Any) -> list[Any]:
        outputs, kept = forward(xs[:n_inputs])
        return [*outputs, *backward(xs[:n_inputs], kept, xs[n_inputs:])]

    return jax.named_call(step, name="budgeted_step")
