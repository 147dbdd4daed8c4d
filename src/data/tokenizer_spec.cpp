#include "data/tokenizer_spec.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/strict_json.h"
#include "data/text_reader.h"
#include "zero/error.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostMergesBytes = uint64_t{1} << 28;

void read_vocab(const JsonPlace& vocab, TokenizerSpec& spec) {
  spec.vocab_place = vocab.place();
  spec.vocab.reserve(vocab.value().size());
  for (const auto& [token, id] : vocab.members())
    spec.vocab.push_back({token, static_cast<int32_t>(id.integer(kMostTokens))});
}

// "left right": tokens are written without white space, so one space parts them.
void add_merge(std::string_view line, int64_t entry, TokenizerSpec& spec) {
  const size_t space = line.find(' ');
  if (space == 0 || space == line.npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != line.npos) {
    fail(ErrorKind::Corrupt, spec.merges_place + " " + std::to_string(entry),
         "expected two tokens with one space between, got \"" + std::string(line) + "\"");
  }
  spec.merges.push_back({std::string(line.substr(0, space)), std::string(line.substr(space + 1)), entry});
}

void read_merges_txt(const fs::path& path, TokenizerSpec& spec) {
  const std::string text = read_file(path, kMostMergesBytes);
  spec.merges_place = path.string() + " line";
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == text.npos) end = text.size();
    std::string_view line(text.data() + at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    ++number;
    if (line.empty() || line.starts_with("#version")) continue;
    add_merge(line, number, spec);
  }
}

TokenizerSpec read_gpt2(const fs::path& folder) {
  TokenizerSpec spec;
  const auto vocab = read_json(folder / "vocab.json");
  read_vocab({vocab, (folder / "vocab.json").string()}, spec);
  read_merges_txt(folder / "merges.txt", spec);
  spec.added_place = spec.vocab_place;
  for (const auto& entry : spec.vocab) {
    if (entry.spelling == "<|endoftext|>") spec.added.push_back({entry.spelling, entry.id, false});
  }
  spec.splits.push_back({std::string(kGpt2Pattern), SplitBehavior::Isolated, folder.string()});
  return spec;
}

[[noreturn]] void unsupported(const JsonPlace& what) {
  fail(ErrorKind::Unsupported, what.place(), "this version does not do " + json_text(what.value()),
       "use the tokenizer of a GPT-2, Llama 3 or GPT-NeoX model");
}

void read_merges_array(const JsonPlace& merges, TokenizerSpec& spec) {
  spec.merges_place = merges.place() + " entry";
  const size_t count = merges.array_size();
  spec.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonPlace merge = merges.at(i);
    if (merge.is_array()) {
      if (merge.array_size() != 2) merge.expected("two tokens");
      spec.merges.push_back({merge.at(0).string(), merge.at(1).string(), static_cast<int64_t>(i)});
    } else {
      add_merge(merge.string(), static_cast<int64_t>(i), spec);
    }
  }
}

void read_model(const JsonPlace& model, TokenizerSpec& spec) {
  const JsonPlace type = model["type"];
  if (!type.is_null() && type.string() != "BPE") unsupported(type);
  // Read elsewhere; a byte-level vocabulary has no unknown text, so the last two say nothing.
  static const std::set<std::string_view> kHarmless{"type",          "vocab",     "merges",
                                                    "ignore_merges", "unk_token", "fuse_unk"};
  for (const auto& [key, value] : model.value().items()) {
    const bool empty = value.is_string() && value.get_ref<const std::string&>().empty();
    const bool off = value.is_null() || value == false || empty || (key == "dropout" && value == 0.0);
    if (!off && !kHarmless.contains(key)) unsupported(model[key]);
  }
  spec.ignore_merges = model["ignore_merges"].boolean_or(false);
  read_vocab(model["vocab"], spec);
  read_merges_array(model["merges"], spec);
}

void read_added_tokens(const JsonPlace& tokens, TokenizerSpec& spec) {
  spec.added_place = tokens.place();
  if (tokens.is_null()) return;
  for (const JsonPlace& token : tokens.elements()) {
    for (const char* option : {"single_word", "lstrip", "rstrip"}) {
      if (token[option].boolean_or(false)) unsupported(token[option]);
    }
    const std::string& content = token["content"].string();
    if (content.empty()) token["content"].expected("a token that is not empty");
    const auto id = static_cast<int32_t>(token["id"].integer(kMostTokens));
    const bool special = token["special"].boolean_or(false);
    spec.added.push_back({content, id, token["normalized"].boolean_or(!special)});
  }
}

