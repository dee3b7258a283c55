// Preloaded, lets a process on Linux see a processor without AVX-512, VNNI and AMX, where the kernel can make CPUID fault
// (`cpuid_fault` in /proc/cpuinfo): so libraries take their AVX2 kernels. What it is told of memory and caches is true.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID_SET 0x1012

static void answer(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *at = (const uint8_t *)registers[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0xa2) {  // no CPUID: a fault of the program's own
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  uint32_t a = (uint32_t)registers[REG_RAX], c = (uint32_t)registers[REG_RCX], b, d;
  const uint32_t leaf = a, part = c;
  syscall(SYS_arch_prctl, ARCH_CPUID_SET, 1);
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
  if (leaf == 7 && part == 0) {
    b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);  // AVX-512
    c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);                                     // and VNNI
    d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);                // and AMX
  }
  if (leaf == 7 && part == 1) {
    a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23);  // AVX-VNNI, AVX512_BF16, AMX_FP16, AVX-IFMA
    d &= ~(1u << 4 | 1u << 5 | 1u << 10);             // AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16
  }
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {0};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, 0);
  syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
}
