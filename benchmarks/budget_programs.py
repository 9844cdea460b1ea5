"""The programs of the budget benchmark: layers in a row, or a body under a scan, with states or without.

Each program is a row of layers `layer(h, p) -> h` between inputs and a loss, so that the hand policies can be applied
to all in the same way. Sizes are small; what matters is the shape of the computation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from statetransform import RandomState, State


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
      x: what goes into the first layer.
      ps: the parameters of each layer.
      layers: one function for each.
      loss: of what comes out of the last one.
      is_loop: whether the layers are equal and run under a scan.
      has_state: whether states are written.
    """

    x: Any
    ps: list[Any]
    layers: list[Callable[[Any, Any], Any]]
    loss: Callable[[Any], Any]
    is_loop: bool = False
    has_state: bool = False


def noise(*shape: int, seed: int = 0) -> jax.Array:
    """Normal numbers, the same ones in every run."""
    return jnp.asarray(np.random.default_rng(seed + 7 * sum(shape)).normal(size=shape) * 0.1, jnp.float32)


def _mean_square(h: Any) -> Any:
    return sum((leaf**2).mean() for leaf in jax.tree.leaves(h) if jnp.issubdtype(leaf.dtype, jnp.inexact))


def _row(x: Any, ps: list[Any], layer: Any, **options: Any) -> Program:
    layers = layer if isinstance(layer, list) else [layer] * len(ps)
    return Program(x, ps, layers, _mean_square, **options)


def mlp(depth: int, width: int = 32, batch: int = 128, act: Any = jnp.tanh) -> Program:
    return _row(noise(batch, width), [noise(width, width, seed=i) for i in range(depth)], lambda h, p: act(h @ p))


def shared(depth: int, width: int = 128, batch: int = 32) -> Program:
    """All layers have one weight, which the first one hands on."""
    step = lambda h, p: h + jnp.tanh(h @ p)
    layers = [lambda h, p: (step(h, p), p), *[lambda h, _: (step(*h), h[1])] * (depth - 1)]
    ps = [noise(width, width), *[()] * (depth - 1)]
    return Program(noise(batch, width), ps, layers, lambda h: _mean_square(h[0]))


def residual(depth: int, width: int = 32, wide: int = 128) -> Program:
    layer = lambda h, p: h + jax.nn.gelu(_norm(h) @ p[0]) @ p[1]
    return _row(
        noise(128, width), [(noise(width, wide, seed=i), noise(wide, width, seed=i)) for i in range(depth)], layer
    )


def _norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _attention(h: Any, p: Any, heads: int = 4) -> Any:
    q, k, v = (jnp.reshape(_norm(h) @ p[name], (*h.shape[:2], heads, -1)) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * 0.3)
    return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(h.shape) @ p["o"]


def _block(h: Any, p: Any) -> Any:
    h = h + _attention(h, p)
    return h + jax.nn.gelu(_norm(h) @ p["a"]) @ p["b"]


def _block_weights(i: int, d: int) -> dict[str, Any]:
    return {name: noise(d, d, seed=i) for name in "qkvo"} | {"a": noise(d, 4 * d, seed=i), "b": noise(4 * d, d, seed=i)}


def transformer(depth: int, d: int = 32, time: int = 16, batch: int = 4) -> Program:
    return _row(noise(batch, time, d), [_block_weights(i, d) for i in range(depth)], _block)


