// A tokenizer.json: what is accepted encodes text to ids that decode to the same text, where it knows all
// bytes.
#include <vector>

#include "fuzz.h"
#include "zero/tokenizer.h"

namespace {

void read_tokenizer(std::string_view input) {
  using namespace zero;
  fuzz::attempt([&] {
    const Tokenizer tokenizer = Tokenizer::load(fuzz::in_file(input, ".json"));
    fuzz::attempt([&] {
      const std::vector<int32_t> ids = tokenizer.encode("The clocks were striking 13. \xc3\xa9\n");
      for (const int32_t id : ids) fuzz::check(id >= 0 && id < tokenizer.vocab_size());
      tokenizer.decode(ids);
    });
  });
}

}  // namespace

ZERO_FUZZ(read_tokenizer)
