"""Loading the compilers of NVIDIA GPUs and of TPUs on a machine that has neither.

Both are plugins of JAX, which look for their cards when they are loaded. Where there are none, the one for GPUs misses
cuDNN and does not register, and the one for TPUs looks for its machine and prints what it does not find. What they ask
for in the environment is set before JAX loads them, only where such a card is not there, and only if it is not set.
"""

from __future__ import annotations

import functools
import glob
import importlib
import importlib.util
import os
import pkgutil
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_FOR_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # without it, one process at a time has the library
}
_GOOGLE = "0x1ae0"  # as a vendor of PCI devices


def has_nvidia_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, asked as JAX asks."""
    return any(os.path.exists(f"/dev/{name}") for name in ("nvidia0", "nvidiactl", "dxg"))


def has_tpu() -> bool:
    """Whether this machine has a TPU, asked as JAX asks."""
    return any(Path(file).read_text().strip() == _GOOGLE for file in glob.glob("/sys/bus/pci/devices/*/vendor"))


def prepare_environment() -> None:
    """Sets in the environment what the plugins ask for where their cards are not there."""
    if _nvidia_plugins() and not has_nvidia_gpu():
        os.environ.setdefault(_SKIP_CHECK, "1")
    if importlib.util.find_spec("libtpu") is not None and not has_tpu():
        for name, value in _FOR_TPU.items():
            os.environ.setdefault(name, value)


def _nvidia_plugins() -> list[str]:
    """The modules of installed plugins for NVIDIA GPUs; there is one for each version of CUDA."""
    package = importlib.util.find_spec("jax_plugins")
    places = [] if package is None else list(package.submodule_search_locations or ())
    return sorted(f"jax_plugins.{found.name}" for found in pkgutil.iter_modules(places) if "cuda" in found.name)


def nvidia_devices(name: str, text: str, count: int) -> tuple[Any, ...]:
    """Cards of one host, to compile for.

    Args:
      name: of the card.
      text: the card as `target_config` of XLA.
      count: how many there are.

    Raises:
      ImportError: there is no plugin, or it is for another jaxlib.
      RuntimeError: JAX does not load it.
    """
    prepare_environment()
    plugins = _nvidia_plugins()
    if not plugins:
        raise ImportError(
            f"target: compiling for {name} needs JAX's plugin for NVIDIA GPUs, which is missing (it needs neither "
            "a GPU nor CUDA, and is made for Linux). Install it with `pip install 'statetransform[nvidia]'`."
        )
    wheel = plugins[-1].removeprefix("jax_plugins.xla_").join(("jax-", "-pjrt"))
    _check_version(wheel)
    # "cuda" and not "gpu": the factories of topologies are known by the former.
    make = lambda: topologies.get_topology_desc(
        platform="cuda", topology_name=name, target_config=text, topology=f"1x1x{count}"
    )
    try:
        return tuple(make().devices)
    except NotImplementedError:
        pass
    if not has_nvidia_gpu():
        # JAX looked for plugins before this package was imported, and this one missed cuDNN. It may try again.
        importlib.import_module(plugins[-1]).initialize()
    try:
        return tuple(make().devices)
    except NotImplementedError as error:
        raise RuntimeError(
            f"target: JAX has not loaded its plugin for NVIDIA GPUs ({wheel}), so it cannot compile for {name}; JAX "
            "has logged why. Mostly it misses cuDNN. Set JAX_PLATFORMS=cpu in the environment, or "
            f"{_SKIP_CHECK}=1, before JAX is used for the first time."
        ) from error


def _check_version(wheel: str) -> None:
    """Refuses a plugin for another jaxlib, as JAX does.

    Raises:
      ImportError: its version is another one.
    """
    try:
        found = metadata.version(wheel)
    except metadata.PackageNotFoundError:  # built by hand
        return
    if _number(found) != _number(needed := metadata.version("jaxlib")):
        raise ImportError(
            f"target: {wheel} {found} is for another jaxlib than {needed}, which is installed. Install the one for it: "
            f"`pip install {wheel}=={needed} {wheel.replace('pjrt', 'plugin')}=={needed}`."
        )


def tpu_devices(name: str) -> tuple[Any, ...]:
    """The devices of a topology of TPUs, to compile for.

    Raises:
      ImportError: libtpu is not installed.
      ValueError: there is no such topology.
      RuntimeError: another process has the library.
    """
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ImportError(
            f"target: compiling for {name} needs the library of TPUs, libtpu, which is not installed (it needs no TPU, "
            "and is made for Linux on x86). Install it with `pip install 'statetransform[tpu]'`."
        )
    prepare_environment()
    try:
        return tuple(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except jax.errors.JaxRuntimeError as error:
        if "lock" in str(error) or str(error).startswith("ABORTED"):
            raise RuntimeError(
                f"target: libtpu cannot be loaded to compile for {name}, since another process has it: {error} Set "
                "ALLOW_MULTIPLE_LIBTPU_LOAD=1 in the environment, before JAX is used for the first time."
            ) from error
        raise ValueError(
            f"target: libtpu has no topology {name!r}: {error} A name is a generation and how many chips there are "
            "along each axis: 'v5e:2x2', 'v6e:2x4', 'v5p:2x2x1', 'v4:2x2x1', 'tpu7x:2x2x1'."
        ) from error


def jaxlib_version() -> tuple[int, ...]:
    """The numbers of jaxlib's version."""
    return tuple(map(int, _number(metadata.version("jaxlib")).split(".")))


def _number(version: str) -> str:
    found = re.match(r"[\d.]*", version)
    return found.group().rstrip(".") if found else ""


@functools.cache
def compiler_of(device: Any) -> str:
    """Which compiler a device has, in a text that is the same in every process."""
    version = getattr(device.client, "platform_version", "")
    return f"jaxlib {metadata.version('jaxlib')}, {version}"
