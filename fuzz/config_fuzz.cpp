// The configuration: what is accepted prints, reads back equal, and resolves or says why not.
#include "fuzz.h"
#include "zero/config.h"

namespace {

void read_config(std::string_view text) {
  using namespace zero;
  fuzz::attempt(
      [&] {
        const Config config = parse_config(text, "fuzz");
        fuzz::check(parse_config(to_json(config), "fuzz") == config);
        for (const int ranks : {1, 4}) fuzz::attempt([&] { resolve(config, ranks); }, false);
      },
      false);
}

}  // namespace

ZERO_FUZZ(read_config)
