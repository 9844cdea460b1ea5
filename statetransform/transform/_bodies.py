"""What loops and branches share: traced functions whose states become part of the carry, and checks of arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._base.errors import StateStructureError, describe, show_site
from .._jax import Tracer, eval_jaxpr, type_text, typeof, varying_axes
from .._memory import Context, MemoryBudget, Reversible, check_carries
from .._states.formatting import show_types, type_on_mesh
from .._states.frame import Frame, leave, look_at, look_at_all
from .._states.state import State
from .._traces.arguments import is_reference, reveal
from .._traces.shardings import depend_on_shardings, sharding_of
from .._traces.trace import Call, Trace
from .._traces.traces import find_for_once

AROUND = Context(sharding_of=sharding_of, depend=depend_on_shardings)  # what a loop within a budget asks

Checkpoint = None | int | str | MemoryBudget | Reversible


def with_inverse(checkpoint: Checkpoint, undo: Callable[..., Any]) -> Checkpoint:
    """With `undo(inverse, carry, x)` for the inverse of a `Reversible`."""
    if not isinstance(checkpoint, Reversible):
        return checkpoint
    return Reversible(functools.partial(undo, checkpoint.inverse), checkpoint.every)


def form_of(checkpoint: Checkpoint) -> Hashable:
    """What a program depends on in it besides its functions."""
    return checkpoint.every if isinstance(checkpoint, Reversible) else checkpoint


def traced_once(
    where: str, fun: Callable[..., Any], args: tuple[Any, ...], objects: Sequence[Any], values: Mapping[State, Any]
) -> Call:
    """The call of a function with abstract arguments, to be re-bound inside a JAX transform.

    `values` on entry are those that differ from the states' own (with the weak type removed).
    """
    args = jax.tree.map(typeof, args)
    with Frame() if values else contextlib.nullcontext() as frame:
        for state, value in values.items():
            frame.seed(state, value)  # type: ignore[union-attr]
        call = find_for_once(where, fun, args, {}, objects, forbids_new_states=where)
    for i, _ in call.trace.static_written:
        raise StateStructureError(
            f"{where}: {describe(call.states[i])} is static but is written inside, and whether and how often that "
            f"happens is known only when the program runs. Write it before or after the {where}."
        )
    return call


class TracedFunction(NamedTuple):
    """A traced function over the values of some states.

    Attributes:
      call: `call(held, values, *args)` gives its output and the values that it writes. It holds no array and no state,
        since JAX may keep it.
      held: the arrays that it depends on besides.
      trace: of the function.
      order: where the values are that it reads, and, if they are in an order of their own, those that it writes.
    """

    call: Callable[..., tuple[Any, list[Any]]]
    held: list[Any]
    trace: Trace
    order: tuple[int, ...]

    @classmethod
    def of(cls, found: Call, states: Sequence[State], constants: Sequence[State] = ()) -> TracedFunction:
        """Over the values of `states`; those of the `constants` are held."""
        place = {state: i for i, state in enumerate((*states, *constants))}
        order = tuple(place[state] for state in found.reads)
        held = [list(found.trace.consts), jax.tree.leaves(found.leading), look_at_all(constants)]
        jaxpr, out_tree = found.trace.jaxpr, found.trace.out_tree

        def call(held: list[Any], values: Sequence[Any], *args: Any) -> tuple[Any, list[Any]]:
            consts, leading, rest = held
            values = (*values, *rest)
            leaves = *leading, *jax.tree.leaves((args, [values[i] for i in order]))
            out, written, _ = out_tree.unflatten(eval_jaxpr(jaxpr, consts, *leaves))
            return out, written

        return cls(call, held, found.trace, order)


class Body:
    """The body of a loop: a step from carry to carry, where written states ride in the carry.

    Args:
      make_args: the body's arguments for a carry, the others being abstract.
      carry_of: the user's new carry out of the body's output.

    Attributes:
      init: the initial carry with the states: `(user's carry, values of the written states)`.
      entry: the values of the written states on entry.
    """

    def __init__(
        self,
        where: str,
        fun: Callable[..., Any],
        carry: Any,
        make_args: Callable[[Any], tuple[Any, ...]],
        carry_of: Callable[[Any], Any],
        objects: Sequence[Any] = (),
    ) -> None:
        entry: dict[State, Any] = {}
        while True:
            self.found = found = traced_once(where, fun, make_args(carry), objects, entry)
            trace = found.trace
            if where in trace.fitting:
                break
            after = found.written_avals
            before = {state: entry.get(state, look_at(state)) for state in after}
            new_carry, carry_changed = _without_weak_type(carry, carry_of(found.out_avals[0]))
            stronger = {state: _without_weak_type(value, after[state]) for state, value in before.items()}
            if not carry_changed and not any(changed for _, changed in stronger.values()):
                break
            # As in JAX: a weakly typed value on entry takes the type of what follows; trace once more.
            carry, entry = new_carry, {state: value for state, (value, _) in stronger.items()}
        self.written: list[State] = found.written
        self.entry = {state: entry[state] if state in entry else look_at(state) for state in self.written}
        self.init: tuple[Any, list[Any]] = (carry, [*self.entry.values()])
        self._where, self._objects, self._sites = where, objects, found.sites
        if where not in trace.fitting:
            after = found.written_avals
            check_carry(where, "the body", carry, carry_of(found.out_avals[0]))
            for state in self.written:
                _check_type(where, "the body", state, self.entry[state], after[state], self._sites[state])
            # The types on entry are the trace's own, unless a state is written without being read.
            if not entry and max(trace.written, default=-1) < trace.n_reads:
                trace.fitting.add(where)
        if objects:
            check_objects(where, carry, objects, found.objects)

    def over_states(self, found: Call) -> TracedFunction:
        """A function over the values of the written states; those that it only reads are constants of the loop."""
        return TracedFunction.of(found, self.written, [state for state in found.reads if state not in self.entry])

    def backwards(
        self, fun: Callable[..., Any], args: tuple[Any, ...], carry_of: Callable[[Any], Any]
    ) -> TracedFunction:
        """A step backwards over the values of the written states: its carry, and the values before.

        Args:
          fun: sets back the states that the body writes.
          args: its arguments, abstract or not.
          carry_of: the user's carry before the step out of what it returns.
        """
        where, (carry, _) = self._where, self.init
        found = traced_once(where, fun, args, self._objects, self.entry)
        for state in self.written:
            if state not in found.written:
                raise StateStructureError(_FORGOTTEN.format(where, describe(state), show_site(self._sites[state])))
        for state in found.written:
            if state not in self.entry:
                site = show_site(found.sites[state])
                raise StateStructureError(
                    f"{where}: the inverse writes {describe(state)} at {site}, and the step does not. An inverse sets "
                    "back what the step has written, and nothing else."
                )
            _check_type(where, "the inverse", state, self.entry[state], found.written_avals[state], found.sites[state])
        check_carry(where, "the inverse", carry, carry_of(found.out_avals[0]))
        if self._objects:
            check_objects(where, carry, self._objects, found.objects)
        call, held, trace, order = self.over_states(found)
        places = tuple(found.written.index(state) for state in self.written)

        def back(held: list[Any], values: Sequence[Any], *args: Any) -> tuple[Any, list[Any]]:
            out, before = call(held, values, *args)
            return carry_of(out), [before[i] for i in places]

        return TracedFunction(back, held, trace, (*order, *places))

    def finish(self, out: Any, values: Sequence[Any]) -> Any:
        """Hands on the states' values after the loop; gives the output with the objects in their places."""
        leave(zip(self.written, values, strict=True), (), {state: self._sites[state] for state in self.written})
        return reveal(out, self.found.objects) if self.found.trace.has_nodes else out


