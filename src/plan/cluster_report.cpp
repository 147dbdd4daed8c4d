// Predictions on a cluster as text and as JSON.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "plan/cluster_plan.h"
#include "plan/cluster_search.h"

namespace zero {
namespace {

using ClusterJson = nlohmann::ordered_json;

template <class... Values>
std::string printed(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string on_cluster(const Cluster& cluster) {
  return std::to_string(cluster.devices()) + (cluster.devices() == 1 ? " device" : " devices") + " on " +
         std::to_string(cluster.hosts) + (cluster.hosts == 1 ? " host" : " hosts") + " (" + cluster.name +
         ")";
}

std::string schedule_of(const ClusterPrediction& found) {
  if (found.layout.pp == 1) return "-";
  std::string name(pipeline::to_string(found.layout.schedule));
  if (found.layout.schedule == pipeline::Kind::Interleaved)
    name = "interl. x" + std::to_string(found.layout.chunks);
  return name;
}

struct TimePart {
  const char* name;
  double seconds;
};
std::vector<TimePart> parts_of(const StepTime& time) {
  return {{"compute", time.compute_s},      {"tp", time.tensor_s},       {"pipeline bubble", time.bubble_s},
          {"pp messages", time.pipeline_s}, {"dp exposed", time.data_s}, {"optimizer", time.optimizer_s}};
}

// What takes a percent of a step at least.
std::string reasons_of(const ClusterPrediction& found) {
  std::string text;
  for (const TimePart& part : parts_of(found.time)) {
    const double share = 100 * part.seconds / found.time.step_s();
    if (share >= 1) text += (text.empty() ? "" : ", ") + printed("%s %.0f%%", part.name, share);
  }
  return text + "; " + human_bytes(found.peak_bytes) + " of " + human_bytes(found.memory_bytes) +
         " (states " + human_bytes(found.state_bytes) + ", activations " +
         human_bytes(found.activation_bytes) + ")";
}

ClusterJson settings_json(const ClusterPrediction& found) {
  const Config& config = found.config;
  ClusterJson parallel{{"tensor", config.parallel.tensor},
                       {"sequence", config.parallel.sequence},
                       {"pipeline", config.parallel.pipeline}};
  if (config.parallel.pipeline > 1) parallel["schedule"] = config.parallel.schedule;
  if (config.parallel.pipeline > 1 && found.layout.schedule == pipeline::Kind::Interleaved)
    parallel["chunks"] = config.parallel.chunks;
  return {{"train_batch_size", config.train_batch_size},
          {"train_micro_batch_size_per_gpu", config.train_micro_batch_size},
          {"gradient_accumulation_steps", config.gradient_accumulation_steps},
          {"zero_optimization", {{"stage", config.zero.stage}}},
          {"activation_checkpointing", {{"recompute", found.layout.recompute ? "all" : "none"}}},
          {"parallel", parallel}};
}

ClusterJson prediction_json(const ClusterPrediction& found) {
  const StepTime& time = found.time;
  return {{"data_ranks", found.layout.dp},
          {"tensor_ranks", found.layout.tp},
          {"pipeline_ranks", found.layout.pp},
          {"settings", settings_json(found)},
          {"peak_bytes", found.peak_bytes},
          {"peak_pipeline_rank", found.peak_rank},
          {"state_bytes", found.state_bytes},
          {"activation_bytes", found.activation_bytes},
          {"memory_bytes", found.memory_bytes},
          {"fits", found.fits()},
          {"step_s", time.step_s()},
          {"compute_s", time.compute_s},
          {"tp_s", time.tensor_s},
          {"bubble_s", time.bubble_s},
          {"pp_messages_s", time.pipeline_s},
          {"dp_exposed_s", time.data_s},
          {"dp_s", time.data_all_s},
          {"optimizer_s", time.optimizer_s},
          {"bubble", time.bubble()},
          {"tokens_per_s", time.tokens_per_s},
          {"flops_per_s_of_device", time.flops}};
}

}  // namespace

std::string keys_of(const ClusterPrediction& found) { return settings_json(found).dump(2) + "\n"; }

std::string to_text(const ClusterPrediction& found, const Cluster& cluster) {
  const StepLayout& layout = found.layout;
  const StepTime& time = found.time;
  const ModelConfig& model = found.config.model;
  std::string text = model.type + ", " + std::to_string(model.layers) + " layers, width " +
                     std::to_string(model.width) + " on " + on_cluster(cluster) + "\n";
  text +=
      printed("%d along dp, %d along tp, %d along pp, ZeRO stage %d, %lld micro-batches of %lld", layout.dp,
              layout.tp, layout.pp, found.config.zero.stage, static_cast<long long>(layout.micro_batches),
              static_cast<long long>(found.config.train_micro_batch_size));
  if (layout.pp > 1) text += ", " + schedule_of(found);
  text += std::string(layout.recompute ? ", recomputed" : "") + "\n\n";
  text += printed("%-24s %12.4f s\n", "A step", time.step_s());
  for (const TimePart& part : parts_of(time))
    text +=
        printed("  %-22s %12.4f s %6.1f%%\n", part.name, part.seconds, 100 * part.seconds / time.step_s());
  text += printed("%-24s %12.4f s\n", "dp, hidden or not", time.data_all_s);
  text += printed("%-24s %12.0f\n", "Tokens a second", time.tokens_per_s);
  text += printed("%-24s %12.1f\n\n", "TFLOP/s a device", time.flops / 1e12);
  text += printed("%-24s %12s of %s, %s", "Memory at the peak", human_bytes(found.peak_bytes).c_str(),
                  human_bytes(found.memory_bytes).c_str(), found.fits() ? "fits" : "does not fit");
  if (layout.pp > 1) text += printed(" (rank %d of the pipeline)", found.peak_rank);
  text += printed("\n  %-22s %12s\n  %-22s %12s\n", "states", human_bytes(found.state_bytes).c_str(),
                  "activations and loss", human_bytes(found.activation_bytes).c_str());
  return text;
}

std::string to_json(const ClusterPrediction& found, const Cluster& cluster) {
  ClusterJson json = prediction_json(found);
  json["cluster"] = cluster.name;
  json["devices"] = cluster.devices();
  return json.dump(2) + "\n";
}

std::string to_text(const ClusterSearch& search, const Cluster& cluster) {
  std::string text = std::to_string(search.considered) + " settings for " + on_cluster(cluster) + "; " +
                     std::to_string(search.too_large) + " do not fit its memory\n";
  for (const std::string& reason : search.refused) text += "Left out: " + reason + "\n";
  if (search.best.empty()) return text + "\nNothing fits. More devices, or states on a host or disk, may.\n";
  text += printed("\n%3s %5s %4s %4s %6s %-11s %6s %6s %-9s %12s %8s %7s\n", "", "dp", "tp", "pp", "stage",
                  "schedule", "micro", "times", "recompute", "tokens/s", "TFLOP/s", "bubble");
  for (size_t i = 0; i < search.best.size(); ++i) {
    const ClusterPrediction& found = search.best[i];
    text +=
        printed("%3zu %5d %4d %4d %6d %-11s %6lld %6lld %-9s %12.0f %8.1f %6.1f%%\n", i + 1, found.layout.dp,
                found.layout.tp, found.layout.pp, found.config.zero.stage, schedule_of(found).c_str(),
                static_cast<long long>(found.config.train_micro_batch_size),
                static_cast<long long>(found.layout.micro_batches), found.layout.recompute ? "all" : "none",
                found.time.tokens_per_s, found.time.flops / 1e12, 100 * found.time.bubble());
    text += "    " + reasons_of(found) + "\n";
  }
  return text + "\nThe first one, as keys of the configuration:\n" + keys_of(search.best.front());
}

std::string to_json(const ClusterSearch& search, const Cluster& cluster) {
  ClusterJson best = ClusterJson::array();
  for (const ClusterPrediction& found : search.best) best.push_back(prediction_json(found));
  const ClusterJson json{{"cluster", cluster.name},         {"devices", cluster.devices()},
                         {"considered", search.considered}, {"too_large", search.too_large},
                         {"refused", search.refused},       {"best", best}};
  return json.dump(2) + "\n";
}

}  // namespace zero
