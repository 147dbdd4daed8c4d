#pragma once
// The memories that states can be in.

#include <array>
#include <string_view>

namespace zero {

/// Which memory a state is in while nobody uses it.
enum class Tier {
  Device,  // of the device that computes
};

inline constexpr std::array kTiers{Tier::Device};

/// The tiers of one unit's states, by kind.
struct StateTiers {
  Tier parameter = Tier::Device;
  Tier gradient = Tier::Device;
  Tier master = Tier::Device;
  Tier optimizer = Tier::Device;
  bool operator==(const StateTiers&) const = default;
};

constexpr std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::Device:
      return "device";
  }
  return "unknown";
}

}  // namespace zero
