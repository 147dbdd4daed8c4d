#include "data/special_tokens.h"

#include <string>
#include <system_error>

#include "data/text_reader.h"
#include "data/tokenizer_spec.h"
#include "zero/error.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

// The ids of the token that a template names.
std::vector<int32_t> template_ids(const JsonPlace& processor, const std::string& name) {
  std::vector<int32_t> found;
  for (const JsonPlace& id : processor["special_tokens"][name]["ids"].elements())
    found.push_back(static_cast<int32_t>(id.integer(kMostTokens)));
  return found;
}

// "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]
SpecialTokens read_template(const JsonPlace& processor) {
  SpecialTokens tokens;
  const JsonPlace single = processor["single"];
  bool text_seen = false;
  for (const JsonPlace& piece : single.elements()) {
    const JsonPlace special = piece["SpecialToken"], text = piece["Sequence"];
    if (special.is_null() == text.is_null()) piece.expected("one of SpecialToken and Sequence");
    if (!text.is_null()) {
      if (text_seen || text["id"].string() != "A") single.expected("the text A once");
      text_seen = true;
      continue;
    }
    std::vector<int32_t>& side = text_seen ? tokens.after : tokens.before;
    for (const int32_t id : template_ids(processor, special["id"].string())) side.push_back(id);
  }
  if (!text_seen) single.expected("the text A once");
  return tokens;
}

// ["</s>", 2]
int32_t pair_id(const JsonPlace& pair) {
  if (pair.array_size() != 2) pair.expected("a token and its id");
  return static_cast<int32_t>(pair.at(1).integer(kMostTokens));
}

void put_around(SpecialTokens& tokens, const SpecialTokens& more) {
  tokens.before.insert(tokens.before.begin(), more.before.begin(), more.before.end());
  tokens.after.insert(tokens.after.end(), more.after.begin(), more.after.end());
}

// "<s>", or {"content": "<s>", ...}; nothing for null, the default where the key is missing.
std::optional<std::string> named_token(const JsonPlace& config, const char* key, std::string_view fallback) {
  if (!config.value().contains(key)) return std::string(fallback);
  const JsonPlace token = config[key];
  if (token.is_null()) return std::nullopt;
  return token.is_object() ? token["content"].string() : token.string();
}

}  // namespace

SpecialTokens special_tokens_of(const JsonPlace& post_processor) {
  if (post_processor.is_null()) return {};
  const std::string& type = post_processor["type"].string();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(post_processor);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {.before = {pair_id(post_processor["cls"])}, .after = {pair_id(post_processor["sep"])}};
  if (type != "Sequence")
    fail(ErrorKind::Unsupported, post_processor["type"].place(), "this version does not do \"" + type + "\"");
  SpecialTokens tokens;
  for (const JsonPlace& processor : post_processor["processors"].elements())
    put_around(tokens, special_tokens_of(processor));
  return tokens;
}

SpecialTokens special_tokens_beside(const fs::path& directory, std::string_view default_begin,
                                    std::string_view default_end,
                                    const std::function<std::optional<int32_t>(std::string_view)>& id_of) {
  std::error_code ignored;
  if (fs::exists(directory / "tokenizer.json", ignored)) {
    const auto document = read_json(directory / "tokenizer.json");
    const JsonPlace root(document, (directory / "tokenizer.json").string());
    return special_tokens_of(root["post_processor"]);
  }
  const fs::path path = directory / "tokenizer_config.json";
  if (!fs::exists(path, ignored)) return {};
  const auto document = read_json(path);
  const JsonPlace config(document, path.string());
  SpecialTokens tokens;
  const auto add = [&](const char* wanted, const char* key, std::string_view fallback,
                       std::vector<int32_t>& side) {
    if (!config[wanted].boolean_or(false)) return;
    const auto name = named_token(config, key, fallback);
    if (!name) return;
    const auto id = id_of(*name);
    require(id.has_value(), ErrorKind::Corrupt, config[key].place(),
            "\"" + *name + "\" is no token of the vocabulary");
    side.push_back(*id);
  };
  add("add_bos_token", "bos_token", default_begin, tokens.before);
  add("add_eos_token", "eos_token", default_end, tokens.after);
  return tokens;
}

}  // namespace zero::data
