#pragma once
// Other programs' settings as a configuration of this one: DeepSpeed's file with its "auto" values,
// accelerate's file, and the arguments of Hugging Face's Trainer. No files and no tensors here: JSON in, JSON
// out.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace zero::convert {

using Json = nlohmann::ordered_json;

/// What there is to convert; a part that is null is not there.
struct Sources {
  Json deepspeed;   // DeepSpeed's configuration
  Json accelerate;  // accelerate's config.yaml (1.x)
  Json trainer;     // fields of transformers' TrainingArguments (4.4x to 5.x)
};

struct Converted {
  Json config;                       // for parse_config()
  std::vector<std::string> notes;    // what was left out since it changes nothing here, a line each
  std::vector<std::string> refused;  // what cannot be taken over, a line each with what to write instead
};

/// Takes DeepSpeed's file as it stands, fills its "auto" from the other two as transformers and accelerate
/// do, and adds what only these say. Contradictions between them are refused. Keys that nobody knows are
/// refused by name.
Converted convert(const Sources& sources);

/// A YAML document as JSON: maps, lists, numbers, booleans, null and strings, by YAML 1.2's core rules
/// and 1.1's yes and no. `place` names it in errors. Throws Corrupt for what is no such document, for aliases
/// and for more than 64 levels.
Json json_of_yaml(const std::string& text, const std::string& place);

}  // namespace zero::convert
