"""Apply the jail's layers to this process, then execute the worker: a script of the standard library alone.

    jail_launcher.py --profile monty|python --layers ns,landlock,seccomp --cpu S --memory MB [--ro PATH]...
        -- WORKER ARGS...

If a named layer cannot be set up, the process reports which one and exits with 97; it never skips one.
With `--check` it exits with 0 instead of executing the worker. The order matters; see docs/sandbox.md.
"""

import ctypes
import os
import resource
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine

# The descriptor of the worker's file. It closes on execution, and the worker cannot open a descriptor above 63,
# so it cannot execute anything else.
WORKER_FD = 1000
NOBODY_ID = 65534
EXIT_LAYER_MISSING, EXIT_ORPHANED, EXIT_NOT_EXECUTED = 97, 98, 99

# --- system calls that a worker may use -------------------------------------------------------------------------

_X86_64_SYSCALLS = """
read=0 write=1 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12 rt_sigaction=13
rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17 readv=19 writev=20 access=21 select=23 sched_yield=24 mremap=25
madvise=28 dup=32 nanosleep=35 getpid=39 clone=56 exit=60 uname=63 fcntl=72 getcwd=79 readlink=89 getrusage=98
sysinfo=99 times=100 getuid=102 getgid=104 geteuid=107 getegid=108 capset=126 sigaltstack=131 pivot_root=155 prctl=157
arch_prctl=158 gettid=186 futex=202 sched_getaffinity=204 getdents64=217 set_tid_address=218 restart_syscall=219
fadvise64=221 clock_gettime=228 clock_getres=229 clock_nanosleep=230 exit_group=231 epoll_wait=232 epoll_ctl=233
tgkill=234 openat=257 newfstatat=262 pselect6=270 ppoll=271 set_robust_list=273 epoll_pwait=281 eventfd2=290
epoll_create1=291 pipe2=293 prlimit64=302 getrandom=318 execveat=322 statx=332 rseq=334 clone3=435 faccessat2=439
"""
# From the kernel's generic table; not yet run on such a machine.
_AARCH64_SYSCALLS = """
getcwd=17 eventfd2=19 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 dup=23 fcntl=25 ioctl=29 pivot_root=41 faccessat=48
openat=56 close=57 pipe2=59 getdents64=61 lseek=62 read=63 write=64 readv=65 writev=66 pread64=67 pselect6=72 ppoll=73
readlinkat=78 newfstatat=79 fstat=80 capset=91 exit=93 exit_group=94 set_tid_address=96 futex=98 set_robust_list=99
nanosleep=101 clock_gettime=113 clock_getres=114 clock_nanosleep=115 sched_getaffinity=123 sched_yield=124
restart_syscall=128 tgkill=131 sigaltstack=132 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 times=153 uname=160
getrusage=165 prctl=167 getpid=172 getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 brk=214
munmap=215 mremap=216 clone=220 mmap=222 fadvise64=223 mprotect=226 madvise=233 prlimit64=261 getrandom=278
execveat=281 statx=291 rseq=293 clone3=435 faccessat2=439
"""
SYSCALL_TABLES = {"x86_64": (0xC000003E, _X86_64_SYSCALLS), "aarch64": (0xC00000B7, _AARCH64_SYSCALLS)}

MONTY_SYSCALLS = """
read write close fstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 access
sched_yield mremap madvise nanosleep getpid exit sigaltstack prctl arch_prctl gettid futex sched_getaffinity
set_tid_address restart_syscall clock_gettime clock_nanosleep exit_group tgkill openat newfstatat set_robust_list
prlimit64 getrandom execveat statx rseq clone clone3 readv writev ppoll faccessat readlinkat
"""
# No `clone`: the worker has one thread and no children.
PYTHON_SYSCALLS = (
    MONTY_SYSCALLS.replace(" clone ", " ")
    + """
ioctl dup uname fcntl getcwd readlink getuid getgid geteuid getegid getdents64 clock_getres epoll_wait epoll_ctl
epoll_pwait epoll_create1 eventfd2 pipe2 pselect6 stat lstat getrusage sysinfo fadvise64 faccessat2 select times
"""
)
SYSCALL_PROFILES = {"monty": MONTY_SYSCALLS, "python": PYTHON_SYSCALLS}

