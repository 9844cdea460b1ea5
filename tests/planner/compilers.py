"""What compilers do with the programs that plans become."""

import jax

#: Whether the compiler keeps `optimization_barrier`: the CPU's of JAX 0.10 removes it, and merges what it kept apart.
KEEPS_BARRIERS = jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 11)
