"""The models of `models.py`: functions of `around`, which wraps each block, that give a loss and abstract arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Around = Callable[[Any], Any]
Made = tuple[Callable[[Any, Any], Any], tuple[Any, Any]]


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _layer_norm(x: Any, p: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p[0] + p[1]


def _rms_norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def vit(around: Around, batch: int = 64, depth: int = 12, d: int = 768, heads: int = 12) -> Made:
    """ViT-B/16: Dosovitskiy et al., An image is worth 16x16 words, 2021, with 224 x 224 pixels and 1,000 classes."""

    def block(x: Any, p: Any) -> Any:
        q, k, v = (
            (_layer_norm(x, p["norm1"]) @ p[n] + p[n + "b"]).reshape(*x.shape[:2], heads, d // heads) for n in "qkv"
        )
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * (d // heads) ** -0.5)
        x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ p["o"] + p["ob"]
        return x + jax.nn.gelu(_layer_norm(x, p["norm2"]) @ p["up"] + p["upb"]) @ p["down"] + p["downb"]

    one = {n: f32(d, d) for n in "qkvo"} | {n + "b": f32(d) for n in "qkvo"}
    one |= {"up": f32(d, 4 * d), "upb": f32(4 * d), "down": f32(4 * d, d), "downb": f32(d)}
    one |= {"norm1": (f32(d), f32(d)), "norm2": (f32(d), f32(d))}
    params = {"patch": f32(16 * 16 * 3, d), "class": f32(1, 1, d), "place": f32(1, 197, d), "blocks": [one] * depth}
    params |= {"norm": (f32(d), f32(d)), "head": f32(d, 1000)}

    def loss(params: Any, data: Any) -> Any:
        images, labels = data
        n = len(images)
        patches = images.reshape(n, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 196, -1)
        x = jnp.concatenate([jnp.broadcast_to(params["class"], (n, 1, d)), patches @ params["patch"]], 1)
        x = x + params["place"]
        for p in params["blocks"]:
            x = around(block)(x, p)
        return _cross_entropy(_layer_norm(x[:, 0], params["norm"]) @ params["head"], labels)

    return loss, (params, (f32(batch, 224, 224, 3), i32(batch)))


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _batch_norm(x: Any, p: Any) -> Any:
    mean = x.mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5) * p[0] + p[1]


def _pooled(x: Any, size: int, padding: str = "VALID") -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, 2, 2, 1), padding)


def resnet(around: Around, batch: int = 64) -> Made:
    """ResNet-50 in train mode: He et al., Deep residual learning for image recognition, 2016; 224 x 224 pixels."""

    def block(x: Any, p: Any, stride: int) -> Any:
        y = jax.nn.relu(_batch_norm(_conv(x, p["a"]), p["na"]))
        y = jax.nn.relu(_batch_norm(_conv(y, p["b"], stride), p["nb"]))
        y = _batch_norm(_conv(y, p["c"]), p["nc"])
        return jax.nn.relu(y + (_batch_norm(_conv(x, p["s"], stride), p["ns"]) if "s" in p else x))

    norm = lambda c: (f32(c), f32(c))
    blocks, strides, given = [], [], 64
    for stage, (count, c) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for k in range(count):
            p = {"a": f32(1, 1, given, c), "b": f32(3, 3, c, c), "c": f32(1, 1, c, 4 * c)}
            p |= {"na": norm(c), "nb": norm(c), "nc": norm(4 * c)}
            p |= {"s": f32(1, 1, given, 4 * c), "ns": norm(4 * c)} if k == 0 else {}
            blocks.append(p)
            strides.append(2 if k == 0 and stage else 1)
            given = 4 * c
    params = {"stem": f32(7, 7, 3, 64), "norm": norm(64), "blocks": blocks, "head": f32(2048, 1000)}

    def loss(params: Any, data: Any) -> Any:
        images, labels = data
        x = jax.nn.relu(_batch_norm(_conv(images, params["stem"], 2), params["norm"]))
        x = _pooled(x, 3, "SAME")
        for p, stride in zip(params["blocks"], strides, strict=True):
            x = around(functools.partial(block, stride=stride))(x, p)
        return _cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    return loss, (params, (f32(batch, 224, 224, 3), i32(batch)))


def unet(around: Around, batch: int = 8, size: int = 256) -> Made:
    """Ronneberger et al., U-Net, 2015: 64 to 1,024 channels, with padding, so that sizes stay powers of two."""

    def block(x: Any, p: Any) -> Any:
        return jax.nn.relu(_conv(jax.nn.relu(_conv(x, p[0])), p[1]))

    channels = [64, 128, 256, 512, 1024]
    pair = lambda given, c: (f32(3, 3, given, c), f32(3, 3, c, c))
    params = {"down": [pair(*some) for some in zip([3, *channels], channels, strict=False)]}
    params["up"] = [(f32(2, 2, 2 * c, c), pair(2 * c, c)) for c in channels[-2::-1]]
    params["head"] = f32(1, 1, 64, 2)

    def loss(params: Any, data: Any) -> Any:
        x, labels = data
        skips: list[Any] = []
        for p in params["down"]:
            x = around(block)(_pooled(skips[-1], 2) if skips else x, p)
            skips.append(x)
        for (wide, p), skip in zip(params["up"], skips[-2::-1], strict=True):
            x = lax.conv_transpose(x, wide, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = around(block)(jnp.concatenate([skip, x], -1), p)
        return _cross_entropy(_conv(x, params["head"]), labels)

    return loss, (params, (f32(batch, size, size, 3), i32(batch, size, size)))


def gemma(around: Around, batch: int = 8, length: int = 512, depth: int = 18, words: int = 32768) -> Made:
    """Gemma 3 270M: Gemma team, 2025 (github.com/google-deepmind/gemma), global attention, with 32k words."""
    d, heads, size, wide = 640, 4, 256, 2048

    def rotated(x: Any) -> Any:
        angle = jnp.arange(length)[:, None, None] * 10000.0 ** (-jnp.arange(size // 2) / (size // 2))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)

    def block(x: Any, p: Any) -> Any:
        y = _rms_norm(x, p["norms"][0])
        q = rotated(_rms_norm(jnp.einsum("btd,dhk->bthk", y, p["q"]), p["qn"])) * size**-0.5
        k, v = jnp.einsum("btd,cdk->cbtk", y, p["kv"])
        k = rotated(_rms_norm(k, p["kn"])[:, :, None])[:, :, 0]
        scores = jnp.einsum("bthk,bsk->bhts", q, k)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -2e38)
        y = jnp.einsum("bhts,bsk->bthk", jax.nn.softmax(scores), v)
        x = x + _rms_norm(jnp.einsum("bthk,hkd->btd", y, p["o"]), p["norms"][1])
        y = _rms_norm(x, p["norms"][2])
        y = (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        return x + _rms_norm(y, p["norms"][3])

    one = {"q": f32(d, heads, size), "kv": f32(2, d, size), "o": f32(heads, size, d), "qn": f32(size), "kn": f32(size)}
    one |= {"gate": f32(d, wide), "up": f32(d, wide), "down": f32(wide, d), "norms": [f32(d)] * 4}
    params = {"words": f32(words, d), "blocks": [one] * depth, "norm": f32(d)}

    def loss(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens[:, :-1]] * d**0.5
        for p in params["blocks"]:
            x = around(block)(x, p)
        return _cross_entropy(_rms_norm(x, params["norm"]) @ params["words"].T, tokens[:, 1:])

    return loss, (params, i32(batch, length + 1))


def mamba(around: Around, batch: int = 4, length: int = 512, depth: int = 24, words: int = 50288) -> Made:
    """Mamba-2 130M: Dao and Gu, Transformers are SSMs, 2024, with the dual form in chunks as in its listing 1."""
    d, inner, size, state, chunk = 768, 1536, 64, 128, 64
    heads = inner // size

    def sums(x: Any) -> Any:
        """Sums of all segments, as in the listing: lower triangular."""
        total = jnp.cumsum(x, -1)
        found = total[..., :, None] - total[..., None, :]
        return jnp.where(jnp.tril(jnp.ones(found.shape[-2:], bool)), found, -jnp.inf)

    def ssd(x: Any, a: Any, b: Any, c: Any) -> Any:
        cut = lambda y: y.reshape(batch, length // chunk, chunk, *y.shape[2:])
        x, a, b, c = map(cut, (x, a, b, c))
        a = a.transpose(0, 3, 1, 2)
        total = jnp.cumsum(a, -1)
        within = jnp.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, jnp.exp(sums(a)), x)
        states = jnp.einsum("bcln,bhcl,bclhp->bchpn", b, jnp.exp(total[..., -1:] - total), x)
        states = jnp.concatenate([jnp.zeros_like(states[:, :1]), states], 1)
        decay = jnp.exp(sums(jnp.pad(total[..., -1], ((0, 0), (0, 0), (1, 0)))))
        states = jnp.einsum("bhzc,bchpn->bzhpn", decay, states)[:, :-1]
        return (within + jnp.einsum("bcln,bchpn,bhcl->bclhp", c, states, jnp.exp(total))).reshape(batch, length, inner)

    def block(x: Any, p: Any) -> Any:
        z, y, dt = jnp.split(_rms_norm(x, p["norm"]) @ p["in"], [inner, 2 * inner + 2 * state], -1)
        padded = jnp.pad(y, ((0, 0), (3, 0), (0, 0)))
        y = jax.nn.silu(sum(padded[:, k : k + length] * p["conv"][k] for k in range(4)) + p["convb"])
        y, b, c = jnp.split(y, [inner, inner + state], -1)
        dt = jax.nn.softplus(dt + p["dtb"])
        y = y.reshape(batch, length, heads, size)
        out = ssd(y * dt[..., None], -jnp.exp(p["a"]) * dt, b, c) + (y * p["d"][:, None]).reshape(batch, length, inner)
        return x + _rms_norm(out * jax.nn.silu(z), p["gated"]) @ p["out"]

    one = {"norm": f32(d), "in": f32(d, 2 * inner + 2 * state + heads), "conv": f32(4, inner + 2 * state)}
    one |= {"convb": f32(inner + 2 * state), "dtb": f32(heads), "a": f32(heads), "d": f32(heads)}
    one |= {"gated": f32(inner), "out": f32(inner, d)}
    params = {"words": f32(words, d), "blocks": [one] * depth, "norm": f32(d)}

    def loss(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens[:, :-1]]
        for p in params["blocks"]:
            x = around(block)(x, p)
        return _cross_entropy(_rms_norm(x, params["norm"]) @ params["words"].T, tokens[:, 1:])

    return loss, (params, i32(batch, length + 1))


def lstm(around: Around, batch: int = 32, length: int = 512, d: int = 512, words: int = 10000) -> Made:
    """Two LSTM layers on words: Zaremba et al., Recurrent neural network regularization, 2014, without dropout."""

    def step(state: Any, x: Any, p: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"] + p["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    layer = {"x": f32(d, 4 * d), "h": f32(d, 4 * d), "b": f32(4 * d)}
    params = {"words": f32(words, d), "layers": [layer] * 2, "head": f32(d, words)}

    def loss(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens[:-1]]
        zeros = jnp.zeros((batch, d))
        for p in params["layers"]:
            _, x = around(lambda x, p=p: lax.scan(functools.partial(step, p=p), (zeros, zeros), x))(x)
        return _cross_entropy(x @ params["head"], tokens[1:])

    return loss, (params, i32(length + 1, batch))


def spiking(around: Around, batch: int = 256, steps: int = 1000, given: int = 700, hidden: int = 256) -> Made:
    """Leaky neurons with recurrence and surrogate gradients: Zenke and Vogels, 2021, on the Heidelberg digits."""

    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    @spike.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (v,), (dot,) = primals, tangents
        return spike(v), dot / (1 + 10 * jnp.abs(v)) ** 2

    def loss(params: Any, data: Any) -> Any:
        inputs, labels = data

        def step(carry: Any, x: Any) -> Any:
            current, v, z, out, most = carry
            current = 0.9 * current + x @ params["in"] + z @ params["again"]
            v = 0.95 * v * (1 - z) + current
            z = spike(v - 1)
            out = 0.95 * out + z @ params["out"]
            return (current, v, z, out, jnp.maximum(most, out)), None

        zeros, out = jnp.zeros((batch, hidden)), jnp.zeros((batch, 20))
        (*_, most), _ = lax.scan(around(step), (zeros, zeros, zeros, out, out), inputs)
        return _cross_entropy(most, labels)

    params = {"in": f32(given, hidden), "again": f32(hidden, hidden), "out": f32(hidden, 20)}
    return loss, (params, (f32(steps, batch, given), i32(batch)))


def wave(around: Around, size: int = 512, steps: int = 1000) -> Made:
    """Full waveform inversion of acoustic waves: Tarantola, 1984; second order in time, fourth in space."""

    def loss(speed: Any, data: Any) -> Any:
        source, seen = data

        def step(carry: Any, xs: Any) -> Any:
            before, now = carry
            push, target = xs
            u = jnp.pad(now, 2)
            far = u[4:, 2:-2] + u[:-4, 2:-2] + u[2:-2, 4:] + u[2:-2, :-4]
            near = u[3:-1, 2:-2] + u[1:-3, 2:-2] + u[2:-2, 3:-1] + u[2:-2, 1:-3]
            lap = (16 * near - far - 60 * now) / 12
            after = 2 * now - before + speed**2 * lap
            after = after.at[size // 2, size // 2].add(push)
            return (now, after), ((after[4] - target) ** 2).sum()

        zeros = jnp.zeros((size, size))
        return lax.scan(around(step), (zeros, zeros), (source, seen))[1].sum()

    return loss, (f32(size, size), (f32(steps), f32(steps, size)))


MODELS: dict[str, Callable[[Around], Made]] = {
    "vit": vit,
    "resnet": resnet,
    "unet": unet,
    "gemma": gemma,
    "mamba": mamba,
    "lstm": lstm,
    "spiking": spiking,
    "wave": wave,
}