void read_normalizer(const JsonPlace& normalizer, TokenizerSpec& spec) {
  if (normalizer.is_null()) return;
  const std::string& type = normalizer["type"].string();
  if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Sequence") {
    for (const JsonPlace& step : normalizer["normalizers"].elements()) read_normalizer(step, spec);
  } else {
    unsupported(normalizer);
  }
}

void read_split(const JsonPlace& split, TokenizerSpec& spec) {
  const JsonPlace regex = split["pattern"]["Regex"], literal = split["pattern"]["String"];
  if (regex.is_null() == literal.is_null()) split["pattern"].expected("one of Regex and String");
  const std::string pattern = regex.is_null() ? escape_pattern(literal.string()) : regex.string();
  const std::string& behavior = split["behavior"].string();
  const bool invert = split["invert"].boolean_or(false);
  if (behavior == "Isolated") {
    spec.splits.push_back({pattern, SplitBehavior::Isolated, split.place()});
  } else if (behavior == "Removed") {
    spec.splits.push_back(
        {pattern, invert ? SplitBehavior::KeepMatch : SplitBehavior::RemoveMatch, split.place()});
  } else {
    unsupported(split["behavior"]);
  }
}

void read_byte_level(const JsonPlace& step, TokenizerSpec& spec) {
  if (step["add_prefix_space"].boolean_or(true)) unsupported(step);
  if (!step["use_regex"].boolean_or(true)) return;
  spec.splits.push_back({std::string(kGpt2Pattern), SplitBehavior::Isolated, step.place()});
}

// One step; true when it was ByteLevel, which must be the last: after it text is no longer text.
bool read_pre_tokenizer(const JsonPlace& step, TokenizerSpec& spec) {
  const std::string& type = step["type"].string();
  if (type == "ByteLevel") {
    read_byte_level(step, spec);
    return true;
  }
  if (type == "Split") {
    read_split(step, spec);
  } else if (type == "Digits") {
    const bool each = step["individual_digits"].boolean_or(false);
    spec.splits.push_back({each ? R"(\p{N})" : R"(\p{N}+)", SplitBehavior::Isolated, step.place()});
  } else if (type == "Sequence") {
    bool done = false;
    for (const JsonPlace& inner : step["pretokenizers"].elements()) {
      if (done) unsupported(inner);
      done = read_pre_tokenizer(inner, spec);
    }
    return done;
  } else {
    unsupported(step);
  }
  return false;
}

TokenizerSpec read_tokenizer_json(const fs::path& path) {
  TokenizerSpec spec;
  const auto document = read_json(path);
  const JsonPlace root(document, path.string());
  read_model(root["model"], spec);
  read_added_tokens(root["added_tokens"], spec);
  read_normalizer(root["normalizer"], spec);
  const JsonPlace pre_tokenizer = root["pre_tokenizer"];
  if (pre_tokenizer.is_null() || !read_pre_tokenizer(pre_tokenizer, spec)) unsupported(pre_tokenizer);
  spec.specials = special_tokens_of(root["post_processor"]);
  const JsonPlace decoder = root["decoder"];
  if (!decoder.is_null() && decoder["type"].string() != "ByteLevel") unsupported(decoder);
  return spec;
}

}  // namespace

TokenizerSpec read_tokenizer_spec(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    require(fs::exists(path, error), ErrorKind::Io, path.string(), "no such file or directory",
            "name a tokenizer.json, or a directory with tokenizer.json or with vocab.json and merges.txt");
    return read_tokenizer_json(path);
  }
  if (fs::exists(path / "tokenizer.json", error)) return read_tokenizer_json(path / "tokenizer.json");
  require(fs::exists(path / "vocab.json", error) && fs::exists(path / "merges.txt", error), ErrorKind::Io,
          path.string(), "the directory holds neither tokenizer.json nor both of vocab.json and merges.txt");
  return read_gpt2(path);
}

}  // namespace zero::data
