"""References to JAX, NumPy and Python that need no network.

Sphinx's intersphinx wants an inventory of the other site. Here each is a list of names in a text file, packed before
the build starts, so that the same pages come out with and without a network.
"""

from __future__ import annotations

import pathlib
import zlib
from typing import Any

SITES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
}


def pack(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes the list as an inventory of version 2: `name domain:role place`, a line each."""
    lines = [line.split() for line in source.read_text().splitlines() if line and not line.startswith("#")]
    body = "".join(f"{name} {role} 1 {place} -\n" for name, role, place in lines)
    head = f"# Sphinx inventory version 2\n# Project: {source.stem}\n# Version: \n# The rest is packed with zlib.\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(head.encode() + zlib.compress(body.encode()))


def configure(app: Any, config: Any) -> None:
    """Tells intersphinx where the packed inventories are."""
    folder = pathlib.Path(app.doctreedir) / "inventories"
    for name, site in SITES.items():
        pack(pathlib.Path(app.srcdir) / "inventories" / f"{name}.txt", folder / f"{name}.inv")
        config.intersphinx_mapping[name] = (site, str(folder / f"{name}.inv"))


def setup(app: Any) -> dict[str, bool]:
    app.connect("config-inited", configure, priority=100)  # before intersphinx looks at its mapping
    return {"parallel_read_safe": True, "parallel_write_safe": True}