SECCOMP_ALLOW, SECCOMP_EPERM, SECCOMP_ENOSYS, SECCOMP_KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
BPF_LOAD, BPF_EQUAL, BPF_AT_LEAST, BPF_ANY_BIT, BPF_RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def syscall_numbers() -> dict[str, int]:
    """Return this machine's system calls by name."""
    return {
        name: int(value) for name, _, value in (entry.partition("=") for entry in SYSCALL_TABLES[MACHINE][1].split())
    }


def pack_instruction(code: int, then: int, otherwise: int, value: int) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)


def pack_load(offset: int) -> bytes:
    return pack_instruction(BPF_LOAD, 0, 0, offset)


def pack_return(value: int) -> bytes:
    return pack_instruction(BPF_RETURN, 0, 0, value)


def argument_offset(argument: int) -> int:
    return 16 + 8 * argument


def require_equal(argument: int, value: int) -> list[bytes]:
    """Refuse unless all 64 bits of an argument are this value."""
    upper = [pack_load(argument_offset(argument) + 4), pack_instruction(BPF_EQUAL, 0, 2, value >> 32)]
    return [
        *upper,
        pack_load(argument_offset(argument)),
        pack_instruction(BPF_EQUAL, 1, 0, value & 0xFFFFFFFF),
        pack_return(SECCOMP_EPERM),
    ]


