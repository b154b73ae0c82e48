/* Lets torch use AMX in virtual machines that have it and say nothing of its tiles.
 *
 *     gcc -O1 -shared -fPIC benchmarks/amx.c -o amx.so
 *     LD_PRELOAD=$PWD/amx.so reluctant sweep …
 *
 * Some hypervisors announce AMX (CPUID leaf 7), let it be used, and leave the leaves that describe its tiles (0x1D, 0x1E)
 * empty. oneDNN then configures no tiles, and the first matrix product in bfloat16 ends with an illegal instruction; `auto`
 * finds that out and takes float32. This library makes Linux report CPUID instructions of a Python process (ARCH_SET_CPUID),
 * executes them, and fills in the two leaves where they are empty, with the values of Sapphire Rapids.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, TILES = 0x1d, PRODUCTS = 0x1e };

static struct sigaction before;

static void allow_cpuid(int allowed) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static void on_segv(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || instruction[0] != 0x0f || instruction[1] != 0xa2) {
        sigaction(SIGSEGV, &before, 0); /* not ours: it happens again, and whoever was there before sees it */
        return;
    }
    unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a = leaf, b, c = part, d;
    allow_cpuid(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    allow_cpuid(0);
    if (leaf == TILES && part == 0 && a == 0) a = 1;      /* one palette: */
    if (leaf == TILES && part == 1 && a == 0) {
        a = 1024 << 16 | 8192;                            /* bytes of a tile and of all tiles */
        b = 8 << 16 | 64;                                 /* tiles, bytes of a row */
        c = 16;                                           /* rows */
    }
    if (leaf == PRODUCTS && part == 0 && b == 0) b = 64 << 8 | 16;
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    const char *name = program_invocation_short_name; /* a compiler, for one, has a SIGSEGV handler of its own */
    if (strncmp(name, "python", 6) != 0) return;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before);
    allow_cpuid(0);
}
