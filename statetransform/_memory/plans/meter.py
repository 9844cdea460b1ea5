"""A bar that moves while a plan is made."""

from __future__ import annotations

from typing import Any

from ..._base.optional import progress_bar


class Meter:
    """A bar of `tqdm` with one step for each part of the work, from when that takes long.

    Args:
      name: of the function.
      delay: seconds after which the bar is shown.

    Raises:
      ImportError: `tqdm` is missing.
    """

    def __init__(self, name: str, delay: float = 0.5) -> None:
        self._tqdm = progress_bar()
        self._name, self._delay = name, delay
        self._bar: Any = None

    def __call__(self, part: str) -> None:
        """The next part of the work begins."""
        if self._bar is None:
            self._bar = self._tqdm(desc=f"{self._name}: {part}", delay=self._delay, unit=" parts")
        else:
            self._bar.update()
            self._bar.set_description_str(f"{self._name}: {part}")

    def close(self) -> None:
        """The work is done."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None
