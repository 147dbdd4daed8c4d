#include "checkpoint/left_out.h"

#include <cstring>

#include "base/mix_bits.h"

namespace zero::checkpoint {
namespace {

// Terms of a sum, so that parts can be added in any order.
uint64_t term_of(uint64_t place, uint64_t bits) { return mix_bits(bits + (place + 1) * kGoldenGamma); }

}  // namespace

std::optional<LeftOut> left_out_of(const JsonPlace& engine) {
  if (!engine.value().contains("frozen_from")) return std::nullopt;
  LeftOut left_out{.from = engine["frozen_from"].string(), .fingerprints = {}};
  for (const auto& [name, fingerprint] : engine["frozen"].members())
    left_out.fingerprints[name] = fingerprint.hex64();
  return left_out;
}

std::optional<LeftOut> left_out_of_metadata(std::string_view metadata, std::string_view place) {
  const Json about = parse_json(metadata, place);
  const JsonPlace engine = JsonPlace(about, std::string(place))["engine"];
  if (!engine.is_object()) return std::nullopt;
  return left_out_of(engine);
}

uint64_t fingerprint_of(const void* elements, int64_t numel, int64_t width, int64_t begin) {
  const auto* bytes = static_cast<const char*>(elements);
  uint64_t sum = 0;
  for (int64_t i = 0; i < numel; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + i * width, width);
    sum += term_of(static_cast<uint64_t>(begin + i), bits);
  }
  return sum;
}

}  // namespace zero::checkpoint
