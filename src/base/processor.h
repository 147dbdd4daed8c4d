#pragma once
// What the processor runs, for code that is compiled in several versions. Asked at run time.

namespace zero {

/// AVX2, with the half-precision and fused instructions that come with it.
inline bool runs_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

/// AVX-512 F, BW, VL and DQ: any server since Skylake.
inline bool runs_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace zero
