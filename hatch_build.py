"""What a package index shows: the README without what leads nowhere there.

In the repository links and pictures are relative. On an index they would be broken, so here they become links below the
address of the source, if `[project.urls]` in pyproject.toml knows one, or else plain text; a picture is left out then.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# ![text](target) or [text](target), with a target that is no address of its own.
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def for_index(readme: str, source: str | None) -> str:
    """The README for a package index."""

    def replace(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if source is None:
            return "" if mark else text
        return f"{mark}[{text}]({source.rstrip('/')}/{'raw' if mark else 'blob'}/main/{target})"

    readme = re.sub(r"<!--.*?-->\n?", "", readme, flags=re.DOTALL)
    return re.sub(r"\n{3,}", "\n\n", RELATIVE.sub(replace, readme))


class Readme(MetadataHookInterface):
    """Gives the metadata its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = pathlib.Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, source)}
