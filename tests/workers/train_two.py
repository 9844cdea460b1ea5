"""One of two processes that train together; prints its final states.

python train_two.py PORT PROCESS
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

STEPS, RATE = 4, 0.1
DATA = np.linspace(-1, 1, 8 * 3, dtype=np.float32).reshape(8, 3)
TARGET = np.sin(DATA.sum(1))


def by_hand() -> tuple:
    """The same training in one process, without this package."""
    w, momentum, n = jnp.ones(3), jnp.zeros(3), 0
    loss = lambda w: ((jnp.tanh(DATA @ w) - TARGET) ** 2).mean()
    for _ in range(STEPS):
        momentum = 0.9 * momentum + jax.grad(loss)(w)
        w, n = w - RATE * momentum, n + 1
    return w, momentum, n


def together(port: str, process: int) -> tuple:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, 2, process, initialization_timeout=60)
    from statetransform import Param, State, transform

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    everywhere, split = (jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",)))
    spread = jax.make_array_from_process_local_data
    mine = slice(4 * process, 4 * process + 4)
    data, target = (spread(split, part[mine]) for part in (DATA, TARGET))

    w = Param(spread(everywhere, np.ones(3, np.float32)), name="w")
    momentum = State(spread(everywhere, np.zeros(3, np.float32)), name="momentum")
    n = State(spread(everywhere, np.zeros((), np.int32)), name="n")

    @transform.checkpoint
    def predict(data):
        n.value = n.value + 1
        return jnp.tanh(data @ w.value)

    @transform.jit
    def step(data, target):
        gradient = transform.grad(lambda: ((predict(data) - target) ** 2).mean(), states=w)()
        momentum.value = 0.9 * momentum.value + gradient
        w.value = w.value - RATE * momentum.value

    for _ in range(STEPS):
        step(data, target)
    assert len(jax.devices()) == 2 and data.shape == (8, 3)
    assert w.value.sharding.is_equivalent_to(everywhere, 1)
    return tuple(state.value.addressable_data(0) for state in (w, momentum, n))


if __name__ == "__main__":
    values = together(sys.argv[1], int(sys.argv[2]))
    print("final", *[np.asarray(value).tolist() for value in values], sep=" | ", flush=True)
