"""Gradient steps of many kinds of programs keep their budgets as compiled, at the cost and in the bytes of plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import policies, transform

from .compilers import KEEPS_BARRIERS

PROGRAMS: list[Any] = []


def program(
    *shares: float,
    by: Any = 0,
    cost: float = math.inf,
    over: float = math.inf,
    with_any: bool = True,
    **marks: Any,
) -> Callable[[Any], Any]:
    """Takes a program in: it gives a loss and its arguments.

    Args:
      shares: the budgets, as shares of what the plain step takes.
      by: the arguments to differentiate with respect to.
      cost: the most FLOPs, over the plain ones.
      over: the most bytes, over the planned ones.
      with_any: whether it is tried with a compiler that removes barriers as well: some budgets are not kept there, and
        some programs take long.
      marks: those of the test.
    """

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        several = [getattr(pytest.mark, name) for name in marks]
        if not with_any and not KEEPS_BARRIERS:
            several.append(pytest.mark.skip(reason="the CPU compiler of JAX 0.10 removes barriers"))
        for share in shares:
            name = f"{make.__name__.replace('_', ' ')}-{share:.2g}"
            PROGRAMS.append(pytest.param(make, share, by, cost, over, id=name, marks=several))
        return make

    return add


def noise(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) * 0.1


def many(n: int, *shape: int) -> list[jax.Array]:
    return [noise(*shape, seed=i) for i in range(n)]


@program(0.6, cost=1.4)
def differences_of_all_pairs() -> Any:
    """Cheap to have and wide to hold: with a barrier at each run, a plan would hold them."""

    def loss(x: Any) -> Any:
        for _ in range(3):
            d = x[:, None] - x[None]
            x = x - 0.01 * (d / ((d**2).sum(-1, keepdims=True) + 0.1)).sum(1)
        return (x**2).sum()

    return loss, (jnp.linspace(0.0, 1.0, 60).reshape(20, 3),)


@program(1 / 16, by=1, cost=2.0, with_any=False)
def a_simulation(steps: int = 8) -> Any:
    """All that is computed again for a step is fused into one loop: compilers need much less than is planned."""

    def loss(u: Any, ks: Any) -> Any:
        for k in ks:
            lap = jnp.pad(u[1:] - u[:-1], ((0, 1), (0, 0))) - jnp.pad(u[1:] - u[:-1], ((1, 0), (0, 0)))
            u = u + 0.1 * k * lap - 0.01 * u**3
        return (u**2).mean()

    return loss, (jnp.ones((32, 32)), [jnp.ones((32, 32))] * steps)


@program(1 / 16, by=1, cost=1.2, with_any=False)
def a_longer_simulation() -> Any:
    """Compilers need much more than is planned."""
    return a_simulation(16)


@program(0.5, 0.25, by=1, over=1.05, with_any=False)
def layers_with_norms() -> Any:
    """Compilers compute the sums along the layers again where they are read, and hold all products up to there."""

    def loss(x: Any, ws: Any) -> Any:
        for a, b, c in ws:
            y = x - x.mean(-1, keepdims=True)
            y = y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)
            x = x + jax.nn.gelu(y @ a) @ b + c
        return (x**2).mean()

    return loss, (noise(256, 32), [(noise(32, 64), noise(64, 32), noise(32))] * 8)


@program(0.5, by=1, over=1.05, with_any=False)
def patches_of_images() -> Any:
    """Compilers move the dimensions of the input once for both passes."""

    def loss(x: Any, ws: Any) -> Any:
        y = x.reshape(8, 8, 4, 8, 4).transpose(0, 1, 3, 2, 4).reshape(8, 64, 16)
        for w in ws:
            y = jnp.tanh(y @ w)
        return (y**2).mean()

    return loss, (noise(8, 32, 32), [noise(16, 16)] * 8)


@program(0.5, with_any=False, optimized=True)
def a_graph_network() -> Any:
    """Its plan leaves compilers a choice, which depends on what is around the step."""

    def layer(x: Any, p: Any, senders: Any, receivers: Any) -> Any:
        messages = jax.nn.relu(jnp.concatenate([x[senders], x[receivers]], -1) @ p[0])
        total = jax.ops.segment_sum(messages, receivers, 500)
        return x + jnp.tanh(jnp.concatenate([x, total], -1) @ p[1])

    def loss(ps: Any, x: Any, senders: Any, receivers: Any) -> Any:
        for p in ps:
            x = layer(x, p, senders, receivers)
        return (x.mean(0) ** 2).sum()

    layers = [(noise(64, 32, seed=i), noise(64, 32, seed=i + 9)) for i in range(4)]
    return loss, (layers, noise(500, 32), *jax.random.randint(jax.random.key(0), (2, 4000), 0, 500))


@program(0.4, by=1, with_any=False, optimized=True)
def random_numbers_that_are_drawn_where_they_are_used() -> Any:
    def loss(x: Any, ws: Any, key: Any) -> Any:
        for i, w in enumerate(ws):
            x = jnp.tanh(x @ w) * jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
        return (x**2).mean()

    return loss, (noise(512, 32), many(8, 32, 32), jax.random.key(0))


@program(0.5, by=1, cost=1.25, with_any=False)
def a_network_that_reads_an_input_at_each_step() -> Any:
    """The products of the inputs depend on nothing: compilers make those of all steps at the start."""

    def loss(xs: Any, ws: Any) -> Any:
        h = jnp.zeros((128, 16))
        for x in xs:
            h = jnp.tanh(x @ ws[0] + h @ ws[1])
        return (h**2).mean()

    return loss, (noise(8, 128, 8), (noise(8, 16), noise(16, 16)))


@program(0.4, with_any=False)
def numbers_that_sorting_puts_in_order() -> Any:
    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            order = jnp.argsort(jax.lax.stop_gradient(x), -1)
            x = x + jnp.take_along_axis(jnp.tanh(x @ w), order, -1)
        return (x**2).mean()

    return loss, (many(8, 32, 32), noise(128, 32))


@program(0.25, by=(0, 1), cost=1.45, over=1.03, with_any=False)
def a_cross_entropy() -> Any:
    """Its gradient writes into zeros as large as the logits, at indices that are there from the start."""

    def loss(table: Any, ws: Any, tokens: Any) -> Any:
        x = table[tokens]
        for w in ws:
            x = x + jnp.tanh(jnp.tanh(x @ w) @ w.T)
        of_next = jnp.roll(tokens, -1, 1)[..., None]
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ table.T), of_next, -1).mean()

    return loss, (noise(400, 64), many(16, 64, 64), jnp.arange(256).reshape(4, 64))


@program(0.75, by=(0, 1), cost=1.003, with_any=False)
def the_logits_of_many_words() -> Any:
    """An H100 makes one kernel of a softmax, and a scatter of its gradient: two arrays of logits, where one will do."""

    def loss(ws: Any, x: Any, labels: Any) -> Any:
        logits = jnp.tanh(x @ ws[0]) @ ws[1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()

    return loss, ([noise(64, 64), noise(64, 4096)], noise(1024, 64), jnp.arange(1024))


@program(0.8, cost=1.1, with_any=False)
def gated_layers() -> Any:
    """Products with more dimensions than two, which compilers compute as matrices; two of each layer they merge."""

    def loss(ws: Any, x: Any) -> Any:
        for up, gate, down in ws:
            x = x + (jax.nn.silu(x @ gate) * (x @ up)) @ down
        return (x**2).sum()

    return loss, ([(noise(32, 256), noise(32, 256), noise(256, 32))] * 4, noise(4, 64, 32))


@program(0.25, over=1.1, with_any=False)
def a_weight_that_a_reduction_repeats() -> Any:
    """The compiler makes an array of it, which both passes would share from the first layer on."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = x + (x[:, :, None] * x[:, None, :] * w).sum(-1)
        return (x**2).mean()

    return loss, (many(8, 32, 32), noise(128, 32))


