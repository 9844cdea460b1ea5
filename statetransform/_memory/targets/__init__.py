"""The compilers of cards that are not there, and of the one that is: whoever wants to know bytes asks here.

`target_of` says which devices a program is for, from what the user gave and from where values are. `compile_for`
compiles a function of arrays for them and reads what it needs. A compiler that refuses a program for want of memory
gives an answer, not an error. Nothing here knows of states, loops or plans.

Compiling for an NVIDIA GPU without one is done by JAX's plugin with the numbers of the card (`cards`); a TPU's compiler
knows its topologies by name. Neither needs the card, and neither tries kernels, so that what autotuning chooses is not
known; nor is what an allocator does with the bytes.
"""

from .cards import Card
from .compilers import prepare_environment
from .compiling import Compiled, compile_for, compiled_by, lower_for, mesh_of, placed
from .target import Target, refuse_offloading, target, target_of

prepare_environment()  # before JAX looks for its plugins, which it does once

__all__ = [
    "Card",
    "Compiled",
    "Target",
    "compile_for",
    "compiled_by",
    "lower_for",
    "mesh_of",
    "placed",
    "refuse_offloading",
    "target",
    "target_of",
]
