#pragma once
// Traffic along "tp" as JSON: {"all_reduce": {"calls": ..., "elements": ..., "bytes": ...}, ...}.

#include <nlohmann/json.hpp>

#include "zero/axis_traffic.h"

namespace zero {

inline nlohmann::ordered_json moved_json(const TensorTraffic& traffic) {
  const auto of = [](const Moved& moved) {
    return nlohmann::ordered_json{
        {"calls", moved.calls}, {"elements", moved.elements}, {"bytes", moved.bytes}};
  };
  return {{"all_reduce", of(traffic.all_reduce)},
          {"all_gather", of(traffic.all_gather)},
          {"reduce_scatter", of(traffic.reduce_scatter)}};
}

}  // namespace zero
