#pragma once
// Runs in which a wait of the engine's is left out, and what virtual devices find.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include "support/virtual_ranks.h"

namespace zero::virtual_device::testing {

using namespace zero::testing;

/// What the ranks of a run have passed and found.
struct Found {
  std::set<std::string> places, faults;
};
inline Found run_without(const std::vector<std::string>& left_out, int ranks,
                         const std::function<void(const Mesh&, const std::filesystem::path&)>& body) {
  const TemporaryDirectory directory;
  left_out_waits() = left_out;
  RankOptions options = on_virtual_devices();
  options.mesh.timeout = std::chrono::seconds(10);
  const auto results = collect_ranks(
      ranks,
      [&](Mesh mesh) {
        std::string text;
        try {
          body(mesh, directory.path());
        } catch (const std::exception&) {
          // Wrong numbers may be noticed by the engine too: the faults count.
        }
        own_devices().synchronize();
        for (const std::string& place : own_devices().wait_places()) text += "p" + place + "\n";
        for (const Fault& fault : own_devices().faults())
          text += "f" + std::string(to_string(fault.kind)) + ": " + fault.text + "\n";
        hand_back(text);
      },
      options);
  left_out_waits().clear();
  Found found;
  for (const RankResult& result : results) {
    std::istringstream lines(result.bytes);
    for (std::string line; std::getline(lines, line);)
      (line[0] == 'p' ? found.places : found.faults).insert(line.substr(1));
  }
  return found;
}

/// Each of `places` but those of `unseen`, left out, is a fault.
inline void expect_all_missed(const std::set<std::string>& places, const std::set<std::string>& unseen,
                              int ranks,
                              const std::function<void(const Mesh&, const std::filesystem::path&)>& body) {
  for (const std::string& place : places) {
    if (unseen.contains(place)) continue;
    const Found without = run_without({place}, ranks, body);
    EXPECT_FALSE(without.faults.empty()) << "nobody misses the wait \"" << place << "\"";
    if (std::getenv("ZERO_TEST_SHOW_FAULTS") != nullptr)
      printf("%s: %s\n", place.c_str(), without.faults.empty() ? "" : without.faults.begin()->c_str());
  }
}

}  // namespace zero::virtual_device::testing