_FORGOTTEN = (
    "{0}: the step writes {1} at {2}, and the inverse does not set it back.\nThe backward pass gets the carry before a "
    "step from the inverse, so it has to write every state that the step writes. What cannot be computed back, such as "
    "the key of a random state, must not be written: draw by the index of the step, `jax.random.fold_in(key, i)`."
)


def _without_weak_type(value: Any, after: Any) -> tuple[Any, bool]:
    """The value on entry, with weakly typed leaves converted where the type afterwards is another one."""
    leaves, treedef = jax.tree.flatten(value)
    afters, treedef_after = jax.tree.flatten(after)
    if treedef != treedef_after or not any(typeof(leaf).weak_type for leaf in leaves):
        return value, False
    changed = False
    for i, (leaf, later) in enumerate(zip(leaves, afters, strict=True)):
        now = typeof(leaf)
        if now.weak_type and (now.shape, now.dtype) != (later.shape, later.dtype):
            later_type = jax.ShapeDtypeStruct(later.shape, later.dtype, weak_type=later.weak_type)
            dtype = jax.numpy.result_type(leaf, later_type)
            changed = changed or dtype != now.dtype
            # A Python scalar is converted without a call of the device.
            is_scalar = type(leaf) is float and np.issubdtype(dtype, np.floating)
            leaves[i] = dtype.type(leaf) if is_scalar else jax.lax.convert_element_type(leaf, dtype)
    return treedef.unflatten(leaves), changed


