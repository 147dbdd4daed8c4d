#pragma once
// What the processor runs, for code that is compiled in several versions, and how it likes to read. Asked at
// run time.

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

/// Instructions that multiply bf16: AVX-512's, or AMX's in tiles, where the system lets this process use
/// those. Asked once. Thread safe.
bool multiplies_bf16();
bool runs_amx();

/// Pages that a long copy or sum passes over side by side. Intel's processors read ahead to a page's end
/// only, so that several keep more of the memory busy. AMD's take a load for one that waits for the stores to
/// the same place of other pages: four side by side copy 2 GB/s where one after the other makes 17.
inline int pages_side_by_side() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") ? 4 : 1;
#else
  return 1;
#endif
}

}  // namespace zero
