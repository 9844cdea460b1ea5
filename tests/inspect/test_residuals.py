"""Residuals over states: kinds, names, lines, loops, totals, groups, and how they print."""

from __future__ import annotations

import functools
import io
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from statetransform import RandomState, State, inspect, policies, transform

X, W = jnp.linspace(-1.0, 1.0, 4), jnp.ones((4, 4))


class Model:
    def __init__(self) -> None:
        self.w = State(jnp.linspace(0.1, 1.0, 16).reshape(4, 4), name="w")
        self.count = State(0, name="count")

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return jnp.sin(self.w.value @ x)

    @transform.jit
    def compiled(self, x):
        return self(x)

    @transform.checkpoint
    def again(self, x):
        return self(x)

    @transform.checkpoint(static_argnums=(1,))
    def several(self, x, n):
        for _ in range(n):
            x = self(x)
        return x


def kinds(found) -> list[tuple[str, str | None, tuple[int, ...], int]]:
    return [(record.kind, record.name, record.shape, record.bytes) for record in found]


@pytest.mark.parametrize("call", [lambda m: m, lambda m: m.__call__, lambda m: m.compiled, lambda m: transform.jit(m)])
def test_states_are_listed_by_name_and_nothing_is_written(call):
    model = Model()
    assert kinds(inspect.residuals(call(model), X)) == [
        ("argument", "x", (4,), 16),
        ("state", "w", (4, 4), 64),
        ("computed", None, (4,), 16),
    ]
    assert model.count.value == 0


def test_a_checkpointed_method_keeps_its_arguments_and_states():
    model = Model()
    assert kinds(inspect.residuals(model.again, X)) == [("argument", "x", (4,), 16), ("state", "w", (4, 4), 64)]
    assert kinds(inspect.residuals(Model.again, model, X)) == kinds(inspect.residuals(model.again, X))
    assert kinds(inspect.residuals(model.several, X, 3)) == kinds(inspect.residuals(model.again, X))
    assert kinds(inspect.residuals(lambda m, x: m.again(x), model, X)) == kinds(inspect.residuals(model.again, X))


def test_constants_random_states_and_pytrees_of_states_have_kinds_and_names():
    rng, params = RandomState(0, name="rng"), State({"w": X, "b": X}, name="params")
    (record,) = inspect.residuals(lambda x: W @ x, X)
    assert (record.kind, record.bytes) == ("constant", 64)
    found = inspect.residuals(lambda x: x * params.value["w"] * jax.random.normal(rng.split(), (4,)), X)
    assert [r.name for r in found if r.kind in ("argument", "state")] == ["x", "params['w']"]
    auxiliary = {"kind": "text", "n": 3, "x": None}  # which JAX cannot trace
    assert [r.primitive for r in inspect.residuals(lambda x: (jnp.sin(x).sum(), auxiliary), X)] == ["cos"]


def test_a_state_without_a_name_is_named_by_its_birthplace():
    s = State(X)
    (record,) = [r for r in inspect.residuals(lambda x: s.value * x, X) if r.kind == "state"]
    assert record.name == f"State of test_residuals.py:{record.line}"
    assert record.file == __file__


def test_the_line_is_the_users_under_every_transform():
    u = State(X, name="u")

    def body(x):
        u.value = jnp.sin(u.value * x)  # the line

    line = body.__code__.co_firstlineno + 1
    wrapped = {
        "loop": lambda x: transform.for_loop(lambda: body(x), length=3),
        "jit": transform.jit(body),
        "vmap": lambda x: transform.vmap(lambda y: jnp.sum(jnp.sin(u.value * y)))(x),
        "cond": lambda x: transform.cond(x[0] > 0, lambda: body(x), lambda: None),
    }
    for name, fun in wrapped.items():
        found = inspect.residuals(lambda x, fun=fun: (fun(x), u.value.sum())[1], X)
        assert {pathlib.Path(r.file).name for r in found if r.file} <= {"test_residuals.py"}, name
        if name in ("loop", "jit"):
            assert line in {r.line for r in found if r.primitive in ("sin", "cos", "mul")}


def test_residuals_in_a_loop_are_counted_per_iteration_and_in_total_with_their_names():
    u = State(X, name="u")

    def step(x):
        u.value = jnp.sin(checkpoint_name(u.value * x, "inner"))

    def loss(x):
        transform.for_loop(lambda: step(x), length=7)
        return u.value.sum()

    found = inspect.residuals(loss, 2.0)
    loop = [r for r in found if r.iterations > 1]
    assert {(r.iterations, r.per_iteration, r.bytes) for r in loop} == {(7, 16, 112)}
    assert "u" in {r.state for r in loop}  # the carry of each iteration
    assert "7 x 16 B" in str(found)

    nested = inspect.residuals(lambda x: transform.for_loop(lambda: loss(x), length=3).sum(), 2.0)
    assert {(r.iterations, r.per_iteration) for r in nested if r.iterations > 1} >= {(21, 16)}


