// A commented configuration to start from.

#include <algorithm>
#include <map>

#include "config/rows.h"
#include "zero/config_help.h"

namespace zero {

namespace {

using config::Json;
using config::Row;

// What a first run sets, by path: JSON.
const std::map<std::string, std::string, std::less<>>& first_values() {
  static const std::map<std::string, std::string, std::less<>> values{
      {"train_batch_size", "8"},
      {"gradient_clipping", "1.0"},
      {"bf16.enabled", "false"},
      {"zero_optimization.stage", "3"},
      {"optimizer.type", "\"AdamW\""},
      {"optimizer.params.lr", "0.001"},
      {"optimizer.params.weight_decay", "0.1"},
      {"scheduler.type", "\"Cosine\""},
      {"scheduler.params.warmup_steps", "20"},
      {"scheduler.params.min_lr_ratio", "0.1"},
      {"model.type", "\"gpt2\""},
      {"model.context_length", "128"},
      {"model.layers", "4"},
      {"model.width", "256"},
      {"model.heads", "4"},
      {"data.train", "\"data/train.tokens\""},
      {"data.eval", "\"data/eval.tokens\""},
      {"data.tokenizer", "\"data/tokenizer\""},
      {"checkpoint.interval_steps", "100"},
      {"logging.print_interval_steps", "10"},
      {"run.directory", "\"runs/first\""},
      {"run.steps", "300"},
      {"run.eval_interval_steps", "100"},
  };
  return values;
}

class Writer {
 public:
  explicit Writer(bool all) : all_(all) {}

  void section(const config::Rows& rows, const std::string& path, int depth) {
    for (const Row& row : rows) {
      if (!row.print || (row.applies && !row.applies(values_))) continue;
      const std::string full = config::join_path(path, row.name);
      if (!row.keys.empty()) {
        nested(row, full, depth);
      } else {
        leaf(row, full, depth);
      }
    }
  }

  std::string take() { return std::move(text_); }
  /// The values that decide which rows apply.
  Config& values() { return values_; }

 private:
  static bool has_first(const std::string& path) {
    const auto next = first_values().lower_bound(path + ".");
    return next != first_values().end() && next->first.starts_with(path + ".");
  }

  void nested(const Row& row, const std::string& path, int depth) {
    if (!all_ && !has_first(path)) return;
    const bool is_outer = !commented_ && !has_first(path);
    if (is_outer) commented_ = true;
    line(depth, "\"" + row.name + "\": {");
    section(row.keys, path, depth + 1);
    line(depth, "},");
    if (is_outer) commented_ = false;
  }

  void leaf(const Row& row, const std::string& path, int depth) {
    const auto given = first_values().find(path);
    const bool is_first = given != first_values().end();
    if (!all_ && !is_first) return;
    Config defaults;
    const std::string value = is_first ? given->second : row.print(defaults).dump();
    if (!row.doc.empty()) line(depth, "// " + row.doc, /*is_comment=*/true);
    const bool was = std::exchange(commented_, commented_ || !is_first);
    line(depth, "\"" + row.name + "\": " + value + ",");
    commented_ = was;
  }

  void line(int depth, const std::string& text, bool is_comment = false) {
    text_ += std::string(static_cast<size_t>(depth) * 2, ' ');
    text_ += (commented_ && !is_comment ? "// " : "") + text + "\n";
  }

  bool all_, commented_ = false;
  Config values_;
  std::string text_;
};

}  // namespace

std::string config_template(bool all) {
  // The rows of the types that are chosen.
  std::string chosen =
      "{\"run\": {\"steps\": 300}, \"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": {\"type\": "
      "\"Cosine\"}}";
  Writer writer(all);
  writer.values() = parse_config(chosen, "template");
  writer.section(config::all_rows(), "", 1);
  return "// A run of `zero train`. Every key: zero config --init --all, docs/configuration.md\n{\n" +
         writer.take() + "}\n";
}

}  // namespace zero