@program(0.35 if KEEPS_BARRIERS else 0.5, optimized=True)
def parts_of_a_gradient_that_are_added_as_they_come() -> Any:
    """A weight that is used in each of eight layers: JAX's own step holds eight arrays as large as the weight."""

    def loss(w: Any, x: Any) -> Any:
        for _ in range(8):
            x = x + jnp.tanh(x @ w)
        return (x**2).mean()

    return loss, (noise(128, 128), noise(32, 128))


@program(0.75, by=1, over=1.25, with_any=False)
def experts() -> Any:
    """The weights have to be copied for the products: once for both passes, the copies would be there all the time."""

    def loss(x: Any, ws: Any) -> Any:
        for w in ws:
            x = x + jnp.einsum("ebk->bk", jnp.tanh(jnp.einsum("bd,edk->ebk", x, w)))
        return (x**2).mean()

    return loss, (jnp.ones((64, 24)), [jnp.ones((4, 24, 24))] * 6)


@program(0.75, cost=1.15)
def two_losses_that_call_one_network_each() -> Any:
    """Compilers merge the calls unless a barrier is between them, so that it is computed once in a plan as well."""

    def net(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    loss = lambda ws, x: (net(ws, x) ** 2).mean() + jnp.abs(net(ws, x)).mean()
    return loss, (many(16, 32, 32), noise(512, 32))


def convolved(x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))


