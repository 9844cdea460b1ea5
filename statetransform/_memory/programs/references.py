"""A `jax.new_ref` inside a function.

JAX cannot compile or differentiate one in a function with a derivative rule of its own, and a plan of values does not
see what is written to it.
"""

from __future__ import annotations

from typing import Any

from .walk import walk


def made_in(jaxpr: Any) -> str | None:
    """Where a program makes a reference; None where it makes none."""
    site = next((site for site in walk(jaxpr) if site.primitive == "new_ref"), None)
    return None if site is None else f" at {site.source}" if site.source else ""


def refuse_references(where: str, made: str | None, reason: str) -> None:
    """Refuses a program that makes a reference, as `made_in` tells; `reason` is why it has a rule of its own."""
    if made is not None:
        raise TypeError(
            f"{where}: `jax.new_ref`{made} makes a reference inside. {reason}, and in a function with one JAX can "
            "neither compile nor differentiate it. Compute a new array instead (`x = x.at[i].set(y)`), or make the "
            "value the carry of a loop."
        )