def _conv(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def resnet(depth: int, channels: int = 8, size: int = 12) -> Program:
    layer = lambda h, p: h + _conv(jax.nn.relu(_conv(jax.nn.relu(h), p[0])), p[1])
    ps = [(noise(3, 3, channels, channels, seed=i), noise(3, 3, channels, channels, seed=i + 1)) for i in range(depth)]
    return _row(noise(4, size, size, channels), ps, layer)


def unet(depth: int, channels: int = 8, size: int = 16) -> Program:
    def down(h: Any, p: Any) -> Any:
        x, *skips = h
        x = jax.nn.relu(_conv(x, p))
        pooled = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
        return (pooled, x, *skips)

    def up(h: Any, p: Any) -> Any:
        x, skip, *skips = h
        x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
        return (jax.nn.relu(_conv(jnp.concatenate([x, skip], -1), p)), *skips)

    ps = [noise(3, 3, channels, channels, seed=i) for i in range(depth)]
    ps += [noise(3, 3, 2 * channels, channels, seed=i) for i in range(depth)]
    return _row((noise(2, size, size, channels),), ps, [down] * depth + [up] * depth)


def pde(steps: int, size: int = 32, is_loop: bool = False) -> Program:
    def layer(u: Any, k: Any) -> Any:
        lap = jnp.pad(u[1:] - u[:-1], ((0, 1), (0, 0))) - jnp.pad(u[1:] - u[:-1], ((1, 0), (0, 0)))
        return u + 0.1 * k * lap - 0.01 * u**3

    return _row(noise(size, size), [noise(size, size, seed=i) for i in range(steps)], layer, is_loop=is_loop)


def nbody(steps: int, n: int = 24, is_loop: bool = False) -> Program:
    def layer(h: Any, p: Any) -> Any:
        x, v = h
        d = x[:, None] - x[None]
        v = v - 0.01 * p * (d / ((d**2).sum(-1, keepdims=True) + 0.1) ** 1.5).sum(1)
        return x + 0.01 * v, v

    return _row((noise(n, 3), noise(n, 3, seed=1)), [noise(n, 1, seed=i) for i in range(steps)], layer, is_loop=is_loop)


def rnn(steps: int, width: int = 24, is_loop: bool = True) -> Program:
    w = noise(width, width)
    layer = lambda h, p: jnp.tanh(h @ w + p)
    return _row(noise(16, width), [noise(16, width, seed=i) for i in range(steps)], layer, is_loop=is_loop)


def lstm(steps: int, width: int = 16, is_loop: bool = True) -> Program:
    w = noise(width, 4 * width)

    def layer(h: Any, p: Any) -> Any:
        h, c = h
        i, f, g, o = jnp.split(h @ w + p, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    ps = [noise(16, 4 * width, seed=i) for i in range(steps)]
    return _row((noise(16, width), noise(16, width, seed=1)), ps, layer, is_loop=is_loop)


def ssm(steps: int, width: int = 64, is_loop: bool = True) -> Program:
    a = noise(width)
    layer = lambda h, p: jax.nn.sigmoid(a) * h + p * jnp.sin(h)
    return _row(noise(8, width), [noise(8, width, seed=i) for i in range(steps)], layer, is_loop=is_loop)


def gnn(depth: int, n: int = 64, edges: int = 256, width: int = 16) -> Program:
    rng = np.random.default_rng(0)
    source, target = (jnp.asarray(rng.integers(0, n, edges)) for _ in range(2))

    def layer(h: Any, p: Any) -> Any:
        message = jnp.tanh(jnp.concatenate([h[source], h[target]], -1) @ p[0])
        return h + jax.ops.segment_sum(message, target, n) @ p[1]

    return _row(
        noise(n, width), [(noise(2 * width, width, seed=i), noise(width, width, seed=i)) for i in range(depth)], layer
    )


def kalman(steps: int, d: int = 8, is_loop: bool = False) -> Program:
    f, q = jnp.eye(d) + noise(d, d), 0.1 * jnp.eye(d)

    def layer(h: Any, z: Any) -> Any:
        x, cov = h
        x, cov = f @ x, f @ cov @ f.T + q
        gain = jnp.linalg.solve(cov + jnp.eye(d), cov).T
        return x + gain @ (z - x), cov - gain @ cov

    return _row((noise(d), jnp.eye(d)), [noise(d, seed=i) for i in range(steps)], layer, is_loop=is_loop)


def mixture(depth: int, experts: int = 4, width: int = 24) -> Program:
    def layer(h: Any, p: Any) -> Any:
        gates = jax.nn.softmax(h @ p[0])
        return h + jnp.einsum("be,ebd->bd", gates, jax.nn.gelu(jnp.einsum("bd,edk->ebk", h, p[1])))

    ps = [(noise(width, experts, seed=i), noise(experts, width, width, seed=i)) for i in range(depth)]
    return _row(noise(64, width), ps, layer)


def spiking(steps: int, width: int = 32, is_loop: bool = True) -> Program:
    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    spike.defjvp(lambda p, t: (spike(p[0]), t[0] / (1 + 10 * jnp.abs(p[0])) ** 2))
    w = noise(width, width)

    def layer(h: Any, p: Any) -> Any:
        v, s = h
        v = 0.9 * v * (1 - s) + s @ w + p
        return v, spike(v - 0.1)

    ps = [noise(16, width, seed=i) for i in range(steps)]
    return _row((noise(16, width), jnp.zeros((16, width))), ps, layer, is_loop=is_loop)


def vae(depth: int) -> Program:
    widths = [64 // 2**i for i in range(depth + 1)]
    widths += widths[-2::-1]
    ps = [noise(a, b, seed=i) for i, (a, b) in enumerate(itertools.pairwise(widths))]
    return _row(noise(256, 64), ps, lambda h, p: jax.nn.softplus(h @ p))


def with_average(program: Program, name: str = "mean") -> Program:
    """The same with a state in each layer that follows the average of what comes out, as in batch normalization."""

    def watched(layer: Any) -> Any:
        seen = State(jnp.zeros(()), name=name)

        def run(h: Any, p: Any) -> Any:
            h = layer(h, p)
            first = jax.tree.leaves(h)[0]
            seen.value = 0.9 * seen.value + 0.1 * first.mean()
            return h

        return run

    layers = (
        [watched(program.layers[0])] * len(program.layers) if program.is_loop else list(map(watched, program.layers))
    )
    return dataclasses.replace(program, layers=layers, has_state=True)


def with_dropout(program: Program) -> Program:
    """The same with random numbers from a state in each layer."""
    rng = RandomState(0)

    def dropped(layer: Any) -> Any:
        def run(h: Any, p: Any) -> Any:
            h = layer(h, p)
            return jax.tree.map(lambda x: x * jax.random.bernoulli(rng.split(), 0.9, x.shape), h)

        return run

    shared = dropped(program.layers[0])
    layers = [shared] * len(program.layers) if program.is_loop else list(map(dropped, program.layers))
    return dataclasses.replace(program, layers=layers, has_state=True)


def with_position(program: Program) -> Program:
    """The same with what goes through the layers in a state that each of them reads and writes."""
    u = State(program.x, name="u")

    def moved(layer: Any) -> Any:
        def run(h: Any, p: Any) -> Any:
            u.value = h
            u.value = layer(u.value, p)
            return u.value

        return run

    shared = moved(program.layers[0])
    layers = [shared] * len(program.layers) if program.is_loop else list(map(moved, program.layers))
    return dataclasses.replace(program, layers=layers, has_state=True)


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{f"mlp{n}": lambda n=n: mlp(n) for n in (4, 8, 16, 32)},
    **{f"relu_mlp{n}": lambda n=n: mlp(n, act=jax.nn.relu) for n in (8, 24)},
    **{f"shared{n}": lambda n=n: shared(n) for n in (8, 24)},
    **{f"residual{n}": lambda n=n: residual(n) for n in (3, 6, 12)},
    **{f"transformer{n}": lambda n=n: transformer(n) for n in (1, 2, 4, 8)},
    **{f"resnet{n}": lambda n=n: resnet(n) for n in (3, 8)},
    **{f"unet{n}": lambda n=n: unet(n) for n in (2, 3)},
    **{f"pde{n}": lambda n=n: pde(n) for n in (8, 24)},
    **{f"nbody{n}": lambda n=n: nbody(n) for n in (4, 12)},
    **{f"rnn{n}": lambda n=n: rnn(n, is_loop=False) for n in (12, 40)},
    **{f"gnn{n}": lambda n=n: gnn(n) for n in (3, 8)},
    **{f"kalman{n}": lambda n=n: kalman(n) for n in (6,)},
    **{f"mixture{n}": lambda n=n: mixture(n) for n in (3, 8)},
    **{f"vae{n}": lambda n=n: vae(n) for n in (3,)},
    "rnn_scan": lambda: rnn(64),
    "lstm_scan": lambda: lstm(48),
    "ssm_scan": lambda: ssm(100),
    "pde_scan": lambda: pde(50, is_loop=True),
    "nbody_scan": lambda: nbody(30, is_loop=True),
    "spiking_scan": lambda: spiking(40),
    "kalman_scan": lambda: kalman(30, is_loop=True),
    "lstm8": lambda: lstm(8, is_loop=False),
    **{f"mean_mlp{n}": lambda n=n: with_average(mlp(n)) for n in (8, 24)},
    **{f"mean_resnet{n}": lambda n=n: with_average(resnet(n)) for n in (3,)},
    **{f"mean_residual{n}": lambda n=n: with_average(residual(n)) for n in (6,)},
    **{f"mean_gnn{n}": lambda n=n: with_average(gnn(n)) for n in (4,)},
    **{f"dropout_mlp{n}": lambda n=n: with_dropout(mlp(n)) for n in (4, 8)},
    **{f"dropout_transformer{n}": lambda n=n: with_dropout(transformer(n)) for n in (2,)},
    **{f"state_pde{n}": lambda n=n: with_position(pde(n)) for n in (8, 24)},
    **{f"state_rnn{n}": lambda n=n: with_position(rnn(n, is_loop=False)) for n in (12, 24)},
    **{f"state_nbody{n}": lambda n=n: with_position(nbody(n)) for n in (6,)},
    **{f"state_mixture{n}": lambda n=n: with_position(mixture(n)) for n in (4,)},
    "mean_rnn_scan": lambda: with_average(rnn(48)),
    "mean_ssm_scan": lambda: with_average(ssm(60)),
    "state_pde_scan": lambda: with_position(pde(40, is_loop=True)),
    "state_spiking_scan": lambda: with_position(spiking(30)),
    "mean_transformer4": lambda: with_average(transformer(4)),
}

#: Of a size at which arithmetic takes the time.
LARGE: dict[str, Callable[[], Program]] = {
    "mlp": lambda: mlp(8, 256, 2048),
    "residual": lambda: residual(6, 128, 512),
    "transformer": lambda: transformer(4, 128, 64, 8),
    "nbody": lambda: nbody(4, 256),
    "pde": lambda: pde(16, 512),
    "rnn_scan": lambda: rnn(64, 256),
}
