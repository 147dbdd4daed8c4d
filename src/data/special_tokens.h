#pragma once
// The tokens that belong around a text: what Python's tokenizer(text) adds to the text's own ids.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/strict_json.h"

namespace zero::data {

struct SpecialTokens {
  std::vector<int32_t> before, after;
};

/// Of a tokenizer.json's "post_processor". Throws Corrupt, and Unsupported for a kind that it does not know.
SpecialTokens special_tokens_of(const JsonPlace& post_processor);

/// Of the directory of a tokenizer. As transformers has it, tokenizer.json decides, where there is one;
/// without it, add_bos_token and add_eos_token of tokenizer_config.json (unset: off), by the names that it
/// gives or else `default_begin` and `default_end`. Throws Corrupt where a token is not in the vocabulary.
SpecialTokens special_tokens_beside(const std::filesystem::path& directory, std::string_view default_begin,
                                    std::string_view default_end,
                                    const std::function<std::optional<int32_t>(std::string_view)>& id_of);

}  // namespace zero::data
