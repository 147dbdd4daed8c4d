#include "train/metrics.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error_text.h"
#include "base/output_file.h"
#include "base/strict_json.h"
#include "checkpoint/file_io.h"
#include "zero/error.h"

namespace zero::training {
namespace {

using Json =
    nlohmann::ordered_json;  // keys in the order they are given; dump() writes NaN and infinity as null

int64_t step_of(const std::string& line, const std::string& place) {
  try {
    const nlohmann::json json = parse_json(line, place);
    return JsonPlace(json, place)["step"].count();
  } catch (const Error& error) {
    fail(error.kind(), "", text_without_kind(error), "move the file away or repair it");
  }
}

Json bytes_by_tier(const MemoryFigures& memory) {
  Json json = Json::object();
  for (const auto& [purpose, bytes] : memory.purposes)
    for (const Tier tier : kTiers)
      if (const int64_t here = bytes[static_cast<size_t>(tier)]; here != 0)
        json[std::string(to_string(tier))][purpose] = here;
  return json;
}

}  // namespace

std::string metrics_line(const StepReport& report) {
  Json json = {{"step", report.step},
               {"loss", report.loss},
               {"lr", report.lr},
               {"grad_norm", report.grad_norm},
               {"clip_coefficient", report.clip_coefficient},
               {"tokens", report.tokens},
               {"tokens_per_s", report.tokens_per_s},
               {"step_s", report.step_s},
               {"forward_s", report.forward_s},
               {"backward_s", report.backward_s},
               {"optimizer_s", report.optimizer_s},
               {"waited_s", report.waited_s},
               {"waited_share", report.step_s > 0 ? report.waited_s / report.step_s : 0},
               {"resident_bytes", report.resident_bytes},
               {"peak_resident_bytes", report.peak_resident_bytes},
               {"slab_bytes", report.slab_bytes},
               {"peak_slab_bytes", report.peak_slab_bytes},
               {"skipped", report.skipped}};
  if (report.loss_scale != 1) json["loss_scale"] = report.loss_scale;
  if (!report.overflow.empty()) json["overflow"] = report.overflow;
  json["memory"] = bytes_by_tier(report.memory);
  if (report.disk != DiskFigures{})
    json["disk"] = {{"read_bytes", report.disk.read_bytes},
                    {"written_bytes", report.disk.written_bytes},
                    {"busy_s", report.disk.busy_s}};
  if (report.device) {
    json["simulated_ms"] = report.device->simulated_ms;
    json["device_bytes"] = report.device->bytes_by_purpose;
    json["device_peak_bytes"] = report.device->peak_bytes;
    json["device_peak_bytes_by_purpose"] = report.device->peak_bytes_by_purpose;
  }
  return json.dump();
}

std::string metrics_line(int64_t step, const EvalResult& result) {
  const Json json = {{"step", step},
                     {"eval_loss", result.loss},
                     {"eval_perplexity", result.perplexity},
                     {"eval_tokens", result.tokens}};
  return json.dump();
}

void cut_metrics(const std::filesystem::path& path, int64_t step) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  const std::string text = checkpoint::read_text(path, std::numeric_limits<int64_t>::max());
  std::string kept;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      // What a killed process could not finish; anything else is not ours to drop.
      require(text[begin] == '{', ErrorKind::Corrupt, path.string(), "it is no file of metrics",
              "move the file away or repair it");
      break;
    }
    const std::string line = text.substr(begin, end - begin);
    if (step_of(line, path.string() + ":" + std::to_string(++number)) <= step) kept += line + "\n";
    begin = end + 1;
  }
  if (kept != text) replace_file(path, kept);
}

}  // namespace zero::training
