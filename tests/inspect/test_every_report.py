"""Every report works on every kind of function, with and without rich and matplotlib, and none writes a state."""

from __future__ import annotations

import functools
import json
import sys

import jax
import jax.numpy as jnp
import pytest

from statetransform import RandomState, State, inspect, transform

X = jnp.ones(4)
u, w = State(jnp.ones(4), name="u"), State(jnp.ones((4, 4)), name="w")
rng, mode, empty = RandomState(0, name="rng"), State("a", name="mode", static=True), State({}, name="empty")


@transform.custom_vjp
def custom(x):
    return jnp.sin(x) * u.value


custom.defvjp(lambda x: (jnp.sin(x) * u.value, (jnp.cos(x), u.value)), lambda r, g: (g * r[0] * r[1],))


class Model:
    def __call__(self, x):
        return w.value @ x


def born(x):
    s = State(x * 2, name="inner")
    s.value = s.value * x
    return s.value.sum()


def step():
    u.value = jnp.sin(u.value)


PROGRAMS = {
    "prints": (lambda x: (jax.debug.print("{}", x), jnp.sin(x))[1], (X,)),
    "random lanes": (
        lambda x: transform.vmap(lambda y: jnp.sin(y) * jax.random.normal(rng.split(), (4,)))(x),
        (jnp.ones((3, 4)),),
    ),
    "custom rule": (custom, (X,)),
    "static state": (lambda x: jnp.sin(x) if mode.value == "a" else x, (X,)),
    "state without leaves": (lambda x: jnp.sin(x) * len(empty.value), (X,)),
    "makes a state": (born, (X,)),
    "returns a state": (lambda x: State(jnp.sin(x), name="out"), (X,)),
    "takes a state": (lambda s, x: s.value * x, (u, X)),
    "takes a model": (lambda m, x: m(x), (Model(), X)),
    "takes text and functions": (lambda f, kind, x: f(x) if kind == "s" else x, (jnp.sin, "s", X)),
    "takes nothing": (step, ()),
    "integers": (lambda i: i + 1, (3,)),
    "returns nothing": (lambda x: None, (X,)),
    "branches": (lambda x: transform.cond(x[0] > 0, step, lambda: None), (X,)),
    "gradient and value": (transform.value_and_grad(lambda x: (jnp.sin(x) * u.value).sum()), (X,)),
    "checkpointed class": (transform.checkpoint(Model)(), (X,)),
    "partial": (functools.partial(lambda a, x: jnp.sin(a * x), 2.0), (X,)),
    "loop": (lambda x: transform.fori_loop(0, 3, lambda i, c: jnp.sin(c) * u.value, x), (X,)),
    "checkify": (transform.checkify(lambda x: jnp.sin(x)), (X,)),
}
REPORTS = {
    "residuals": inspect.residuals,
    "fwd_bwd": inspect.fwd_bwd,
    "timeline": inspect.timeline,
    "cost": inspect.cost,
    "compare": lambda f, *args: inspect.compare({"f": f}, *args),
}


#: These two are made of the others, so that few programs do.
OF_OTHERS = [
    (r, name) for r in ("fwd_bwd", "compare") for name in ("random lanes", "takes nothing", "loop", "branches")
]


@pytest.mark.parametrize(
    ("report", "name"),
    [(report, name) for report in ("residuals", "timeline", "cost") for name in PROGRAMS] + OF_OTHERS,
)
def test_every_report_works_and_no_state_is_written(report, name):
    fun, args = PROGRAMS[name]
    before = (u.value, w.value, rng.value)
    found = REPORTS[report](fun, *args)
    assert str(found)
    assert found._repr_html_()
    assert all(a is b for a, b in zip(before, (u.value, w.value, rng.value), strict=True))


def test_the_repr_of_every_public_object_tells_what_it_holds():
    w = State(jnp.ones(4), name="w")
    f = transform.jit(lambda x: jnp.sin(w.value * x).sum())
    f(jnp.ones(4))
    found = inspect.residuals(f, jnp.ones(4))
    line, both, traces = (
        inspect.timeline(f, jnp.ones(4)),
        inspect.compare({"f": f}, jnp.ones(4)),
        inspect.explain_retrace(f),
    )
    objects = [found, found[0], found.by("kind"), inspect.cost(f, jnp.ones(4)), inspect.fwd_bwd(f, jnp.ones(4))]
    with inspect.peak() as peak:
        pass
    objects += [line, line[0], both, both[0], traces, traces[0], traces[0].changes[0], peak]
    assert {type(obj).__name__ for obj in objects} == {name for name in inspect.__all__ if name[0].isupper()}
    for obj in objects:
        assert " object at 0x" not in repr(obj)
        assert repr(obj)


def test_every_report_prints_without_rich_and_matplotlib(monkeypatch):
    for name in ("rich", "rich.table", "rich.console", "rich.text", "matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    f = lambda x: jnp.sin(x).sum()
    x = jnp.ones(4)
    reports = [inspect.residuals(f, x), inspect.cost(f, x), inspect.compare({"f": f}, x), inspect.timeline(f, x)]
    for report in reports:
        assert json.loads(json.dumps(report.to_dicts()))
    for report in [*reports, reports[0].by("kind"), inspect.fwd_bwd(f, x)]:
        assert str(report) == repr(report)
        assert report._repr_html_().startswith("<")
