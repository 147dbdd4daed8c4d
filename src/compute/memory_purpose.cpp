#include "compute/memory_purpose.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace zero::detail {
namespace {

thread_local MemoryPurpose purpose_of_thread = MemoryPurpose::Unsaid;

// The kind that LibTorch leaves to others: it goes with a backward to the threads of its devices.
constexpr auto kPurposeKind = c10::DebugInfoKind::TEST_INFO;

struct PurposeInfo final : c10::DebugInfoBase {
  explicit PurposeInfo(const std::string& text) : purpose(text) {}
  const std::string& purpose;
};

// Kept for ever: memory is labelled until it is freed, and may outlive everything else.
const std::string& kept(std::string_view purpose) {
  static std::mutex mutex;
  static auto* const all = new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return *all->insert(std::string(purpose)).first;
}

}  // namespace

const std::string& to_string(MemoryPurpose purpose) {
  static const auto& kNames =
      *new std::array<std::string, 9>{"other",  "parameters",       "shards",  "gradients",  "buckets",
                                      "master", "optimizer states", "buffers", "activations"};
  return kNames.at(static_cast<size_t>(purpose));
}

MemoryPurposeScope::MemoryPurposeScope(MemoryPurpose purpose)
    : before_(std::exchange(purpose_of_thread, purpose)) {}
MemoryPurposeScope::~MemoryPurposeScope() { purpose_of_thread = before_; }

DefaultPurposeScope::DefaultPurposeScope(std::string_view purpose)
    : guard_(std::make_unique<c10::DebugInfoGuard>(kPurposeKind,
                                                   std::make_shared<PurposeInfo>(kept(purpose)))) {}
DefaultPurposeScope::~DefaultPurposeScope() = default;

const std::string& memory_purpose() {
  if (purpose_of_thread != MemoryPurpose::Unsaid) return to_string(purpose_of_thread);
  const auto* info = static_cast<PurposeInfo*>(c10::ThreadLocalDebugInfo::get(kPurposeKind));
  return info != nullptr ? info->purpose : to_string(MemoryPurpose::Unsaid);
}

}  // namespace zero::detail
