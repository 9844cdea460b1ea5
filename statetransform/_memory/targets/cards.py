"""What compilers ask about cards: a table of numbers.

The numbers are those that a card's driver reports, as XLA's tree notes them for some cards, and else those of NVIDIA's
data sheets and of the table "Technical Specifications per Compute Capability" in the CUDA programming guide.
"""

from __future__ import annotations

import dataclasses

#: By compute capability: units for 32-bit floats, threads, and bytes of shared memory per multiprocessor, and the
#: bytes of these that a block may have. From the CUDA programming guide, "Compute Capabilities", and its appendix.
MULTIPROCESSORS: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (7, 0): (64, 2048, 98304, 98304),
    (7, 5): (64, 1024, 65536, 65536),
    (8, 0): (64, 2048, 167936, 166912),
    (8, 6): (128, 1536, 102400, 101376),
    (8, 9): (128, 1536, 102400, 101376),
    (9, 0): (128, 2048, 233472, 232448),
    (10, 0): (128, 2048, 233472, 232448),
    (12, 0): (128, 1536, 102400, 101376),
}


@dataclasses.dataclass(frozen=True)
class Card:
    """The numbers of an NVIDIA GPU that its compiler asks for.

    For a card that is not in the table, start from one that is:
    `st.target(dataclasses.replace(st.target("H100").card, name="H100 NVL", memory=94 * 2**30))`.

    Attributes:
      name: what it is called here.
      kind: what JAX calls it, `device_kind`.
      capability: its compute capability.
      multiprocessors: how many it has.
      memory: bytes.
      bandwidth: bytes per second to its memory.
      cache: bytes of its second-level cache.
      clock: GHz.
    """

    name: str
    kind: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    bandwidth: int
    cache: int
    clock: float

    def __post_init__(self) -> None:
        if self.capability not in MULTIPROCESSORS:
            known = ", ".join(f"{major}.{minor}" for major, minor in MULTIPROCESSORS)
            given = ".".join(map(str, self.capability))
            raise ValueError(f"target: the compute capability {given} of {self.name!r} is not one of {known}")

    def text(self) -> str:
        """The card as `target_config` of XLA, a `GpuTargetConfigProto`."""
        units, threads, shared, optin = MULTIPROCESSORS[self.capability]
        major, minor = self.capability
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": shared,
            "threads_per_core_limit": threads,
            "core_count": self.multiprocessors,
            "fpus_per_core": units,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.bandwidth,
            "l2_cache_size": self.cache,
            "clock_rate_ghz": self.clock,
            "device_memory_size": self.memory,
            "shared_memory_per_block_optin": optin,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        numbers = "\n".join(f"  {key}: {value}" for key, value in device.items())
        return (
            f"gpu_device_info {{\n{numbers}\n  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
            'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 10 }\n'
            f'device_description_str: "{self.kind}"\n'
        )


def _gb(number: float) -> int:
    return int(number * 10**9)


#: The first four are noted in XLA's tree (xla/backends/gpu/target_config/specs), read from the cards. For the others:
#: NVIDIA's data sheets (L4, T4), the white papers of the Ada and Turing architectures, and bytes of memory as
#: `cudaGetDeviceProperties` reports them.
CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        Card("A100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 85100068864, _gb(2039.04), 41943040, 1.41),
        Card("H100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 84942979072, _gb(3352.32), 52428800, 1.98),
        Card("H200", "NVIDIA H200 141GB HBM3e", (9, 0), 132, 151397597184, _gb(4800), 52428800, 1.98),
        Card("B200", "NVIDIA B200", (10, 0), 148, 191514411008, _gb(7672.32), 132644864, 1.965),
        Card("L4", "NVIDIA L4", (8, 9), 58, 22574 * 2**20, _gb(300), 48 * 2**20, 2.04),
        Card("RTX 4090", "NVIDIA GeForce RTX 4090", (8, 9), 128, 24217 * 2**20, _gb(1008), 72 * 2**20, 2.52),
        Card("T4", "Tesla T4", (7, 5), 40, 15109 * 2**20, _gb(320), 4 * 2**20, 1.59),
    )
}

#: Bytes of a TPU that a program can have, by JAX's `device_kind`: the compiler of libtpu 0.0.50 names them where it
#: refuses a program. A device is a core here, of which chips of the second, third and fourth generation have two.
TPU_MEMORY: dict[str, int] = {
    "TPU v2": int(7.48 * 2**30),
    "TPU v3": int(15.48 * 2**30),
    "TPU v4": int(15.25 * 2**30),
    "TPU v5": int(95.73 * 2**30),
    "TPU v5 lite": int(15.75 * 2**30),
    "TPU v6 lite": int(31.24 * 2**30),
    "TPU7x": int(94.74 * 2**30),
}
