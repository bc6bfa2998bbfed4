"""The limits of a local sandbox and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...errors import ConfigurationError

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use; `SandboxOptions.limits` overrides by name. Sizes are bytes.

    Attributes:
        memory: all its processes and files together; passing it ends the sandbox.
        process_memory: what one process may allocate; passing it is a MemoryError in the code.
        processes: processes and threads.
        sockets: sockets of all processes together; passing it ends the sandbox.
        open_files: file descriptors of one process.
        file_size: one file.
        home_size: the home directory, which is /mnt/data too.
        tmp_size: /tmp.
        shm_size: /dev/shm.
        files: files and directories; passing it ends the sandbox.
        output_bytes: text that one run may print; the rest is left out.
        display_bytes: rich output of one run; the rest is left out.
    """

    memory: int = 2 * GiB
    process_memory: int = 1536 * MiB
    processes: int = 256
    sockets: int = 1024
    open_files: int = 1024
    file_size: int = 1 * GiB
    home_size: int = 1 * GiB
    tmp_size: int = 256 * MiB
    shm_size: int = 64 * MiB
    files: int = 200_000
    output_bytes: int = 10 * MiB
    display_bytes: int = 64 * MiB

    @classmethod
    def of(cls, overrides: dict[str, int]) -> Limits:
        """The defaults with `overrides`; raises ConfigurationError for an unknown name or a value below 1."""
        known = [f.name for f in fields(cls)]
        for name, value in overrides.items():
            if name not in known:
                raise ConfigurationError(f"Unknown limit {name!r}: choose from {', '.join(known)}.", provider="local")
            if value < 1:
                raise ConfigurationError(f"Limit {name!r} is {value}: it must be at least 1.", provider="local")
        return cls(**overrides)

    def rlimits(self) -> dict[str, int]:
        """The part that the kernel enforces for each process, by the names of the `resource` module."""
        return {
            # Libraries reserve far more addresses than they use: the kernel itself counts what is allocated.
            "RLIMIT_AS": 4 * self.process_memory + GiB,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_CORE": 0,
        }
