#pragma once
// What memory that a thread takes is for. The library says so; whoever keeps books of memory (virtual devices
// do) asks when memory is taken. Of real devices nobody asks.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace c10 {
class DebugInfoGuard;
}

namespace zero::detail {

/// What the engine holds; zero/plan.h predicts most of it.
enum class MemoryPurpose : uint8_t {
  Unsaid,
  Parameters,       // gathered units, and whole ones that a rank keeps
  Shards,           // of parameters
  Gradients,        // sums between micro-batches and until the step
  Buckets,          // gradients on their way
  Master,           // fp32 beside 16-bit shards
  OptimizerStates,  // moments
  Buffers,          // the module's
  Activations,      // all that forward and backward take and that is none of the above
};

/// "parameters", "optimizer states", ...; "other" for Unsaid.
const std::string& to_string(MemoryPurpose purpose);

/// What this thread takes while the scope lives; the innermost scope counts. Costs one write.
class MemoryPurposeScope {
 public:
  explicit MemoryPurposeScope(MemoryPurpose purpose);
  ~MemoryPurposeScope();
  MemoryPurposeScope(const MemoryPurposeScope&) = delete;
  MemoryPurposeScope& operator=(const MemoryPurposeScope&) = delete;

 private:
  MemoryPurpose before_;
};

/// The same for what has no MemoryPurposeScope around it, on this thread and on those of backwards that it
/// starts. Any text. To be destroyed by its own thread, in reverse order of construction.
class DefaultPurposeScope {
 public:
  explicit DefaultPurposeScope(std::string_view purpose);
  explicit DefaultPurposeScope(MemoryPurpose purpose) : DefaultPurposeScope(to_string(purpose)) {}
  ~DefaultPurposeScope();
  DefaultPurposeScope(const DefaultPurposeScope&) = delete;
  DefaultPurposeScope& operator=(const DefaultPurposeScope&) = delete;

 private:
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

/// What the calling thread's next memory is for. The text lives for ever.
const std::string& memory_purpose();

}  // namespace zero::detail
