/* A worker that has been taken over: whatever it manages to do is printed. Only ever run inside the jail. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/unistd.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static int tried, done;
#define TRY(name, works) do { tried++; errno = 0; if (works) { done++; printf("ESCAPE %s\n", name); } } while (0)

static int can_open(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    if (fd < 0) return 0;
    close(fd);
    return 1;
}
static int connects(const struct sockaddr *to, socklen_t size, int family, int kind) {
    int fd = socket(family, kind, 0);
    if (fd < 0) return 0;
    int ok = connect(fd, to, size) == 0;
    close(fd);
    return ok;
}
extern char **environ;

int main(int argc, char **argv) {
    pid_t parent = atoi(argv[1]);
    const char *secret = argv[2], *named = argv[3];
    char path[200];
    const char *files[] = {"/etc/passwd", "/etc/shadow", "/etc/hosts", "/root", "/home", "/tmp", "/var", "/proc/self/maps",
        "/proc/self/mem", "/proc/1/environ", "/proc/meminfo", "/sys", "/dev/mem", "/dev/kmsg", "/dev/null", "/dev/tty",
        "/dev/shm", "/run", "/boot", "/usr/bin/id", "/bin/sh", "/usr/bin/env", "/", ".", "..", secret, named};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "read %s", files[i]);
        TRY(path, can_open(files[i], O_RDONLY));
        snprintf(path, sizeof path, "path of %s", files[i]);
        if (strcmp(files[i], "/") && strcmp(files[i], ".") && strcmp(files[i], ".."))
            TRY(path, can_open(files[i], O_RDWR));
    }
    TRY("create", can_open("/athena-escaped", O_CREAT | O_WRONLY));
    TRY("create in tmp", can_open("/tmp/athena-escaped", O_CREAT | O_RDWR));
    TRY("tmpfile", can_open("/", O_TMPFILE | O_RDWR));
    TRY("truncate", truncate(secret, 0) == 0);
    TRY("unlink", unlink(secret) == 0);
    TRY("rename", rename(secret, "/tmp/athena-escaped") == 0);
    TRY("link", link(secret, "/tmp/athena-escaped") == 0);
    TRY("symlink", symlink("/etc/passwd", "/tmp/athena-escaped") == 0);
    TRY("mkdir", mkdir("/tmp/athena-escaped", 0700) == 0);
    TRY("mknod", mknod("/tmp/athena-escaped", S_IFIFO | 0600, 0) == 0);
    TRY("chmod", chmod(secret, 0777) == 0);
    TRY("chown", chown(secret, 0, 0) == 0);
    TRY("chroot", chroot("/tmp") == 0);
    TRY("chdir out", chdir("/tmp") == 0);
    TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, 0, 0, 0) >= 0);
    snprintf(path, sizeof path, "/proc/%d/environ", parent);
    TRY("parent's environment", can_open(path, O_RDONLY));
    snprintf(path, sizeof path, "/proc/%d/mem", parent);
    TRY("parent's memory", can_open(path, O_RDWR));
    snprintf(path, sizeof path, "/proc/%d/fd/1", parent);
    TRY("parent's descriptors", can_open(path, O_RDWR));

    struct sockaddr_in inet = {.sin_family = AF_INET, .sin_port = htons(80), .sin_addr.s_addr = htonl(0x7f000001)};
    struct sockaddr_un unix_path = {.sun_family = AF_UNIX}, unix_hidden = {.sun_family = AF_UNIX};
    strncpy(unix_path.sun_path, named, sizeof unix_path.sun_path - 1);
    memcpy(unix_hidden.sun_path, "\0athena-canary", 14);
    TRY("tcp", connects((void *)&inet, sizeof inet, AF_INET, SOCK_STREAM));
    TRY("udp", connects((void *)&inet, sizeof inet, AF_INET, SOCK_DGRAM));
    TRY("unix path", connects((void *)&unix_path, sizeof unix_path, AF_UNIX, SOCK_STREAM));
    TRY("unix hidden", connects((void *)&unix_hidden, sizeof(sa_family_t) + 14, AF_UNIX, SOCK_STREAM));
    int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_BLUETOOTH};
    for (unsigned i = 0; i < sizeof families / sizeof *families; i++) {
        snprintf(path, sizeof path, "socket of family %d", families[i]);
        TRY(path, socket(families[i], SOCK_DGRAM, 0) >= 0);
    }
    int pair[2];
    TRY("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);

    TRY("fork", ({ pid_t p = syscall(SYS_fork); if (p == 0) _exit(0); p > 0; }));
    TRY("vfork", ({ pid_t p = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0); if (p == 0) _exit(0); p > 0; }));
    TRY("clone", ({ pid_t p = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); if (p == 0) _exit(0); p > 0; }));
    TRY("clone user", ({ pid_t p = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0); if (p == 0) _exit(0); p > 0; }));
    char big[88] = {0};
    TRY("clone3", ({ pid_t p = syscall(SYS_clone3, big, sizeof big); if (p == 0) _exit(0); p > 0; }));
    char *nothing[] = {NULL};
    TRY("execve", execve("/bin/sh", nothing, nothing) == 0);
    TRY("execve of itself", execve(argv[0], argv, nothing) == 0);
    TRY("execveat", syscall(SYS_execveat, AT_FDCWD, "/bin/sh", nothing, nothing, 0) == 0);
    TRY("execveat 1000", syscall(SYS_execveat, 1000, "", nothing, nothing, AT_EMPTY_PATH) == 0);
    TRY("dup to 1000", dup2(1, 1000) == 1000);
    TRY("dup3 to 1000", dup3(1, 1000, 0) == 1000);
    TRY("fcntl to 1000", fcntl(1, F_DUPFD, 1000) >= 1000);
    TRY("memfd", syscall(SYS_memfd_create, "x", 0) >= 0);
    TRY("memfd_secret", syscall(447, 0) >= 0);

    TRY("kill parent", kill(parent, SIGKILL) == 0);
    TRY("kill all", kill(-1, SIGTERM) == 0);
    TRY("signal 0", kill(parent, 0) == 0);
    TRY("tgkill", syscall(SYS_tgkill, parent, parent, SIGTERM) == 0);
    TRY("tkill", syscall(SYS_tkill, parent, SIGTERM) == 0);
    TRY("sigqueue", syscall(SYS_rt_sigqueueinfo, parent, SIGTERM, big) == 0);
    TRY("pidfd_open", syscall(SYS_pidfd_open, parent, 0) >= 0);
    TRY("pidfd_getfd", syscall(SYS_pidfd_getfd, 0, 0, 0) >= 0);
    TRY("process_madvise", syscall(440, 0, 0, 0, 0, 0) >= 0);
    TRY("owner of a descriptor", fcntl(0, F_SETOWN, parent) == 0);
    TRY("signal of a descriptor", fcntl(0, F_SETSIG, SIGKILL) == 0);
    TRY("ptrace attach", ptrace(PTRACE_ATTACH, parent, 0, 0) == 0);
    TRY("ptrace seize", ptrace(PTRACE_SEIZE, parent, 0, 0) == 0);
    TRY("ptrace me", ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    struct iovec vector = {big, sizeof big};
    TRY("process_vm_readv", process_vm_readv(parent, &vector, 1, &vector, 1, 0) >= 0);
    TRY("process_vm_writev", process_vm_writev(parent, &vector, 1, &vector, 1, 0) >= 0);
    TRY("kcmp", syscall(SYS_kcmp, parent, getpid(), 0, 0, 0) >= 0);
    TRY("setpriority", setpriority(PRIO_PROCESS, parent, 19) == 0);
    TRY("sched_setaffinity", syscall(SYS_sched_setaffinity, parent, sizeof big, big) == 0);
    struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
    TRY("prlimit of parent", syscall(SYS_prlimit64, parent, RLIMIT_NOFILE, &more, 0) == 0);
    TRY("raise limits", setrlimit(RLIMIT_AS, &more) == 0);

    TRY("mount", mount("tmpfs", "/", "tmpfs", 0, 0) == 0);
    TRY("umount", umount2("/", MNT_DETACH) == 0);
    TRY("new mount api", syscall(430, "tmpfs", 0) >= 0 || syscall(428, AT_FDCWD, "/", 1) >= 0 || syscall(429, 0, "", 0, "", 0) >= 0);
    TRY("pivot_root", syscall(SYS_pivot_root, ".", ".") == 0);
    int spaces[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_FILES};
    for (unsigned i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        snprintf(path, sizeof path, "unshare %x", spaces[i]);
        TRY(path, unshare(spaces[i]) == 0);
    }
    TRY("setns", setns(0, 0) == 0);
    TRY("setuid", setuid(0) == 0);
    TRY("setgid", setgid(0) == 0);
    TRY("setgroups", syscall(SYS_setgroups, 0, 0) == 0);
    TRY("setreuid", setreuid(0, 0) == 0);
    TRY("sethostname", sethostname("x", 1) == 0);
    TRY("reboot", syscall(SYS_reboot, 0, 0, 0, 0) == 0);
    TRY("settime", syscall(SYS_clock_settime, 0, big) == 0);
    TRY("capset", syscall(SYS_capset, big, big) == 0);
    int odd[] = {PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_KEEPCAPS, PR_SET_MM,
        PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT, PR_SET_PTRACER};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
        snprintf(path, sizeof path, "prctl %d", odd[i]);
        TRY(path, prctl(odd[i], 1, 0, 0, 0) == 0);
    }
    TRY("seccomp", syscall(SYS_seccomp, 1, 0, 0) == 0);
    int rare[] = {SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_keyctl, SYS_add_key, SYS_request_key,
        SYS_init_module, SYS_finit_module, SYS_kexec_load, SYS_swapon, SYS_acct, SYS_quotactl, SYS_iopl, SYS_ioperm,
        SYS_modify_ldt, SYS_personality, SYS_vmsplice, SYS_splice, SYS_tee, SYS_shmget, SYS_msgget, SYS_semget,
        SYS_mq_open, SYS_inotify_init, SYS_fanotify_init, SYS_signalfd, SYS_timerfd_create, SYS_timer_create,
        SYS_landlock_create_ruleset, SYS_migrate_pages, SYS_move_pages, SYS_mbind, SYS_syslog, SYS_lookup_dcookie,
        SYS_name_to_handle_at, SYS_copy_file_range, SYS_sendfile, SYS_setxattr, SYS_getxattr, SYS_ioprio_set};
    for (unsigned i = 0; i < sizeof rare / sizeof *rare; i++) {
        snprintf(path, sizeof path, "system call %d", rare[i]);
        TRY(path, syscall(rare[i], 0, 0, 0, 0, 0) >= 0);
    }
    void *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY("mprotect to executable", memory != MAP_FAILED && mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0);
    TRY("executable memory", mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    TRY("pkey_mprotect", syscall(SYS_pkey_mprotect, memory, 4096, 7, -1) == 0);
    TRY("TIOCSTI", syscall(SYS_ioctl, 0, 0x5412, "x") == 0);
    TRY("FIOSETOWN", syscall(SYS_ioctl, 0, 0x8901, &parent) == 0);
    TRY("pipe size", fcntl(0, F_SETPIPE_SZ, 1 << 20) > 0);
    for (int fd = 3; fd < 64; fd++) TRY("an inherited descriptor", fcntl(fd, F_GETFD) >= 0);
    for (char **one = environ; *one; one++)
        TRY(*one, strncmp(*one, "LANG=", 5) && strncmp(*one, "TZ=", 3) && strcmp(*one, "PYTHONHASHSEED=0"));
    printf("tried %d, escaped %d\n", tried, done);
    fflush(stdout);
    return 0;
}
