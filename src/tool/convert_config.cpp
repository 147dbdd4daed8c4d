// zero convert-config [DS.json] [ACCELERATE.yaml] [--trainer ARGS.json] [--out FILE]
#include <filesystem>
#include <iostream>
#include <vector>

#include "base/output_file.h"
#include "base/strict_json.h"
#include "checkpoint/file_io.h"
#include "convert/convert.h"
#include "verbs.h"
#include "zero/config.h"
#include "zero/error.h"

namespace zero::tool {
namespace {

namespace fs = std::filesystem;
using convert::Json;

constexpr int64_t kMostBytes = 4 << 20;

Json read_source(const fs::path& path) {
  const std::string text = checkpoint::read_text(path, kMostBytes);
  if (path.extension() == ".yaml" || path.extension() == ".yml")
    return convert::json_of_yaml(text, path.string());
  try {
    return Json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::Corrupt, path.string(), std::string("no JSON: ") + error.what());
  }
}

// accelerate's file has words that DeepSpeed's never has.
bool is_accelerate(const Json& json) {
  for (const char* key :
       {"compute_environment", "distributed_type", "deepspeed_config", "fsdp_config", "mixed_precision"})
    if (json.is_object() && json.contains(key)) return true;
  return false;
}

void take_file(const fs::path& path, convert::Sources& sources) {
  Json json = read_source(path);
  Json& place = is_accelerate(json) ? sources.accelerate : sources.deepspeed;
  require(place.is_null(), ErrorKind::Config, path.string(), "a second file of the same kind",
          "give one of DeepSpeed's and one of accelerate's");
  place = std::move(json);
}

// What the loader refuses, one problem a line, without where in the converted text it stands.
void check(convert::Converted& converted) {
  try {
    const Config config = parse_config(converted.config.dump(2), "converted");
    for (const std::string& note : config.origin.notes) converted.notes.push_back(note);
  } catch (const Error& error) {
    std::string text = error.what();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      converted.refused.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
}

}  // namespace

int run_convert_config(int argc, char** argv) {
  std::vector<std::string> files;
  std::string trainer, out;
  CLI::App app(
      "zero convert-config [DS.json] [ACCELERATE.yaml] [--trainer ARGS.json] [--out FILE]\n"
      "A configuration of this program from DeepSpeed's file, accelerate's, or the arguments of Hugging "
      "Face's Trainer; \"auto\" values are "
      "filled in from the others. What cannot be taken over is refused in one list, with what to write "
      "instead. Sections \"model\" and "
      "\"data\" are yours to add.");
  app.add_option("FILES", files, "DeepSpeed's configuration, accelerate's, or both")->expected(0, 2);
  app.add_option("--trainer", trainer,
                 "fields of TrainingArguments, as JSON (args.to_json_string()) or YAML");
  app.add_option("--out", out, "where to write it; else it is printed");
  if (!parse(app, argc, argv)) return 0;
  require(!files.empty() || !trainer.empty(), ErrorKind::Config, "zero convert-config", "no file is given",
          "give DeepSpeed's, accelerate's or --trainer");
  convert::Sources sources;
  for (const std::string& file : files) take_file(file, sources);
  if (!trainer.empty()) sources.trainer = read_source(trainer);
  convert::Converted converted = convert::convert(sources);
  check(converted);
  for (const std::string& note : converted.notes) std::cerr << "note: " << note << "\n";
  if (!converted.refused.empty()) {
    for (const std::string& line : converted.refused) std::cerr << "refused: " << line << "\n";
    fail(ErrorKind::Unsupported, "zero convert-config",
         std::to_string(converted.refused.size()) + " settings cannot be taken over, see above",
         "change or remove them in the file");
  }
  const std::string text = converted.config.dump(2) + "\n";
  if (out.empty()) {
    std::cout << text;
    return 0;
  }
  require(!fs::exists(out), ErrorKind::Config, out, "something stands there already",
          "name a file that does not exist");
  replace_file(out, text);
  std::cout << out << ": written; zero config check " << out << " shows what it comes to\n";
  return 0;
}

}  // namespace zero::tool