def require_one_of(argument: int, values: list[int]) -> list[bytes]:
    tests = [pack_instruction(BPF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [pack_load(argument_offset(argument)), *tests, pack_return(SECCOMP_EPERM)]


def refuse_bits(argument: int, bits: int) -> list[bytes]:
    return [pack_load(argument_offset(argument)), pack_instruction(BPF_ANY_BIT, 0, 1, bits), pack_return(SECCOMP_EPERM)]


def build_conditions() -> dict[str, list[bytes]]:
    """Return the argument checks of system calls that are allowed in part; each refuses or falls through."""
    executable, anonymous = 4, 0x20
    writing = 0x400643  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_TMPFILE
    return {
        "clone": [
            pack_load(argument_offset(0)),
            pack_instruction(BPF_ANY_BIT, 1, 0, 0x10000),
            pack_return(SECCOMP_EPERM),
        ],  # CLONE_THREAD: no processes
        "clone3": [pack_return(SECCOMP_ENOSYS)],  # its flags cannot be read here; libc falls back to clone
        "tgkill": require_equal(0, os.getpid()),
        "execveat": require_equal(0, WORKER_FD) + require_equal(4, 0x1000),  # AT_EMPTY_PATH
        "prctl": require_one_of(0, [15, 0x53564D41]),  # a thread's name, a mapping's name
        "prlimit64": require_equal(0, 0) + require_equal(2, 0),  # to read one's own
        "mprotect": refuse_bits(2, executable),
        "mmap": [
            pack_load(argument_offset(2)),
            pack_instruction(BPF_ANY_BIT, 0, 3, executable),
            *refuse_bits(3, anonymous),
        ],
        "openat": refuse_bits(2, writing),
        "ioctl": require_one_of(1, [0x5401, 0x5413, 0x5451, 0x5450]),  # TCGETS, TIOCGWINSZ, FIOCLEX, FIONCLEX
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. F_SETOWN would send signals to other
        # processes of the same user.
        "fcntl": require_one_of(1, [0, 1, 2, 3, 4, 1030]),
    }


def build_filter(profile: str) -> bytes:
    """Build the seccomp filter: refuse calls that are not listed, kill on another architecture's calls."""
    known, special = syscall_numbers(), build_conditions()
    steps = [pack_load(4), pack_instruction(BPF_EQUAL, 1, 0, SYSCALL_TABLES[MACHINE][0]), pack_return(SECCOMP_KILL)]
    steps += [
        pack_load(0),
        pack_instruction(BPF_AT_LEAST, 0, 1, 0x40000000),
        pack_return(SECCOMP_KILL),
    ]  # the x32 twins of every call
    for name in SYSCALL_PROFILES[profile].split():
        if name not in known:
            continue
        body = [*special.get(name, []), pack_return(SECCOMP_ALLOW)]
        steps += [pack_instruction(BPF_EQUAL, 0, len(body), known[name]), *body]
        if name in special:
            steps.append(pack_load(0))
    return b"".join([*steps, pack_return(SECCOMP_EPERM)])


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def install_seccomp(profile: str) -> None:
    steps = build_filter(profile)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    wanted = _FilterProgram(len(steps) // 8, ctypes.addressof(buffer))
    prctl(22, 2, ctypes.addressof(wanted))


# --- calls that the standard library lacks ----------------------------------------------------------------------


def last_os_error(action: str) -> OSError:
    error_code = ctypes.get_errno()
    return OSError(error_code, f"{action}: {os.strerror(error_code)}")


def syscall(syscall_number: int, *values: object) -> int:
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result = libc.syscall(ctypes.c_long(syscall_number), *arguments)
    if result < 0:
        raise last_os_error(f"system call {syscall_number}")
    return int(result)


def prctl(*values: int) -> None:
    if libc.prctl(*[ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:5]]) < 0:
        raise last_os_error(f"prctl {values[0]}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [text.encode() if text else None for text in (source, target, kind, data)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) < 0:
        raise last_os_error(f"mount {target}")


# --- Landlock: no file but the named ones, no network, no signals -------------------------------------------------


def landlock_version() -> int:
    try:
        return syscall(444, 0, 0, 1)
    except OSError:
        return 0


def install_landlock(allowed: list[tuple[int, bool]], newest: int = 99) -> None:
    """Allow reading and executing of these open files and folders, and nothing else."""
    version = min(landlock_version(), newest)
    if not version:
        raise OSError(38, "this kernel has no Landlock")
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    wanted = struct.pack("QQQ", files, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    buffer = ctypes.create_string_buffer(wanted, len(wanted))
    rules = syscall(444, ctypes.addressof(buffer), len(wanted), 0)
    for descriptor, folder in allowed:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", 1 | 4 | (8 if folder else 0), descriptor), 12)
        syscall(445, rules, 1, ctypes.addressof(rule), 0)
    syscall(446, rules, 0)
    os.close(rules)


# --- namespaces: no network, an almost empty file system ----------------------------------------------------------

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)


def enter_namespaces(root: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = 0x20000 | 0x40000000 | 0x8000000 | 0x4000000 | 0x2000000  # mount, net, ipc, uts, cgroup
    if libc.unshare(flags | (0 if root else 0x10000000)) < 0:
        raise last_os_error("unshare")
    if root:
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY_ID} {uid} 1"), ("gid_map", f"{NOBODY_ID} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def pivot_to_new_root(binds: list[tuple[str, int]], hidden: list[str]) -> None:
    """Change to a small read-only root that holds the named paths and nothing else."""
    base = "/tmp"
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,mode=755")
    for path, descriptor in binds:
        target = base + path
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND)
        flags = os.statvfs(target).f_flag  # a remount must keep the restrictions of the outer mount
        kept_flags = (flags & MS_NOEXEC) | (flags & 0x400) | (2048 if flags & 0x800 else 0)
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | kept_flags)
    for path in hidden:
        if os.path.isdir(base + path):
            mount("tmpfs", base + path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555")
    os.chdir(base)
    syscall(syscall_numbers()["pivot_root"], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    if libc.umount2(b".", 2) < 0:
        raise last_os_error("umount2")
    os.chdir("/")
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def drop_privileges(root: bool) -> None:
    for capability in range(64):
        try:
            prctl(24, capability)
        except OSError:
            break
    if root:
        os.setgroups([])
        os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
    head = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)
    none = ctypes.create_string_buffer(24)
    syscall(syscall_numbers()["capset"], ctypes.addressof(head), ctypes.addressof(none))


# --- main -----------------------------------------------------------------------------------------------------------


def set_limits(cpu: int, megabytes: int) -> None:
    names = resource
    forbidden = (names.RLIMIT_CORE, names.RLIMIT_FSIZE, names.RLIMIT_MEMLOCK, names.RLIMIT_MSGQUEUE)
    for limit in forbidden:
        names.setrlimit(limit, (0, 0))
    names.setrlimit(names.RLIMIT_CPU, (cpu, cpu + 1))  # SIGXCPU first, SIGKILL a second later
    for limit, size in ((names.RLIMIT_AS, megabytes << 20), (names.RLIMIT_STACK, 8 << 20)):
        names.setrlimit(limit, (size, size))


def parse_options(argv: list[str]) -> tuple[dict[str, str], list[str], list[str], list[str]]:
    options = {"profile": "monty", "layers": "", "cpu": "60", "memory": "2048", "landlock": "99", "check": ""}
    readable: list[str] = []
    hidden: list[str] = []
    while argv[0] != "--":
        name = argv.pop(0)[2:]
        if name == "check":
            options[name] = "yes"
        elif name in ("ro", "hide"):
            (readable if name == "ro" else hidden).append(argv.pop(0))
        else:
            options[name] = argv.pop(0)
    return options, readable, hidden, argv[1:]


def die_with_parent() -> None:
    prctl(1, 9)


class LayerSetup:
    """Set up the layers that were requested; end the process if one fails."""

    def __init__(self, wanted: str) -> None:
        self.wanted = [name for name in wanted.split(",") if name]

    def __call__(self, name: str, setup: object, *args: object) -> None:
        if name not in self.wanted:
            return
        try:
            setup(*args)  # type: ignore[operator]
        except OSError as error:
            os.write(2, f"{name}: {error.strerror or error}\n".encode())
            os._exit(EXIT_LAYER_MISSING)


def main(argv: list[str]) -> None:
    options, readable, hidden, worker = parse_options(argv)
    root, layer, parent = os.geteuid() == 0, LayerSetup(options["layers"]), os.getppid()
    libc.close_range(ctypes.c_uint(3), ctypes.c_uint(0xFFFFFFFF), ctypes.c_int(0))
    die_with_parent()
    if os.getpid() != os.getpgrp():
        os.setsid()
    os.umask(0o022)
    os.chdir("/")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard) if hard > WORKER_FD else (hard, hard))
    opened = os.open(worker[0], os.O_RDONLY)
    os.dup2(opened, WORKER_FD, inheritable=False)
    os.close(opened)
    layer("ns", enter_namespaces, root)
    # Opened after unshare: a bind mount needs a path of the same mount namespace.
    binds = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in dict.fromkeys(readable)]
    allowed = [(descriptor, os.path.isdir(path)) for path, descriptor in binds] + [(WORKER_FD, False)]
    layer("ns", pivot_to_new_root, binds, hidden)
    drop_privileges(root)
    die_with_parent()  # a change of user clears it
    os.umask(0o777)
    prctl(38, 1)  # no_new_privs
    set_limits(int(options["cpu"]), int(options["memory"]))
    if parent != os.getppid():  # the parent died before the kernel watched it
        os._exit(EXIT_ORPHANED)
    layer("landlock", install_landlock, allowed, int(options["landlock"]))
    for _, descriptor in binds:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    arguments = (ctypes.c_char_p * (len(worker) + 1))(*[word.encode() for word in worker], None)
    # A fixed seed: sets have the same order when a paused program is replayed.
    environment = (ctypes.c_char_p * 4)(b"LANG=C.UTF-8", b"TZ=UTC", b"PYTHONHASHSEED=0", None)
    execveat = ctypes.c_long(syscall_numbers()["execveat"])
    layer("seccomp", install_seccomp, options["profile"])
    if options["check"]:
        os._exit(0)
    libc.syscall(
        execveat, ctypes.c_long(WORKER_FD), ctypes.c_char_p(b""), arguments, environment, ctypes.c_long(0x1000)
    )
    os._exit(EXIT_NOT_EXECUTED)


if __name__ == "__main__":
    main(sys.argv[1:])
