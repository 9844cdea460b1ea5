"""What loops and branches share: functions traced once, whose states become part of what the loop carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._core.arguments import hide
from .._core.errors import StateStructureError, StateTraceError, show_site
from .._core.frame import Frame, leave, read
from .._core.jaxcompat import typeof
from .._core.lift import cache_of
from .._core.stage import Record
from .._core.state import State, show_types


class Staged:
    """A function traced once with given abstract arguments, to be re-bound inside a JAX transform.

    Args:
      where: the transform's name, for messages and as part of the cache key.
      fun: the function.
      args: arguments or abstract values.
      values: values on entry that differ from the states' own (with the weak type removed).
    """

    def __init__(
        self,
        where: str,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        values: Mapping[State, Any],
    ) -> None:
        cache, fun, self._leading = cache_of(fun, where)
        with Frame() as frame:
            for state, value in values.items():
                frame.seed(state, value)
            abstract_args = jax.tree.map(typeof, hide(args))
            _, self.record, _ = cache.find(fun, (*self._leading, *abstract_args), {})
        layout = self.record.layout
        for state in layout.created:
            raise StateTraceError.born_inside(where, state)
        for token, _ in layout.static_written:
            raise StateStructureError.static_write(where, token.get())

    def call(self, args: tuple[Any, ...], values: Mapping[State, Any]) -> tuple[Any, dict[State, Any]]:
        """The output, and the new values of the written states."""
        out, written, _ = self.record.call((*self._leading, *args), {}, values)
        return out, dict(zip(self.record.written, written, strict=True))

    @property
    def out_avals(self) -> Any:
        """The abstract values of the output."""
        return self.record.out_avals[0]

    @property
    def written_avals(self) -> dict[State, Any]:
        """The abstract values of the written states afterwards."""
        return dict(zip(self.record.written, self.record.out_avals[1], strict=True))


class Body:
    """The body of a loop: a step from carry to carry, where written states ride in the carry.

    Args:
      where: the transform's name.
      fun: the body.
      carry: the user's initial carry.
      make_args: the body's arguments for a carry, the others being abstract.
      carry_of: the user's new carry out of the body's output.

    Attributes:
      init: the initial carry with the states: `(user's carry, values of the written states)`.
      constants: the values of the states that are only read.
    """

    def __init__(
        self,
        where: str,
        fun: Callable[..., Any],
        carry: Any,
        make_args: Callable[[Any], tuple[Any, ...]],
        carry_of: Callable[[Any], Any],
    ) -> None:
        self._carry_of = carry_of
        entry: dict[State, Any] = {}
        while True:
            self.staged = Staged(where, fun, make_args(carry), entry)
            after = self.staged.written_avals
            before = {state: entry.get(state, read(state)) for state in after}
            carry_after = carry_of(self.staged.out_avals)
            new_carry, carry_changed = _without_weak_type(carry, carry_after)
            stronger = {state: _without_weak_type(value, after[state]) for state, value in before.items()}
            if not carry_changed and not any(changed for _, changed in stronger.values()):
                break
            # As in JAX: a weakly typed value on entry takes the type of what follows; trace once more.
            carry, entry = new_carry, {state: value for state, (value, _) in stronger.items()}
        _check_carry(where, carry, carry_after)
        self.written = list(after)
        for state in self.written:
            _check_type(where, state, before[state], after[state], self.staged.record)
        self.entry = before
        self.init = (carry, [before[state] for state in self.written])
        self.constants = self.read_outside(self.staged.record.reads)

    def step(self, carry: Any, make_args: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, Any]:
        """From carry to carry; also gives the body's whole output."""
        user_carry, values = carry
        states = {**self.constants, **dict(zip(self.written, values, strict=True))}
        out, written = self.staged.call(make_args(user_carry), states)
        return (self._carry_of(out), [written[state] for state in self.written]), out

    def read_outside(self, states: Sequence[State]) -> dict[State, Any]:
        """The values of those states that do not ride in the carry."""
        return {state: read(state) for state in states if state not in self.entry}

    def leave(self, values: Sequence[Any]) -> None:
        """Hands the states' values after the loop to whoever is outside."""
        sites = self.staged.record.layout.sites
        leave(zip(self.written, values, strict=True), (), {s: sites[s._token] for s in self.written})


def _without_weak_type(value: Any, after: Any) -> tuple[Any, bool]:
    """The value on entry, with weakly typed leaves converted where the type afterwards is another one."""
    leaves, treedef = jax.tree.flatten(value)
    afters, treedef_after = jax.tree.flatten(after)
    if treedef != treedef_after:
        return value, False
    changed = False
    for i, (leaf, later) in enumerate(zip(leaves, afters, strict=True)):
        now = typeof(leaf)
        if now.weak_type and (now.shape, now.dtype) != (later.shape, later.dtype):
            later_type = jax.ShapeDtypeStruct(later.shape, later.dtype, weak_type=later.weak_type)
            dtype = jax.numpy.result_type(leaf, later_type)
            changed = changed or dtype != now.dtype
            leaves[i] = jax.lax.convert_element_type(leaf, dtype)
    return treedef.unflatten(leaves), changed


def _check_carry(where: str, before: Any, after: Any) -> None:
    """The user's own carry keeps its type, too; JAX's message would speak of a carry that has the states in it."""
    treedef, treedef_after = jax.tree.structure(before), jax.tree.structure(after)
    if treedef != treedef_after:
        raise TypeError(
            f"{where}: the body changes the structure of the carry.\n  on entry : {treedef}\n"
            f"  after    : {treedef_after}\nReturn a carry of the structure that the body was given."
        )
    rows, show = [], lambda aval: aval.str_short(short_dtypes=False)
    for (path, leaf), later in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        now = typeof(leaf)
        if (now.shape, now.dtype) != (later.shape, later.dtype):
            rows.append(f"  carry{jax.tree_util.keystr(path)}: {show(now)} on entry, {show(later)} after")
    if rows:
        raise TypeError(
            f"{where}: the body changes the type of the carry.\n" + "\n".join(rows) + "\nA loop's carry keeps its "
            "type. Return values of the types on entry, `x.astype(...)` for example, or start with those after."
        )


def _check_type(where: str, state: State, before: Any, after: Any, record: Record) -> None:
    """A loop's carry keeps its type; JAX's own message would not know the state."""
    treedef, treedef_after = jax.tree.structure(before), jax.tree.structure(after)
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False))
    same = all((typeof(x).shape, typeof(x).dtype) == (y.shape, y.dtype) for x, y in pairs)
    if treedef == treedef_after and same:
        return
    site = show_site(record.layout.sites[state._token])
    name = state.name or "state"
    if treedef != treedef_after:
        cure = f"Give `{name}` its full structure before the loop."
    elif any(typeof(x).shape != y.shape for x, y in pairs):
        cure = f"Keep the shape of `{name}`, or collect what grows as an output of each step."
    else:
        to = pairs[0][1].dtype
        cure = f"Write `{name}.value = x.astype({name}.value.dtype)`, or start `{name}` as {to}."
    raise StateStructureError.carry(where, state, show_types(before), show_types(after), site, cure)
