"""What the package knows of other frameworks, one module each, imported once the framework is."""

from .._core.activation import pending
from .attributes import attr, register_state_type

__all__ = ["attr", "register_state_type"]

pending.update({"jax": f"{__name__}.ref", "brainstate": f"{__name__}.brainstate", "flax.nnx": f"{__name__}.nnx"})
