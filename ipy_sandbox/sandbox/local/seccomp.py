"""A seccomp filter in pure Python: the system calls that namespaces alone do not keep from harm.

Without it a sandbox reads the host's session keyring, opens vsock to the machine's hypervisor, and evades every memory
limit with memfds. Format: `struct sock_filter` of linux/filter.h, as `bwrap --seccomp` takes it.
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Numbers on x86_64 and on aarch64; None where the call does not exist.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # The session keyring is inherited: no namespace cuts it.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Mounts and namespaces.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # Large attack surface in the kernel.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "lookup_dcookie": (212, 18), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    # The clock.
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "personality": (135, 92), "vmsplice": (278, 75),
    # Memory that no limit bounds.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mbind": (237, 235),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # Taken from what the whole machine has.
    "io_setup": (206, 0),
}  # fmt: skip
_CLONE3 = 435
_CLONE, _SOCKET, _IOCTL = (56, 220), (41, 198), (16, 29)
_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (getifaddrs)
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data, low words
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def supported() -> bool:
    """Whether there is a filter for this machine's processor."""
    return platform.machine() in _ARCHITECTURES


def build(machine: str | None = None) -> bytes:
    """The filter for `machine` (default: this one) as an array of `struct sock_filter`."""
    column, architecture = _ARCHITECTURES[machine or platform.machine()]
    program: list[tuple[int, int, int, int]] = []

    def add(code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        program.append((code, if_true, if_false, value))

    def fail(error: int) -> None:
        add(_RETURN, 0x00050000 | error)

    add(_LOAD, _ARCH)
    add(_EQUAL, architecture, 1, 0)
    add(_RETURN, _KILL)
    add(_LOAD, _NUMBER)
    if column == 0:
        add(_AT_LEAST, _X32, 0, 1)
        fail(errno.ENOSYS)
    # glibc then falls back to clone, whose flags a filter can see.
    add(_EQUAL, _CLONE3, 0, 1)
    fail(errno.ENOSYS)
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            add(_EQUAL, number, 0, 1)
            fail(errno.EPERM)
    add(_EQUAL, _CLONE[column], 0, 4)
    add(_LOAD, _ARG0)
    add(_ANY_BIT, _NEW_NAMESPACE, 0, 1)
    fail(errno.EPERM)
    add(_RETURN, _ALLOW)
    add(_EQUAL, _IOCTL[column], 0, 5)
    add(_LOAD, _ARG1)
    add(_EQUAL, _TIOCSTI, 1, 0)
    add(_EQUAL, _TIOCLINUX, 0, 1)
    fail(errno.EPERM)
    add(_RETURN, _ALLOW)
    add(_EQUAL, _SOCKET[column], 0, len(_FAMILIES) + 3)
    add(_LOAD, _ARG0)
    for i, family in enumerate(_FAMILIES):
        add(_EQUAL, family, len(_FAMILIES) - i, 0)
    fail(errno.EAFNOSUPPORT)
    add(_RETURN, _ALLOW)
    add(_RETURN, _ALLOW)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
