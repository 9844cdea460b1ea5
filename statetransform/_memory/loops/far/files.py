"""Carries in files, seen from the host: one file without a name for each sweep, rows of equal size.

A file is created in the folder that the user gives, and unlinked at once. So nothing is left behind, however the
process ends, and no other process finds it. All of its space is asked for when it is made; a loop whose length is not
known asks for more as it goes on. A thread writes behind the program and reads ahead of it.

What a program gets is a number for each file. A file is closed with the last read; one whose backward sweep never comes
(after an error elsewhere, or in forward mode) makes room for the next that needs it, or goes with the process.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from ...programs.sizes import format_bytes

_BEHIND = 2  # rows that wait to be written, besides the one that is


@dataclasses.dataclass(frozen=True)
class Folder:
    """Where files go, how many bytes they may take together, and the loop, for messages."""

    path: str
    limit: int
    where: str

    def open(self) -> IO[bytes]:
        """A file without a name, and without room."""
        with self._explained(0):
            file = tempfile.TemporaryFile(dir=self.path, prefix="statetransform-", buffering=0)  # noqa: SIM115
        if not os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
        raise OSError(
            f"{self.where}: the file system of the folder {self.path!r} does not unlink open files, as network "
            "file systems do not. What is stored there would be left behind. Give a folder on a local disk."
        )

    def allocate(self, file: IO[bytes], start: int, end: int) -> None:
        """Asks for the room of a file up to its new end."""
        with self._explained(end):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), start, end - start)
                return
            zeros = bytes(min(end - start, 1 << 24))
            for place in range(start, end, len(zeros)):
                os.pwrite(file.fileno(), zeros[: end - place], place)

    @contextlib.contextmanager
    def _explained(self, nbytes: int) -> Iterator[None]:
        """Errors of the system name the folder, the bytes needed and the bytes free."""
        try:
            yield
        except OSError as error:
            try:
                free = shutil.disk_usage(self.path).free
                room = f", where {free} bytes ({format_bytes(free)}) are free"
            except OSError:
                room = ""
            needed = f"{nbytes} bytes ({format_bytes(nbytes)})" if nbytes else "room"
            message = f"{self.where}: the stored carries need {needed} in the folder {self.path!r}{room}"
            raise type(error)(error.errno, f"{message}: {error.strerror}") from error


class Rows:
    """One file of rows, each with the same arrays."""

    def __init__(self, folder: Folder, leaves: Sequence[np.ndarray]) -> None:
        self.folder, self._types = folder, [(leaf.shape, leaf.dtype) for leaf in leaves]
        self.size = sum(leaf.nbytes for leaf in leaves)  # of a row
        self.count = 0
        self._file = folder.open()
        weakref.finalize(self, self._file.close)  # at the end of the process, too
        self._behind: collections.deque[concurrent.futures.Future[None]] = collections.deque()
        self._ahead: dict[int, concurrent.futures.Future[list[np.ndarray]]] = {}

    def grow(self, count: int) -> None:
        """Makes room for so many rows."""
        if count and self.size:
            self.folder.allocate(self._file, self.count * self.size, count * self.size)
        self.count = count

    def write(self, row: int, leaves: Sequence[np.ndarray]) -> None:
        """Copies a row, and has it written later."""
        while len(self._behind) > _BEHIND:
            self._behind.popleft().result()
        copies = [np.array(leaf, order="C") for leaf in leaves]
        self._behind.append(_thread.submit(self._write, row, copies))

    def read(self, row: int, following: int) -> list[np.ndarray]:
        """A row; the following one, if it is not negative, is read meanwhile."""
        while self._behind:
            self._behind.popleft().result()
        ahead = self._ahead.pop(row, None) or _thread.submit(self._read, row)
        found = ahead.result()
        if following >= 0:
            self._ahead[following] = _thread.submit(self._read, following)
        return found

    def close(self) -> None:
        """Gives the space back, once the thread has done what it is at."""
        waiting: list[concurrent.futures.Future[Any]] = [*self._behind, *self._ahead.values()]
        concurrent.futures.wait([future for future in waiting if not future.cancel()])
        self._file.close()

    def _write(self, row: int, leaves: list[np.ndarray]) -> None:
        start = row * self.size
        for leaf in leaves:
            left = memoryview(leaf.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            while left:
                done = os.pwrite(self._file.fileno(), left, start)
                left, start = left[done:], start + done

    def _read(self, row: int) -> list[np.ndarray]:
        start, leaves = row * self.size, []
        for shape, dtype in self._types:
            leaf = np.empty(shape, dtype)
            left = memoryview(leaf.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            while left:
                done = os.preadv(self._file.fileno(), [left], start)
                if not done:
                    raise OSError(f"{self.folder.where}: a file in the folder {self.folder.path!r} ends too early")
                left, start = left[done:], start + done
            leaves.append(leaf)
        return leaves


_thread = concurrent.futures.ThreadPoolExecutor(1, "statetransform-files")
_files: dict[int, Rows] = {}  # those of this process that were not read to their end, by their numbers
_numbers = itertools.count()
_lock = threading.Lock()


def write(folder: Folder, count: int, number: int, row: int, leaves: Sequence[np.ndarray]) -> int:
    """Stores a row; gives the number of its file, a new one if `number` is 0. It has room for `count` rows at least."""
    number = number or _opened(folder, leaves)
    with _used(folder, number) as file:
        if row >= file.count:
            most = folder.limit // max(file.size, 1)
            _make_room(file, max(row + 1, count, min(2 * file.count, most)))
        file.write(row, leaves)
    return number


def read(folder: Folder, number: int, row: int, following: int) -> list[np.ndarray]:
    """A row of a file; the following one is read meanwhile, unless it is negative."""
    with _used(folder, number) as file:
        return file.read(row, following)


def close(number: int) -> None:
    """Gives the space of a file back, if it still has any."""
    with _lock:
        file = _files.pop(number, None)
    if file is not None:
        file.close()


@contextlib.contextmanager
def _used(folder: Folder, number: int) -> Iterator[Rows]:
    """A file, which is closed if an error occurs."""
    with _lock:
        file = _files.get(number)
    if file is None:
        raise RuntimeError(
            f"{folder.where}: the carries that this backward sweep needs are gone from the folder {folder.path!r}. "
            "A forward sweep serves one backward sweep: take each of several gradients with a `vjp` of its own, or "
            "all of them with `vmap` of what `vjp` returns. Or several loops ran at the same time and together "
            f"needed more than {format_bytes(folder.limit)}: raise `disk=`."
        )
    try:
        yield file
    except BaseException:
        close(number)
        raise


def _opened(folder: Folder, leaves: Sequence[np.ndarray]) -> int:
    file = Rows(folder, leaves)
    with _lock:
        number = next(_numbers) % (2**31 - 1) + 1  # it travels as an int32
        _files[number] = file
    return number


def _make_room(file: Rows, count: int) -> None:
    """Gives a file more rows. The oldest others in the folder are dropped if all would take more than its limit."""
    with _lock:
        same = {n: f for n, f in _files.items() if f.folder.path == file.folder.path and f is not file}
        same = {n: f for n, f in same.items() if f.folder.limit == file.folder.limit}
        taken = count * file.size + sum(f.count * f.size for f in same.values())
        dropped = []
        for number, other in same.items():
            if taken <= file.folder.limit:
                break
            dropped.append(_files.pop(number))
            taken -= other.count * other.size
    for other in dropped:
        other.close()
    file.grow(count)
