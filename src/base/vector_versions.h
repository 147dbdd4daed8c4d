#pragma once
// One version of a function for every width of vector registers, chosen when the program is loaded.
// Sanitizers start too late for it.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ZERO_VECTOR_VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZERO_VECTOR_VERSIONS
#endif

// What such a function calls must become part of each version.
#define ZERO_INLINE inline __attribute__((always_inline))
