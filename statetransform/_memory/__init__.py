"""Fewer bytes for the gradient of any JAX function. Knows no state, no frame and no trace of ours.

This page is the door: what `transform` and the package's first page take from here. Behind it, where reports look, too:

* `programs` reads and rewrites jaxprs, and has the table of primitives;
* `loops` are loops that store few carries, also in host memory or files (`loops.far`);
* `plans` keep any function within a number of bytes;
* `targets` are the compilers that are asked, also those of cards that are not there;
* `policies` say which values a checkpoint keeps;
* `context` is what only the caller knows of a call, and `checkpointing` chooses who asks a policy.
"""

from .checkpointing import checkpoint
from .context import ONE, Context, Lanes, known_lanes, said_of_program
from .loops.budget import MemoryBudget
from .loops.loops import scan, while_loop
from .loops.options import Reversible, check_carries
from .loops.progress import ProgressBar
from .loops.schedule import schedule
from .policies import check_policy, checkpoint_name
from .targets import Target, target

__all__ = [
    "ONE",
    "Context",
    "Lanes",
    "MemoryBudget",
    "ProgressBar",
    "Reversible",
    "Target",
    "check_carries",
    "check_policy",
    "checkpoint",
    "checkpoint_name",
    "known_lanes",
    "said_of_program",
    "scan",
    "schedule",
    "target",
    "while_loop",
]
