"""`argnums=` and `states=` mean what they mean in `transform.grad`, in every report; and `compile=False`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, inspect, policies, transform

X, Y, W, B = jnp.linspace(0.1, 1.0, 4), jnp.ones((4, 4)), jnp.full((4, 4), 0.3), jnp.ones(4)
w, b, n = State(W, name="w"), State(B, name="b"), State(0, name="n")


def f(x, y):
    n.value = n.value + 1
    return (jnp.sin(w.value @ x + b.value) * (y @ x)).sum()


def twin(w, b, x, y):
    return (jnp.sin(w @ x + b) * (y @ x)).sum()


# Which of `f` -> which of `twin`.
CHOICES = {
    "the first argument": ({"argnums": 0}, (2,)),
    "the last argument": ({"argnums": np.int64(-1)}, (3,)),
    "both arguments": ({"argnums": (0, 1)}, (2, 3)),
    "one state": ({"states": w}, (0,)),
    "a pytree of states": ({"states": {"w": w, "b": [b]}}, (0, 1)),
    "a state and an argument": ({"states": b, "argnums": 1}, (1, 3)),
    "all": ({}, (0, 1, 2, 3)),
}


def kept(positions):
    """What reverse mode keeps of the twin."""
    values = [W, B, X, Y]

    def forward(*values):
        def chosen(*args):
            whole = list(values)
            for i, arg in zip(positions, args, strict=True):
                whole[i] = arg
            return twin(*whole)

        return jax.tree.leaves(jax.vjp(chosen, *[values[i] for i in positions])[1])

    return sorted(leaf.size for leaf in jax.eval_shape(forward, *values))


@pytest.mark.parametrize("choice", CHOICES)
def test_residuals_and_the_backward_pass_are_those_of_the_gradient_that_is_asked_for(choice, capsys):
    options, positions = CHOICES[choice]
    found = inspect.residuals(f, X, Y, **options)
    assert sorted(r.bytes // 4 for r in found) == kept(positions)
    inspect.print_saved_residuals(f, X, Y, **options)
    assert capsys.readouterr().out.splitlines() == [r.listed for r in found]
    last = inspect.fwd_bwd(f, X, Y, **options).backward[-1]
    names = [name for i, name in enumerate(["w", "b", "x", "y"]) if i in positions]
    assert sorted(part.split()[0] for part in last.split("d ")[1:]) == sorted(names)


def test_timeline_and_compare_look_at_the_gradient_that_is_asked_for():
    whole, part = inspect.timeline(f, X, Y), inspect.timeline(f, X, Y, states=b)
    assert len(part) < len(whole)
    found = inspect.compare({"plain": f, "nothing": policies.nothing_saveable}, X, Y, states=b)
    assert found["plain"].residual_bytes == inspect.residuals(f, X, Y, states=b).bytes
    assert found["plain"].flops < inspect.compare({"plain": f}, X, Y)["plain"].flops


def test_arguments_are_counted_without_self_and_the_gradient_agrees_with_grad():
    class Model:
        def __init__(self):
            self.w = State(W, name="w")

        def __call__(self, x, y):
            return (self.w.value @ x * (y @ x)).sum()

    model = Model()
    found = inspect.fwd_bwd(model.__call__, X, Y, argnums=1, states=model.w)
    (of_state, of_y) = transform.grad(model.__call__, argnums=1, states=model.w)(X, Y)
    assert (of_state.shape, of_y.shape) == (W.shape, Y.shape)
    assert [part.split()[0] for part in found.backward[-1].split("d ")[1:]] == ["y", "w"]


def test_a_pytree_is_meant_as_a_whole():
    loss = lambda p, x: (p["w"] @ x + p["b"]).sum()
    found = inspect.fwd_bwd(loss, {"w": W, "b": B}, X, argnums=0)
    assert [part.split()[0] for part in found.backward[-1].split("d ")[1:]] == ["p['b']", "p['w']"]


def test_a_state_that_is_not_read_has_no_gradient_to_keep_anything_for():
    other = State(X, name="other")
    found = inspect.residuals(f, X, Y, states=other)
    assert found.bytes == 0
    assert "The gradient for other is zero: it is not read." in str(found)


@pytest.mark.parametrize("options", [{"states": {}}, {"argnums": ()}])
def test_with_respect_to_nothing_nothing_is_kept(options):
    assert inspect.residuals(f, X, Y, **options).bytes == 0
    assert len(inspect.fwd_bwd(f, X, Y, **options).backward) > 0
    assert inspect.cost(f, X, Y, compile=False, **options).output_bytes == 4 + 4


def test_a_step_is_differentiated_in_what_it_writes_also_with_respect_to_one_state():
    u, other = State(X, name="u"), State(X, name="other")

    def step(dt):
        u.value = u.value + dt * jnp.sin(u.value)

    found = inspect.residuals(step, 0.1, states=[u, other])
    by_hand = lambda u, dt: jax.tree.leaves(jax.vjp(lambda u: u + dt * jnp.sin(u), u)[1])
    assert found.bytes == sum(leaf.size * 4 for leaf in jax.eval_shape(by_hand, X, 0.1))
    assert "step returns nothing to differentiate" in str(found)
    assert "The gradient for other is zero" in str(found)


REPORTS = (inspect.residuals, inspect.print_saved_residuals, inspect.fwd_bwd, inspect.cost, inspect.timeline)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.__name__)
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"argnums": 2}, ValueError, r"argnums=2, but there are 2 positional argument\(s\)"),
        ({"argnums": 0.5}, TypeError, "`argnums` must be an int or a sequence of ints, not 0.5"),
        ({"argnums": (0, -2)}, TypeError, "names an argument twice"),
        ({"states": "w"}, TypeError, "`states=` must be a State or a pytree of States, but has a leaf of type str"),
        ({"states": [w, w]}, ValueError, "a state is listed twice in `states=`"),
        ({"states": n}, TypeError, "the state n has dtype int32, which has no gradient"),
    ],
)
def test_what_has_no_gradient_is_refused(report, options, error, words):
    with pytest.raises(error, match=words):
        report(f, X, Y, **options)


def test_an_integer_an_object_and_a_static_argument_are_refused():
    with pytest.raises(TypeError, match="the argument i has dtype int32, which has no gradient"):
        inspect.residuals(lambda x, i: x[i].sum(), X, jnp.arange(2), argnums=1)
    power = transform.jit(lambda x, n: (x**n).sum(), static_argnums=1)
    with pytest.raises(TypeError, match="an argument that is static"):
        inspect.residuals(power, X, 2, argnums=1)
    with pytest.raises(TypeError, match="passed by reference"):
        inspect.residuals(lambda s, x: (s.value @ x).sum(), w, X, argnums=0)


def test_without_compiling_the_rest_is_said(monkeypatch):
    whole = inspect.cost(f, X, Y)
    line = inspect.timeline(f, X, Y)
    both = inspect.compare({"plain": f}, X, Y)

    def refuse(*_, **__):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(jax, "jit", refuse)
    found = inspect.cost(f, X, Y, compile=False)
    gradients = W.nbytes + B.nbytes + X.nbytes + Y.nbytes
    assert (found.argument_bytes, found.output_bytes) == (whole.argument_bytes, gradients + 4 + 4)
    assert (found.temporary_bytes, found.bytes_accessed) == (None, None)
    assert found.flops > 0
    assert found.estimates == {"flops"}
    assert "unknown without the compiler" in str(found)
    again = inspect.timeline(f, X, Y, compile=False)
    assert list(again) == list(line)
    assert again.compiled is None
    row = inspect.compare({"plain": f}, X, Y, compile=False)["plain"]
    assert (row.residual_bytes, row.temporary_bytes) == (both["plain"].residual_bytes, None)
    assert row.recompute_ratio == 1.0
    with pytest.raises(ValueError, match="only a compiled program can be timed"):
        inspect.compare({"plain": f}, X, Y, compile=False, time=True)


def test_argnums_may_be_any_sequence_of_integers():
    found = [inspect.residuals(f, X, Y, argnums=argnums).to_dicts() for argnums in ((0, 1), [0, 1], range(2))]
    assert found[0] == found[1] == found[2]
