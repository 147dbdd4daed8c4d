#pragma once
// For tests that bound a process's memory.

namespace zero::testing {

/// Sanitizers keep memory that was freed, and shadows of all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace zero::testing