def check_carry(where: str, who: str, before: Any, after: Any) -> None:
    """The user's own carry keeps its type, too; JAX's message would speak of a carry that has the states in it."""
    treedef, treedef_after = jax.tree.structure(before), jax.tree.structure(after)
    if treedef != treedef_after:
        raise TypeError(
            f"{where}: {who} changes the structure of the carry.\n  on entry : {treedef}\n"
            f"  after    : {treedef_after}\nReturn a carry with the structure that {who} receives."
        )
    rows: list[str] = []
    cure = ""
    for (path, leaf), later in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        now, then = type_text(typeof(leaf)), type_text(later)
        if now != then:
            cure = cure_on_mesh("carry", typeof(leaf), later) or (
                "Return values of the types on entry, `x.astype(...)` for example, or start with those after."
            )
            rows.append(f"  carry{jax.tree_util.keystr(path)}: {now} on entry, {then} after")
    if rows:
        raise TypeError(
            f"{where}: {who} changes the type of the carry.\n"
            + "\n".join(rows)
            + f"\nA loop's carry keeps its type. {cure}"
        )


def check_objects(where: str, carry: Any, before: Sequence[Any], after: Sequence[Any]) -> None:
    """An object in the carry stays the same one; those of the carry are the first of the objects."""
    n = sum(map(is_reference, jax.tree.leaves(carry, is_leaf=is_reference)))
    for pair in zip(before[:n], after[:n], strict=True):
        if pair[0] is not pair[1]:
            what = "the body replaces an object in the carry"
            raise StateStructureError.objects(where, what, ("on entry", "after   "), pair)


def _check_type(where: str, who: str, state: State, before: Any, after: Any, site: tuple[str, int]) -> None:
    """A loop's carry keeps its type; JAX's own message would not know the state."""
    if type_on_mesh(before) == type_on_mesh(after):
        return
    pairs = [(typeof(x), typeof(y)) for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False)]
    name = state.name or "state"
    if jax.tree.structure(before) != jax.tree.structure(after):
        cure = f"Assign `{name}` its full structure before the loop."
    elif any(x.shape != y.shape for x, y in pairs):
        cure = f"Keep the shape of `{name}`, or collect what grows as an output of each step."
    elif all(x.dtype == y.dtype for x, y in pairs):
        cure = next(filter(None, (cure_on_mesh(f"{name}.value", x, y) for x, y in pairs)), "")
    else:
        to = pairs[0][1].dtype
        cure = f"Write `{name}.value = x.astype({name}.value.dtype)`, or start `{name}` as {to}."
    raise StateStructureError(
        f"{where}: {who} changes the type of {describe(state)}.\n"
        f"  on entry : {show_types(before)}\n"
        f"  after    : {show_types(after)}   (written at {show_site(site)})\n"
        f"A loop's carry keeps its type. {cure}"
    )


def cure_on_mesh(name: str, before: Any, after: Any) -> str:
    """What to write where two types differ only in their sharding, or in the mesh axes over which they vary."""
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return ""
    axes = tuple(sorted(map(str, varying_axes(before) ^ varying_axes(after))))
    if axes:
        return (
            f"Only one of them varies over the mesh axes {axes}. Write `jax.lax.pcast({name}, {axes}, to='varying')` "
            f"for the other, or combine the devices' values, with `jax.lax.psum(x, {axes})` for example."
        )
    return f"Give both one sharding: `jax.sharding.reshard(x, jax.typeof({name}).sharding)`."


def check_loop(where: str, checkpoint: Any, *functions: Any) -> None:
    """Refuses a body that is not a function, and what `checkpoint` cannot be."""
    for fun in functions:
        if not callable(fun):
            cure = " The function comes first: `for_loop(f, xs)`, or `for_loop(f, length=100)`."
            cure = cure if where == "for_loop" else ""
            raise TypeError(f"{where}: expected a function, not {fun!r} of type {type(fun).__name__}.{cure}")
    if isinstance(checkpoint, Reversible):
        if where in _NO_STEPS_BACK:
            raise TypeError(f"{where}: checkpoint=Reversible(...) is for a loop of {_NO_STEPS_BACK[where]}")
    elif checkpoint is not None and not isinstance(checkpoint, MemoryBudget):
        check_carries(where, checkpoint)


_NO_STEPS_BACK = {
    "map": 'steps that follow from each other. Those of `map` have nothing to undo: write `checkpoint="step"`.',
    "while_loop": "known length: `scan`, `for_loop` or `fori_loop`. Write a number of carries: `checkpoint=20`.",
}


def number_of_steps(where: str, name: str, value: Any) -> int:
    """A number of steps as an integer of Python; a traced one is refused as JAX does, with the cure."""
    if isinstance(value, Tracer):
        cure = (
            "Test a computed limit in the condition."
            if where == "while_loop"
            else f"For a computed number of steps write `transform.fori_loop(0, {name}, body, carry)`, with "
            "`checkpoint=20` if it is to be differentiated."
        )
        raise jax.errors.ConcretizationTypeError(
            value,
            f"{where}: `{name}` must be known when the loop is traced, when memory for all steps is allocated. "
            f"Make it static (`static_argnums`, `State(..., static=True)`). {cure}",
        )
    if int(value) < 0:
        raise ValueError(f"{where}: `{name}` must be 0 or more, not {int(value)}")
    return int(value)
