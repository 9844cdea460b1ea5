"""Files of stored carries: nothing is left behind, and what goes wrong is said."""

from __future__ import annotations

import errno
import itertools
import pathlib
import resource
import signal
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, transform

# Files have no name, so nobody else can see that they are gone.
from statetransform._memory.loops.far import files
from statetransform._memory.loops.far.files import Folder


def gradient_of(budget: st.MemoryBudget, n: int = 100) -> Any:
    def loss(x: Any) -> Any:
        return transform.scan(lambda c, _: (jnp.sin(c), None), x, None, n, checkpoint=budget)[0].sum()

    return jax.jit(jax.grad(loss))


def on_disk(folder: Any, carries: int = 100) -> st.MemoryBudget:
    return st.MemoryBudget(12 * 4000, disk=4000 * carries, folder=folder)


X = jnp.linspace(0.0, 1.0, 1000)


def number_of_open_files(folder: pathlib.Path) -> int:
    found = 0
    for link in pathlib.Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()).startswith(str(folder))
        except OSError:
            continue
    return found


def test_rows_come_back_in_any_order(tmp_path: pathlib.Path) -> None:
    rows = [[np.full((3, 2), i, np.float32), np.full((), i % 2 == 0)] for i in range(7)]
    folder, number = Folder(str(tmp_path), 10**6, "scan"), 0
    for i, row in enumerate(rows):
        number = files.write(folder, 7, number, i, row)
        row[0][:] += 0  # what is written is a copy
    files.write(folder, 7, number, 3, rows[0])
    for i, following in ((6, 3), (3, 5), (5, -1), (0, 1), (2, -1)):
        found = files.read(folder, number, i, following)
        for x, y in zip(found, rows[0 if i == 3 else i], strict=True):
            np.testing.assert_array_equal(x, y)
    assert number_of_open_files(tmp_path) == 1 and not list(tmp_path.iterdir())
    files.close(number)
    assert number_of_open_files(tmp_path) == 0


def test_a_file_is_gone_with_the_gradient(tmp_path: pathlib.Path) -> None:
    gradient = gradient_of(on_disk(tmp_path))
    for _ in range(2):
        jax.block_until_ready(gradient(X))
        assert number_of_open_files(tmp_path) == 0 and not list(tmp_path.iterdir())


def test_loops_of_unknown_length_ask_for_the_room_that_they_use(tmp_path: pathlib.Path) -> None:
    budget = on_disk(tmp_path, 100)
    go = lambda x: transform.while_loop(
        lambda c: c[0] < 60, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x), checkpoint=budget
    )[1]
    by_hand = lambda x: jax.lax.fori_loop(0, 60, lambda _, c: jnp.sin(c), x)
    for n in (1, 3):
        repeated = lambda f, n=n: jax.jit(
            jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, n)[0].sum())
        )
        np.testing.assert_allclose(repeated(go)(X), repeated(by_hand)(X), rtol=1e-5)
        assert budget.choices[-1].disk > 50 and number_of_open_files(tmp_path) == 0


def test_files_that_no_backward_pass_read_make_room(tmp_path: pathlib.Path) -> None:
    budget = on_disk(tmp_path, 20)
    loss = lambda x: transform.scan(lambda c, _: (jnp.sin(c), None), x, None, 100, checkpoint=budget)[0]
    pulls = [jax.vjp(loss, X)[1] for _ in range(4)]
    rows = budget.choices[-1].disk
    assert number_of_open_files(tmp_path) == 20 // rows
    pulls[-1](jnp.ones_like(X))
    with pytest.raises(Exception, match="A forward sweep serves one backward sweep"):
        pulls[-1](jnp.ones_like(X))
    with pytest.raises(Exception, match=r"needed more than .*: raise `disk=`"):
        pulls[0](jnp.ones_like(X))


def test_what_goes_wrong_while_a_program_runs_is_one_sentence(tmp_path: pathlib.Path) -> None:
    w = State(X, name="w")
    loss = lambda: transform.scan(lambda c, _: (jnp.sin(c), None), w.value, None, 100, checkpoint=on_disk(tmp_path))[0]
    pull = transform.vjp(loss, states=w)[1]
    pull(jnp.ones_like(X))
    for again in (pull, transform.jit(pull)):
        with pytest.raises(Exception, match=r"^scan: the carries that this backward sweep needs are gone") as info:
            again(jnp.ones_like(X))
        assert str(info.value).endswith("raise `disk=`.") and "\n" not in str(info.value)
        assert info.value.__cause__ is None and info.value.__suppress_context__


@pytest.mark.parametrize("n", [100, 3])  # needs the disk, and does not
@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_folder_that_cannot_be_written_is_an_error_before_anything_runs(
    kind: str, n: int, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    with pytest.raises(OSError, match="scan: the stored carries need room in the folder") as info:
        gradient_of(on_disk(folder), n)(X)
    assert repr(str(folder)) in str(info.value)
    assert info.value.errno in (errno.ENOENT, errno.ENOTDIR)


def test_a_file_system_that_keeps_the_names_of_open_files_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = lambda dir, **_: open(pathlib.Path(dir) / "named", "wb+", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(tempfile, "TemporaryFile", named)
    with pytest.raises(OSError, match="does not unlink open files, as network file systems do not") as info:
        gradient_of(on_disk(tmp_path))(X)
    assert repr(str(tmp_path)) in str(info.value)


def test_a_full_disk_is_an_error_that_writes_no_state(tmp_path: pathlib.Path) -> None:
    count, budget = State(0, name="count"), on_disk(tmp_path)

    def loss(x: Any) -> Any:
        count.value += 1
        return transform.scan(lambda c, _: (jnp.sin(c), None), x, None, 100, checkpoint=budget)[0].sum()

    gradient = transform.jit(transform.grad(loss))
    expected = gradient(X)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limit[1]))
        with pytest.raises(jax.errors.JaxRuntimeError) as info:
            gradient(X)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    needed = 4000 * budget.choices[-1].disk
    assert f"the stored carries need {needed} bytes" in str(info.value)
    assert f"in the folder {str(tmp_path)!r}, where " in str(info.value) and "bytes are free" not in str(info.value)
    assert int(count.value) == 1 and number_of_open_files(tmp_path) == 0
    np.testing.assert_array_equal(gradient(X), expected)
    assert int(count.value) == 2 and not list(tmp_path.iterdir())


def test_an_interrupt_in_a_transfer_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    gradient = gradient_of(on_disk(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(files.Rows, "read", interrupted)
        with pytest.raises((KeyboardInterrupt, jax.errors.JaxRuntimeError)):
            gradient(X)
    assert number_of_open_files(tmp_path) == 0
    jax.block_until_ready(gradient(X))


def test_sharded_carries_are_refused(tmp_path: pathlib.Path) -> None:
    mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, jax.sharding.NamedSharding(mesh, jax.P("x")))
        budget = st.MemoryBudget(12 * 2000, disk=4000 * 100, folder=tmp_path)  # 2000 bytes on each device
        with pytest.raises(ValueError, match=r"scan: a carry of type .* is sharded over devices.*Write `host=`"):
            gradient_of(budget)(x)


def test_the_number_of_a_file_fits_into_an_int32(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_numbers", itertools.count(2**31 - 3))
    numbers = [files._opened(Folder(str(tmp_path), 10**6, "scan"), [np.zeros((2, 3))]) for _ in range(6)]
    for number in numbers:
        files._files.pop(number)
    assert numbers == [2**31 - 2, 2**31 - 1, 1, 2, 3, 4]
