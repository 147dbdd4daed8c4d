#include <vector>

#include "base/processor.h"
#include "operators/product/variants.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zero::product {
namespace {

constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;  // CPUID 7.0 EDX
constexpr unsigned kAvx512Bf16 = 1U << 5;                     // CPUID 7.1 EAX

bool processor_has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvx512Bf16) != 0;
}

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

// Linux gives a process the state of tiles when it asks for it.
bool system_lets_us() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool runs_avx512_bf16() {
  static const bool runs = runs_avx512() && processor_has_avx512_bf16();
  return runs;
}

}  // namespace

bool runs_amx() {
  static const bool runs = runs_avx512_bf16() && processor_has_amx() && system_lets_us();
  return runs;
}

}  // namespace zero::product

#else

namespace zero::product {
namespace {

bool runs_avx512_bf16() { return false; }

}  // namespace

bool runs_amx() { return false; }

}  // namespace zero::product

#endif

namespace zero::product {
namespace {

std::vector<const KernelsOf<uint16_t>*> bf16_found() {
  std::vector<const KernelsOf<uint16_t>*> result;
#if defined(__x86_64__)
  if (runs_avx2()) result.push_back(&kBf16Avx2);
  if (runs_avx512()) result.push_back(&kBf16Avx512);
  if (runs_amx()) result.push_back(&kBf16Amx);
#endif
  return result;
}

std::vector<const KernelsOf<float>*> fp32_found() {
  std::vector<const KernelsOf<float>*> result;
#if defined(__x86_64__)
  if (runs_avx2()) result.push_back(&kFp32Avx2);
  if (runs_avx512()) result.push_back(&kFp32Avx512);
#endif
  return result;
}

template <class T>
const KernelsOf<T>* last_of(std::span<const KernelsOf<T>* const> kernels) {
  return kernels.empty() ? nullptr : kernels.back();
}

}  // namespace

std::span<const KernelsOf<uint16_t>* const> bf16_kernels() {
  static const std::vector<const KernelsOf<uint16_t>*> kernels = bf16_found();
  return kernels;
}

std::span<const KernelsOf<float>* const> fp32_kernels() {
  static const std::vector<const KernelsOf<float>*> kernels = fp32_found();
  return kernels;
}

const KernelsOf<uint16_t>* best_bf16_kernels() {
  return runs_avx512_bf16() && !runs_amx() ? nullptr : last_of(bf16_kernels());
}

const KernelsOf<float>* best_fp32_kernels() { return last_of(fp32_kernels()); }

}  // namespace zero::product
