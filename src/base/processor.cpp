#include "base/processor.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zero {
namespace {

constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;  // CPUID 7.0 EDX
constexpr unsigned kAvx512Bf16 = 1U << 5;                     // CPUID 7.1 EAX

bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvx512Bf16) != 0;
}

bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

// Linux gives a process the state of tiles when it asks for it.
bool system_lets_us() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool multiplies_bf16() {
  static const bool multiplies = runs_avx512() && has_avx512_bf16();
  return multiplies;
}

bool runs_amx() {
  static const bool runs = multiplies_bf16() && has_amx() && system_lets_us();
  return runs;
}

}  // namespace zero

#else

namespace zero {

bool multiplies_bf16() { return false; }
bool runs_amx() { return false; }

}  // namespace zero

#endif
