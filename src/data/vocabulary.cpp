#include <xxhash.h>

#include "data/tokenizer_impl.h"
#include "zero/error.h"

namespace zero::data {

Vocabulary vocabulary_of(const std::vector<std::optional<std::string>>& spellings) {
  XXH3_state_t* state = XXH3_createState();
  require(state != nullptr, ErrorKind::Internal, "", "xxhash has no memory");
  XXH3_64bits_reset(state);
  for (size_t id = 0; id < spellings.size(); ++id) {
    if (!spellings[id]) continue;
    const uint64_t number = id, length = spellings[id]->size();
    uint8_t head[16];
    for (int i = 0; i < 8; ++i) {
      head[i] = static_cast<uint8_t>(number >> 8 * i);
      head[8 + i] = static_cast<uint8_t>(length >> 8 * i);
    }
    XXH3_64bits_update(state, head, sizeof(head));
    XXH3_64bits_update(state, spellings[id]->data(), spellings[id]->size());
  }
  const Vocabulary vocabulary{static_cast<int64_t>(spellings.size()), XXH3_64bits_digest(state)};
  XXH3_freeState(state);
  return vocabulary;
}

}  // namespace zero::data