def test_within_a_budget_it_is_said_what_is_kept_and_what_is_recomputed_at_which_cost():
    w = State(jnp.full((64, 64), 0.1), name="w")

    def net(x):
        for _ in range(6):
            x = jnp.tanh(x @ w.value)
        return (x**2).sum()

    x = jnp.ones((256, 64))
    f = transform.jit(transform.checkpoint(net, policy=policies.fit("200 KiB", compile=False)))
    found = inspect.residuals(f, x)
    computed = [r for r in found if r.kind == "computed"]
    line = net.__code__.co_firstlineno + 2
    assert 0 < len(computed) < 6
    arrays = [r for r in computed if r.bytes > 4]  # the cotangent of the loss waits for its value
    assert {(r.primitive, r.line) for r in arrays} <= {("tanh", line), ("dot_general", line)}
    (note,) = found.notes
    cost = inspect.cost(f, x, compile=False).flops / inspect.cost(net, x, compile=False).flops
    assert note.startswith(f"To meet the budget, the gradient step takes {cost:.2f} times the FLOPs. Recomputed: ")
    assert f"dot_general of test_residuals.py:{line} (" in note
    enough = transform.checkpoint(net, policy=policies.fit("1 GiB", compile=False))
    assert inspect.residuals(enough, x).notes == ("Nothing is recomputed to meet the budget.",)


def test_equal_rows_are_one_row_and_say_how_many_they_are():
    def body(x):
        for _ in range(6):
            x = jnp.sin(x)
        return x

    found = inspect.residuals(body, X)
    assert len(found) == 6
    (row,) = found.table().rows
    assert row[:2] == ["6 x", "computed"]
    assert "6 x  computed" in str(found)
    assert found.bytes == 96
    assert inspect.residuals(jnp.sin, X).table().columns[0] == "kind"


def test_no_line_is_wider_than_120_characters_unless_asked():
    x = {"a name that is so long that no table could have it in one line " * 2: X}
    found = inspect.residuals(lambda x: jax.tree.map(lambda x: x * jnp.sin(x), x), x)
    assert max(map(len, str(found).splitlines())) <= 120
    assert max(map(len, found.text(60).splitlines())) <= 60
    assert max(map(len, found.text(None).splitlines())) > 120
    both = inspect.fwd_bwd(lambda x: jax.tree.map(lambda x: x * jnp.sin(x), x), x)
    assert max(map(len, str(both).splitlines())) <= 120
    assert max(map(len, both.text(None).splitlines())) > 120


def test_totals_and_groups():
    found = inspect.residuals(Model(), X)
    assert found.bytes == 96
    assert found.totals == {"argument": 16, "state": 64, "computed": 16}
    assert {key: group.bytes for key, group in found.by("state").items()} == {"w": 64, None: 32}
    assert set(found.by("primitive")) == {"cos", None}
    assert {key: len(group) for key, group in found.by("source").items() if key} == {
        f"test_residuals.py:{found[1].line}": 1,
        f"test_residuals.py:{found[2].line}": 1,
    }
    assert found.by("kind").to_dicts()[0] == {"kind": "state", "arrays": 1, "bytes": 64}
    with pytest.raises(ValueError, match="residuals do not group by 'colour'; the fields are shape, dtype, bytes"):
        found.by("colour")


def test_rich_and_html_show_the_same():
    console = pytest.importorskip("rich.console")
    found = inspect.residuals(Model(), X)
    out = io.StringIO()
    console.Console(file=out, width=120).print(found)
    html = found._repr_html_()
    for text in ("float32[4,4]", "w", "64 B", "state"):
        assert text in out.getvalue()
        assert text in html
    assert html.count("<tr") == 4


def test_printed_lines_name_states(capsys):
    inspect.print_saved_residuals(Model(), X)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["f32[4] from the argument x", "f32[4,4] from the state 'w'"]
    assert lines[2].startswith(f"f32[4] output of cos from {__file__}:")


def test_what_is_no_function_is_an_error():
    with pytest.raises(TypeError, match="expected a function and its arguments, got 3 of type int"):
        inspect.residuals(3)  # type: ignore[arg-type]


def test_python_that_decides_on_a_value_is_an_error_that_names_the_users_argument():
    def f(x, y):
        return x if y["a"] > 0 else -x

    for report in (inspect.residuals, inspect.cost, inspect.fwd_bwd):
        with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the function f at .*argument y\['a'\]"):
            report(f, X, {"a": 1.0})
    assert inspect.residuals(functools.partial(f, y={"a": 1.0}), X).name == "f"


def test_inside_another_transform():
    model = Model()

    @transform.jit
    def f(x):
        sizes.append(inspect.residuals(model, x).bytes)
        return x

    sizes: list[int] = []
    f(X)
    assert sizes[:1] == [96]


def test_the_table_begins_with_the_largest():
    found = inspect.residuals(lambda a, b: (a.sum() * jnp.sin(b)).sum() + (a**2).sum(), jnp.ones(2), jnp.ones(50))
    shown = [row[found.table().headings.index("bytes")] for row in found.table().rows]
    assert [record.bytes for record in found] == [4, 200, 200, 8]  # as JAX lists them
    assert shown == ["200 B", "200 B", "8 B", "4 B"]