@program(0.75, by=1, over=1.25, with_any=False)
def convolutions() -> Any:
    """Their gradients need copies of their inputs."""

    def loss(x: Any, ws: Any) -> Any:
        for w in ws:
            x = convolved(x, w)
        return (x**2).mean()

    return loss, (jnp.ones((2, 8, 8, 4)), [jnp.ones((3, 3, 4, 4))] * 6)


@program(0.5, over=1.8, with_any=False)
def convolutions_with_pooling() -> Any:
    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jax.lax.reduce_window(convolved(x, w), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (x**2).mean()

    return loss, (many(4, 3, 3, 16, 16), jnp.ones((4, 64, 64, 16)))


@program(*(0.5, 0.35) if KEEPS_BARRIERS else (0.5,), cost=1.6)
def a_loop_that_reads_the_data_of_a_batch_from_where_it_is(reverse: bool = False) -> Any:
    """`vmap` moves the steps to the front."""

    def loss(weights: Any, data: Any) -> Any:
        def step(v: Any, x: Any) -> Any:
            v = jnp.tanh(0.9 * v + x @ weights[0] + jnp.sin(v) @ weights[1])
            return v, v

        run = lambda xs: jax.lax.scan(step, jnp.zeros(24), xs, reverse=reverse)[1]
        return (jax.vmap(run)(data) ** 2).mean()

    return loss, (2 * noise(2, 24, 24), 10 * noise(8, 60, 24, seed=1))


@program(0.5, cost=1.5)
def such_a_loop_that_runs_backwards() -> Any:
    return a_loop_that_reads_the_data_of_a_batch_from_where_it_is(reverse=True)


@program(0.65, 0.4, cost=2.0, with_any=False)
def recurrent_layers_after_each_other() -> Any:
    def loss(layers: Any, x: Any) -> Any:
        for w, u, dense in layers:

            def step(h: Any, x: Any, w: Any = w, u: Any = u) -> Any:
                h = jnp.tanh(x @ w + h @ u)
                return h, h

            runs = jax.vmap(lambda xs, step=step: jax.lax.scan(step, jnp.zeros(32), xs)[1])(x)
            x = jax.nn.relu(runs @ dense) + runs  # made in the forward pass, read by the next loop, and kept
        return (x**2).mean()

    layers = [tuple(2 * noise(32, 32, seed=i + j) for j in (0, 2, 4)) for i in range(2)]
    return loss, (layers, 2 * noise(8, 60, 32, seed=9))


@program(0.5, cost=1.6, with_any=False)
def a_loop_with_as_much_outside_of_it() -> Any:
    """As the loop itself needs for a part of its steps: it has what the rest leaves."""

    def loss(x: Any, xs: Any) -> Any:
        wide = jnp.tanh(jnp.outer(x, x))
        y, _ = jax.lax.scan(lambda h, x: (jnp.sin(h * x), None), x + wide.sum(1), xs)
        return (y * jnp.cos(wide).sum(0)).sum()

    return loss, (jnp.linspace(0.1, 1, 64), 1 + noise(200, 64))


@program(0.25, cost=2.0)
def a_loop_that_sums_up_the_gradient_of_a_matrix() -> Any:
    """A sum of outer products, in the buffer of the gradient."""

    def loss(w: Any, x: Any) -> Any:
        return (jax.lax.fori_loop(0, 40, lambda _, x: 0.9 * x + 0.1 * jnp.tanh(w @ x), x) ** 2).sum()

    return loss, (noise(128, 128), noise(128))


@program(0.85, cost=1.3)
def a_loop_that_may_keep_its_products_and_nothing_else() -> Any:
    """Over what is made of an argument, so that its gradient is stacked as well."""

    def loss(x: Any, w: Any) -> Any:
        step = lambda h, x: (jnp.cos(jnp.sin(jnp.tanh(h @ w + x))), None)
        return (jax.lax.scan(step, jnp.ones(x.shape[1:]), jnp.sin(x))[0] ** 2).sum()

    return loss, (noise(30, 16, 32), noise(32, 32))


@program(0.85, by=(0, 1), cost=1.1, with_any=False)
def steps_that_read_a_matrix_which_is_a_constant() -> Any:
    """Of an LSTM. Compilers make more arrays of them than where the matrix is an input."""
    matrix = noise(16, 64)

    def step(h: Any, c: Any, w: Any) -> Any:
        i, f, g, o = jnp.split(h @ matrix + w, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def loss(x: Any, ws: Any) -> Any:
        h, c = x
        for w in ws:
            h, c = step(h, c, w)
        return (h**2).mean() + (c**2).mean()

    return loss, ((noise(16, 16), noise(16, 16)), many(8, 16, 64))


@program(0.9, by=(0, 1), cost=1.0, with_any=False)
def steps_that_solve_linear_equations() -> Any:
    """Of a Kalman filter. Where the calls of JAX's solver are calls, compilers need more bytes."""
    f, q = jnp.eye(8) + noise(8, 8), 0.1 * jnp.eye(8)

    def loss(x: Any, zs: Any) -> Any:
        x, cov = x
        for z in zs:
            x, cov = f @ x, f @ cov @ f.T + q
            gain = jnp.linalg.solve(cov + jnp.eye(8), cov).T
            x, cov = x + gain @ (z - x), cov - gain @ cov
        return (x**2).mean() + (cov**2).mean()

    return loss, ((noise(8), jnp.eye(8)), many(6, 8))


@pytest.mark.parametrize(("make", "share", "by", "cost", "over"), PROGRAMS)
def test_a_budget_is_kept_as_compiled(make: Any, share: float, by: Any, cost: float, over: float) -> None:
    loss, args = make()
    compiled = lambda f: jax.jit(jax.value_and_grad(f, by)).lower(*args).compile()
    size = lambda program: program.memory_analysis().temp_size_in_bytes
    plain = compiled(loss)
    budget = policies.fit(int(share * size(plain)))
    within = compiled(transform.checkpoint(loss, policy=budget))
    assert size(within) <= budget.bytes
    scale = lambda b: max(1.0, float(abs(b).max()))  # rounding errors of a sum are as large as its parts
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale(b))
    jax.tree.map(same, within(*args), plain(*args))
    if KEEPS_BARRIERS:
        choice = budget.choices[-1]
        assert choice.flops_over_plain <= cost
        assert size(within) <= over * choice.planned_bytes
