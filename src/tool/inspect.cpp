// zero inspect CHECKPOINT
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/glob.h"
#include "base/shape_text.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"
#include "verbs.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

struct InspectArguments {
  std::string path, pattern;
  bool json = false, summary = false;
};

/// Tensors that serve one purpose: "model", "optimizer/exp_avg", "buffer", "rank".
struct Total {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

int64_t numel_of(const StoredTensor& tensor) { return Box::whole(tensor.shape).numel(); }

int64_t bytes_of(const StoredTensor& tensor) { return numel_of(tensor) * itemsize(tensor.dtype); }

std::string purpose_of(const std::string& name) {
  const size_t first = name.find('/');
  if (first == name.npos) return name;
  return name.substr(0, name.starts_with(checkpoint::kOptimizerPrefix) ? name.find('/', first + 1) : first);
}

// A name from a file, without what would move a terminal's cursor.
std::string shown(const std::string& name) {
  const std::string quoted = checkpoint::in_quotes(name);
  return quoted.substr(1, quoted.size() - 2);
}

std::string files_text(const StoredTensor& tensor) {
  std::vector<std::string> names;
  for (const StoredPiece& piece : tensor.pieces)
    if (names.empty() || names.back() != piece.file) names.push_back(piece.file);
  if (names.empty()) return "-";
  return shown(names.front()) + (names.size() > 1 ? " ... " + shown(names.back()) : "");
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

/// Columns as wide as what is in them; those named are flush right, and the last is not padded.
void print_table(const std::vector<Row>& rows, const std::vector<bool>& right) {
  std::vector<size_t> widths(right.size(), 0);
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (right[i] ? pad + row[i] : row[i] + pad);
    }
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

// A member of a member of the metadata, as text; "" where there is none.
std::string about(const Json& metadata, const std::string& pointer) {
  const auto path = Json::json_pointer(pointer);
  if (!metadata.contains(path)) return "";
  const Json& value = metadata.at(path);
  if (value.is_structured()) return "";
  return shown(value.is_string() ? value.get<std::string>() : value.dump());
}

Row line_of(const std::string& label, const std::vector<std::pair<std::string, std::string>>& values) {
  std::string text;
  for (const auto& [name, value] : values)
    if (!value.empty()) text += (text.empty() ? "" : ", ") + (name.empty() ? "" : name + " ") + value;
  return text.empty() ? Row{} : Row{label, text};
}

std::vector<Row> head(const std::filesystem::path& checkpoint, const CheckpointReader& reader,
                      const Json& metadata) {
  auto of = [&](const char* pointer) { return about(metadata, pointer); };
  const std::string model = "/user/config/model/";
  auto of_model = [&](const char* key) { return about(metadata, model + key); };
  std::vector<Row> rows = {
      {"checkpoint", checkpoint.string()},
      {"step", std::to_string(reader.step())},
      line_of("saved by", {{"ranks", of("/engine/ranks")}, {"stage", of("/engine/stage")}}),
      line_of("optimizer", {{"", of("/user/config/optimizer/type")},
                            {"steps", of("/engine/steps")},
                            {"skipped", of("/engine/skipped_steps")}}),
      line_of("model", {{"", of_model("type")},
                        {"layers", of_model("layers")},
                        {"width", of_model("width")},
                        {"heads", of_model("heads")},
                        {"vocabulary", of_model("vocab_size")},
                        {"context", of_model("context_length")}}),
      line_of(
          "run",
          {{"step", of("/user/step")}, {"samples", of("/user/position")}, {"tokens", of("/user/tokens")}})};
  for (const auto& [name, bytes] : reader.files())
    rows.push_back({"file", shown(name) + "  " + human_bytes(bytes)});
  std::erase_if(rows, [](const Row& row) { return row.empty(); });
  return rows;
}

std::map<std::string, Total> totals_of(const CheckpointReader& reader) {
  std::map<std::string, Total> totals;
  for (const auto& [name, tensor] : reader.tensors()) {
    Total& total = totals[purpose_of(name)];
    ++total.tensors;
    total.elements += numel_of(tensor);
    total.bytes += bytes_of(tensor);
  }
  return totals;
}

void print_totals(const std::map<std::string, Total>& totals) {
  std::vector<Row> rows = {{"", "tensors", "elements", "size"}};
  Total all;
  auto add = [&](const std::string& name, const Total& total) {
    rows.push_back({name, grouped(total.tensors), grouped(total.elements), human_bytes(total.bytes)});
  };
  for (const auto& [name, total] : totals) {
    add(shown(name), total);
    all.tensors += total.tensors;
    all.elements += total.elements;
    all.bytes += total.bytes;
  }
  add("together", all);
  print_table(rows, {false, true, true, true});
}

void print_tensors(const CheckpointReader& reader, const std::string& pattern) {
  std::vector<Row> rows = {{"tensor", "type", "shape", "pieces", "size", "in"}};
  for (const auto& [name, tensor] : reader.tensors())
    if (pattern.empty() || glob_matches(pattern, name))
      rows.push_back({shown(name), std::string(safetensors_name(tensor.dtype)), shape_text(tensor.shape),
                      std::to_string(tensor.pieces.size()), human_bytes(bytes_of(tensor)),
                      files_text(tensor)});
  require(rows.size() > 1 || pattern.empty(), ErrorKind::Config, "--tensors",
          "no tensor's name matches " + checkpoint::in_quotes(pattern), "leave it out to see all names");
  print_table(rows, {false, false, false, true, true, false});
}

Json to_json(const std::filesystem::path& checkpoint, const CheckpointReader& reader, const Json& metadata,
             const std::string& pattern) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : reader.tensors()) {
    if (!pattern.empty() && !glob_matches(pattern, name)) continue;
    Json pieces = Json::array();
    for (const StoredPiece& piece : tensor.pieces)
      pieces.push_back({{"file", piece.file},
                        {"box", {{"begin", piece.range.box.begin}, {"size", piece.range.box.size}}},
                        {"begin", piece.range.begin},
                        {"numel", piece.range.numel},
                        {"offset_bytes", piece.offset_bytes}});
    tensors[name] = {{"dtype", std::string(safetensors_name(tensor.dtype))},
                     {"shape", tensor.shape},
                     {"bytes", bytes_of(tensor)},
                     {"pieces", std::move(pieces)}};
  }
  Json totals = Json::object();
  for (const auto& [name, total] : totals_of(reader))
    totals[name] = {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
  return {{"checkpoint", checkpoint.string()},
          {"step", reader.step()},
          {"ranks", reader.files().size()},
          {"files", reader.files()},
          {"totals", totals},
          {"metadata", metadata},
          {"tensors", tensors}};
}

}  // namespace

int run_inspect(int argc, char** argv) {
  InspectArguments arguments;
  CLI::App app(
      "zero inspect CHECKPOINT\n"
      "What is in a checkpoint: where the run stood, the files, every tensor. Reads no values.");
  app.add_option("checkpoint", arguments.path, "a checkpoint, or a run directory: its newest")->required();
  app.add_option("--tensors", arguments.pattern, "only tensors whose name matches: model/h.0.*");
  app.add_flag("--summary", arguments.summary, "leave the list of tensors out");
  app.add_flag("--json", arguments.json, "everything as JSON");
  if (!parse(app, argc, argv)) return 0;

  const std::filesystem::path checkpoint = find_checkpoint(arguments.path);
  const CheckpointReader reader(checkpoint);
  const Json metadata = Json::parse(reader.metadata());
  if (arguments.json) {
    std::cout << to_json(checkpoint, reader, metadata, arguments.pattern).dump(2) << "\n";
    return 0;
  }
  print_table(head(checkpoint, reader, metadata), {false, false});
  std::cout << "\n";
  print_totals(totals_of(reader));
  if (arguments.summary) return 0;
  std::cout << "\n";
  print_tensors(reader, arguments.pattern);
  return 0;
}

}  // namespace zero::tool
