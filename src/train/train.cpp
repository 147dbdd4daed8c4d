#include "zero/train.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "base/mix_bits.h"
#include "base/terminal.h"
#include "mesh/agree.h"
#include "plan/config_tiers.h"
#include "train/activation_memory.h"
#include "train/adapter_files.h"
#include "train/append_file.h"
#include "train/batches.h"
#include "train/breakdown.h"
#include "train/checkpoint_metadata.h"
#include "train/file_values.h"
#include "train/flops_profiler.h"
#include "train/memory_figures.h"
#include "train/metrics.h"
#include "train/monitors.h"
#include "train/older_checkpoint.h"
#include "train/process_memory.h"
#include "train/progress.h"
#include "train/run_directory.h"
#include "train/training_engine.h"
#include "train/training_model.h"
#include "zero/activations.h"
#include "zero/adaptive_placement.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/language_model.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The texts of a run.
struct RunData {
  TokenFile train;
  std::optional<TokenFile> eval;
};

RunData open_data(const Config& config) {
  const training::TokenNeeds needs = training::token_needs_of(config);
  RunData data{.train = training::open_tokens(config.data.train, config.place("data.train"), needs),
               .eval = {}};
  if (!config.data.eval.empty())
    data.eval = training::open_tokens(config.data.eval, config.place("data.eval"), needs);
  return data;
}

RunData open_data_together(const Config& config, const Mesh& mesh) {
  std::optional<RunData> data;
  detail::together(mesh, "data", [&] { data = open_data(config); });
  return *data;
}

// Nothing where the run goes on from a checkpoint that holds everything.
std::shared_ptr<const InitialValues> open_values_together(const Config& config, const Mesh& mesh,
                                                          const fs::path& checkpoint) {
  std::shared_ptr<const InitialValues> values;
  detail::together(mesh, "model", [&] {
    const bool needed =
        checkpoint.empty() || training::read_metadata(checkpoint).config.checkpoint.trainable_only;
    if (needed) values = training::file_values_of(config);
  });
  return values;
}

EngineOptions engine_options_with(const Config& config, const Mesh& mesh,
                                  std::shared_ptr<const InitialValues> values, const TensorParallel& parallel,
                                  std::string& placement, EngineOptions& before) {
  EngineOptions options = engine_options_of(config, mesh.group("dp").size());
  parallel.add_to(options);
  options.initial_values = std::move(values);
  before = options;
  placement = place_states(options, config, mesh);
  return options;
}

class Trainer {
 public:
  Trainer(const Config& config, const Mesh& mesh, const TrainOptions& options);
  TrainResult run();

 private:
  fs::path start();
  void resume();
  std::string choose_activation_memory();
  void introduce(const std::string& activation_memory);
  StepReport step();
  training::Batch micro_batch(int64_t micro);
  uint64_t seed_of_micro_batch(int64_t micro) const;
  void share(const at::Tensor& loss_sum, StepReport& report);
  void record(const StepReport& report);
  void evaluate_now();
  void save(bool evaluation_due, bool is_last);
  void finish_save(bool wait);
  void attempt(bool may_fail, const std::function<void()>& saving);
  void save_adapters();
  void finish_step();
  void keep_to_memory();
  bool pauses() const { return options_.pause_after > 0 && step_ >= options_.pause_after; }
  bool ends_early() const { return result_.signal != 0 || (pauses() && step_ < config_.run.steps); }
  bool every(int64_t interval) const { return interval > 0 && step_ % interval == 0; }

  const Config& config_;
  const TrainOptions& options_;
  Mesh mesh_;
  RunData data_;
  Sampler sampler_;
  training::RunPaths paths_;
  std::unique_ptr<training::RunLock> lock_;        // rank 0
  std::unique_ptr<training::AppendFile> metrics_;  // rank 0, where wanted
  std::unique_ptr<training::Monitors> monitors_;   // rank 0
  std::unique_ptr<training::Progress> progress_;   // shows something on rank 0
  training::Breakdown breakdown_;
  std::unique_ptr<training::ProfiledStep> profiled_;  // rank 0
  fs::path checkpoint_;                               // to begin with; empty: none
  std::shared_ptr<LanguageModel> model_;
  std::string placement_;         // what was chosen of where states are
  EngineOptions before_placing_;  // the engine's without that
  TensorParallel parallel_;
  training::TrainingEngine training_;
  std::optional<AdaptivePlacement> adapts_;  // where the placement is chosen, and memory measured
  int64_t device_peak_bytes_ = 0;            // of the last step, where that is known
  int64_t step_ = 0, position_ = 0;
  bool evaluation_due_ = false;  // of the resumed checkpoint
  bool save_requested_ = false;  // on some rank, after the last step
  std::string resumed_with_;     // what differs from the resumed run's configuration
  TrainResult result_;
};

Trainer::Trainer(const Config& config, const Mesh& mesh, const TrainOptions& options)
    : config_(config),
      options_(options),
      mesh_(mesh),
      data_(open_data_together(config, mesh)),
      sampler_(training::sampler_of(config, data_.train)),
      paths_(training::paths_of(config)),
      breakdown_(config.logging),
      checkpoint_(start()),
      model_(training::training_model(config)),
      parallel_(training::parallelized(*model_, config, mesh)),
      training_(config, model_,
                engine_options_with(config, mesh, open_values_together(config, mesh, checkpoint_), parallel_,
                                    placement_, before_placing_),
                mesh, [this](int64_t micro) { return seed_of_micro_batch(micro); }) {
  result_.loss = std::numeric_limits<double>::quiet_NaN();
  if (!checkpoint_.empty()) resume();
  detail::together(mesh_, "run directory", [&] {
    if (mesh_.rank() != 0) return;
    training::begin_run(config_, checkpoint_, step_, options_);
    profiled_ = std::make_unique<training::ProfiledStep>(config_, *model_, mesh_.size());
    monitors_ = std::make_unique<training::Monitors>(config_, position_);
    if (!paths_.metrics.empty()) metrics_ = std::make_unique<training::AppendFile>(paths_.metrics);
  });
  result_.first_step = result_.steps = step_;
  const std::string activation_memory = choose_activation_memory();
  keep_to_memory();
  progress_ = std::make_unique<training::Progress>(mesh_.rank() == 0 ? options_.progress : nullptr, step_,
                                                   config_.run.steps, config_.logging.print_interval_steps);
  if (options_.introduction) introduce(activation_memory);
}

// What is trained, where its states are and from where it goes on.
void Trainer::introduce(const std::string& activation_memory) {
  const int columns = options_.progress != nullptr ? line_columns(options_.progress) : 0;
  std::string rules = to_text(training_.engine().parameter_summary(), columns);
  rules.pop_back();  // its last newline
  if (config_.parallel.pipeline > 1) progress_->note("parameters of this rank's stages:");
  progress_->note(rules);
  if (config_.logging.dump_state) progress_->note(to_json(config_));
  if (!placement_.empty()) progress_->note(placement_);
  if (const DiskStats disk = training_.engine().stats().disk; !disk.transport.empty())
    progress_->note("states on disk in " + config_.offload.how.path + ", by " + disk.transport);
  if (!activation_memory.empty()) progress_->note(activation_memory);
  if (profiled_)
    if (const std::string reason = profiled_->never_comes(step_); !reason.empty()) progress_->note(reason);
  if (!checkpoint_.empty()) progress_->note("going on from " + checkpoint_.string());
  if (!resumed_with_.empty()) progress_->note("with other settings than before: " + resumed_with_);
}

// Rank 0 looks, so that all go on from the same checkpoint.
fs::path Trainer::start() {
  fs::path checkpoint;
  detail::together(mesh_, "run directory", [&] {
    if (mesh_.rank() != 0) return;
    lock_ = std::make_unique<training::RunLock>(paths_.run);
    checkpoint = training::find_start(config_, options_);
  });
  return detail::text_of_rank(mesh_, 0, checkpoint.string(), "resumed checkpoint");
}

// Where recomputation is automatic and nobody said in which memory. One line that says it, or nothing.
std::string Trainer::choose_activation_memory() {
  RecomputePolicy policy = config_.recompute;
  if (policy.every != kRecomputeAuto || policy.memory_bytes >= 0) return "";
  const Dtype dtype = config_.precision.param_dtype.value_or(Dtype::f32);
  const ActivationBytes activations = activation_bytes(shape_of(config_), config_.train_micro_batch_size,
                                                       config_.data.sequence_length, dtype, policy);
  const auto memory = training::activation_memory(mesh_, training_.engine().plan(), activations);
  policy.memory_bytes = memory.bytes;
  model_->set_recompute(policy);
  return memory.reason;
}

void Trainer::resume() {
  training::CheckpointMetadata metadata;
  training::naming_older(checkpoint_, [&] {
    detail::together(mesh_, "resumed checkpoint", [&] {
      metadata = training::read_metadata(checkpoint_);
      data_.train.require_vocabulary(metadata.vocabulary);
    });
    training_.engine().load(checkpoint_);
  });
  step_ = metadata.step;
  position_ = metadata.position;
  result_.tokens = metadata.tokens;
  evaluation_due_ = metadata.evaluation_due;
  for (const std::string& change : training::differences(metadata.config, config_))
    resumed_with_ += (resumed_with_.empty() ? "" : "; ") + change;
}

// Follows from where the run is, whatever ranks and stages it has: ranks along "dp" and micro-batches drop
// other activations, and neighbouring run seeds share none.
uint64_t Trainer::seed_of_micro_batch(int64_t micro) const {
  const Group dp = mesh_.group("dp");
  const uint64_t numbers[] = {static_cast<uint64_t>(config_.run.seed), static_cast<uint64_t>(position_),
                              static_cast<uint64_t>(micro * dp.size() + dp.rank())};
  uint64_t x = 0;
  for (const uint64_t number : numbers) x = mix_bits((x + number + 1) * kGoldenGamma);
  return x;
}

training::Batch Trainer::micro_batch(int64_t micro) {
  const Group dp = mesh_.group("dp");
  const auto samples = sampler_.batch(position_, {.rank = dp.rank(),
                                                  .world = dp.size(),
                                                  .micro = micro,
                                                  .micro_batches = config_.gradient_accumulation_steps,
                                                  .micro_batch_size = config_.train_micro_batch_size});
  std::vector<int64_t> first_tokens;
  first_tokens.reserve(samples.size());
  for (const int64_t sample : samples) first_tokens.push_back(sampler_.first_token(sample));
  return training::read_batch(data_.train, first_tokens, config_.data.sequence_length, mesh_.device());
}

// The mean loss over data-parallel ranks and micro-batches, and what any rank was told to stop by or to save.
void Trainer::share(const at::Tensor& loss_sum, StepReport& report) {
  const int told = options_.stop_signal ? options_.stop_signal() : 0;
  const Group dp = mesh_.group("dp");
  const int64_t count = config_.gradient_accumulation_steps * dp.size();
  at::Tensor sums = at::zeros({1}, loss_sum.options());
  sums[0] = loss_sum;
  at::Tensor signal = at::zeros({2}, loss_sum.options());
  signal[0] = told;
  signal[1] = options_.save_requested && options_.save_requested() ? 1 : 0;
  Work loss_work = dp.all_reduce(sums, Group::Reduce::Sum, "loss");
  Work signal_work = mesh_.world().all_reduce(signal, Group::Reduce::Max, "stop signal");
  loss_work.wait();
  signal_work.wait();
  report.loss = sums.item<double>() / static_cast<double>(count);
  result_.signal = static_cast<int>(signal[0].item<double>());
  save_requested_ = signal[1].item<double>() != 0;
}

StepReport Trainer::step() {
  if (options_.device_figures) options_.device_figures();
  const auto begin = Clock::now();
  const double waited_s = mesh_.waited_s();
  const DiskFigures disk = training::disk_figures(training_.engine().stats(), model_->block_chain());
  if (profiled_) profiled_->begin(step_ + 1);
  const at::Tensor loss_sum = training_.run([this](int64_t micro) { return micro_batch(micro); });
  if (profiled_) profiled_->end();
  const auto stepping = Clock::now();
  const StepResult stepped = training_.engine().step();
  const double optimizer_s = seconds_since(stepping);
  StepReport report;
  share(loss_sum, report);

  const int64_t tokens = config_.train_batch_size * config_.data.sequence_length;
  position_ += config_.train_batch_size;
  result_.tokens += tokens;
  const training::ProcessMemory memory = training::process_memory();
  const EngineStats stats = training_.engine().stats();
  report.step = ++step_;
  report.lr = stepped.lr;
  const ClipResult clip = stepped.clip();
  report.grad_norm = clip.norm_before;
  report.clip_coefficient = clip.coefficient;
  report.tokens = result_.tokens;
  report.step_s = seconds_since(begin);
  report.tokens_per_s = static_cast<double>(tokens) / std::max(report.step_s, 1e-9);
  report.forward_s = training_.times().forward_s;
  report.backward_s = training_.times().backward_s;
  report.optimizer_s = optimizer_s;
  report.waited_s = mesh_.waited_s() - waited_s;
  report.resident_bytes = memory.resident_bytes;
  report.peak_resident_bytes = memory.peak_resident_bytes;
  report.slab_bytes = stats.resident_bytes;
  report.peak_slab_bytes = stats.peak_resident_bytes;
  report.memory = training::memory_figures(training_.engine(), stats, model_->block_chain());
  report.disk = training::difference(training::disk_figures(stats, model_->block_chain()), disk);
  if (mesh_.trace() != nullptr)
    training::add_counters(*mesh_.trace(), report.memory, report.disk, report.step_s);
  report.skipped = stepped.skipped();
  report.overflow = stepped.overflow();
  report.loss_scale = stepped.loss_scale;
  if (options_.device_figures) {
    report.device = options_.device_figures();
    device_peak_bytes_ = report.device->peak_bytes;
  }
  return report;
}

void Trainer::record(const StepReport& report) {
  result_.steps = report.step;
  result_.loss = report.loss;
  if (metrics_) metrics_->append(training::metrics_line(report) + "\n");
  if (monitors_) monitors_->step(report, position_);
  progress_->step(report);
  if (profiled_)
    if (const std::string flops = profiled_->text(report); !flops.empty()) progress_->note(flops);
  breakdown_.add(report);
  if (every(config_.logging.print_interval_steps) || report.step == config_.run.steps)
    if (const std::string tables = breakdown_.tables(report); !tables.empty()) progress_->note(tables);
  if (options_.on_step) options_.on_step(report);
}

void Trainer::evaluate_now() {
  model_->eval();
  const auto loss = [&](const at::Tensor& tokens, const at::Tensor& targets) {
    return training_.loss(tokens, targets);
  };
  const EvalResult found = evaluate(loss, *data_.eval,
                                    {.sequence_length = config_.data.sequence_length,
                                     .batch_size = config_.train_micro_batch_size,
                                     .batches = config_.run.eval_batches},
                                    mesh_);
  model_->train();
  result_.evaluation = found;
  if (metrics_) metrics_->append(training::metrics_line(step_, found) + "\n");
  if (monitors_) monitors_->evaluation(found, position_);
  progress_->note("step " + std::to_string(step_) + "  evaluation loss " + std::to_string(found.loss) +
                  "  perplexity " + std::to_string(found.perplexity));
}

// Runs part of a save; if it may fail, training goes on after an error of files. All ranks see the same one.
void Trainer::attempt(bool may_fail, const std::function<void()>& saving) {
  try {
    saving();
  } catch (const Error& error) {
    const bool goes_on = may_fail && config_.checkpoint.on_failure == CheckpointConfig::OnFailure::Continue;
    if (!goes_on || error.kind() != ErrorKind::Io) throw;
    ++result_.failed_saves;
    progress_->note(std::string("save failed, training goes on: ") + error.what());
  }
}

// Ends the save that is under way in the background, if it is there yet.
void Trainer::finish_save(bool wait) {
  if (!training_.engine().is_saving()) return;
  attempt(/*may_fail=*/true, [&] {
    if (const auto saved = training_.engine().finish_save(wait)) {
      result_.checkpoint = *saved;
      progress_->note("saved " + saved->string());
    }
  });
}

// The last save of a run waits for its end: there is nothing to do meanwhile, and its failure is the run's.
void Trainer::save(bool evaluation_due, bool is_last) {
  finish_save(/*wait=*/true);
  const training::CheckpointMetadata metadata{.step = step_,
                                              .position = position_,
                                              .tokens = result_.tokens,
                                              .evaluation_due = evaluation_due,
                                              .vocabulary = data_.train.vocabulary(),
                                              .config = config_};
  const auto most = static_cast<int64_t>(std::numeric_limits<int>::max());
  const int keep_last = static_cast<int>(std::min(config_.checkpoint.keep_last, most));
  const std::string text = training::to_text(metadata);
  const std::string frozen_from =
      config_.checkpoint.trainable_only ? training::origin_of_frozen(config_) : "";
  attempt(!is_last, [&] {
    if (config_.lora.rank > 0) save_adapters();
    if (config_.checkpoint.async && !is_last)
      return training_.engine().begin_save(paths_.checkpoints, text, keep_last, frozen_from);
    result_.checkpoint = training_.engine().save(paths_.checkpoints, text, keep_last, frozen_from);
    progress_->note("saved " + result_.checkpoint.string());
  });
}

void Trainer::save_adapters() {
  std::map<std::string, std::vector<float>> values;
  const std::vector<std::string> held = training_.engine().parameter_names();
  for (const std::string& name : trained_names_of(config_)) {
    if (std::find(held.begin(), held.end(), name) == held.end()) continue;  // another stage's
    const at::Tensor full = parallel_.whole_of(name, training_.engine().full_parameter(name)).contiguous();
    const float* first = full.const_data_ptr<float>();
    values.emplace(name, std::vector<float>(first, first + full.numel()));
  }
  values = training::joined_along_pipeline(mesh_, std::move(values));
  detail::together(mesh_, "adapters", [&] {
    if (mesh_.rank() == 0)
      training::write_adapters(paths_.run / training::kAdapterDirectory, config_, values);
  });
}

// What is due after a step. Told to stop, it saves first and leaves the evaluation to the resumed run.
void Trainer::finish_step() {
  finish_save(/*wait=*/false);
  const bool last = step_ == config_.run.steps, stop = ends_early();
  const bool evaluates = data_.eval && (last || every(config_.run.eval_interval_steps));
  if (evaluates && !stop) evaluate_now();
  const CheckpointConfig& c = config_.checkpoint;
  const bool wanted = c.interval_steps > 0 || c.save_at_end;
  if (every(c.interval_steps) || save_requested_ || (last && c.save_at_end) || (stop && wanted))
    save(evaluates && stop, last || stop);
}

// The placement was chosen for what the plan says that activations take; steps are measured.
void Trainer::keep_to_memory() {
  const bool on_cpu = mesh_.device().is_cpu();
  const bool is_measured = on_cpu ? cpu_allocator_stats().peak_bytes > 0 : bool(options_.device_figures);
  if (placement_.empty() || !is_measured) return;
  AdaptivePlacement::DevicePeak device_peak;
  if (!on_cpu) device_peak = [this] { return device_peak_bytes_; };
  adapts_.emplace(training_.engine(), before_placing_, config_tier_request(config_, before_placing_, {}),
                  paths_.run / "moved-states", device_peak);
}

TrainResult Trainer::run() {
  model_->train();
  if (evaluation_due_ && data_.eval) evaluate_now();
  while (step_ < config_.run.steps && !ends_early()) {
    record(step());
    if (adapts_)
      if (const std::string moved = adapts_->after_step(); !moved.empty()) progress_->note(moved);
    if (model_->block_chain().must_choose()) progress_->note(model_->block_chain().choose(mesh_));
    finish_step();
  }
  finish_save(/*wait=*/true);
  if (monitors_) monitors_->finish();
  if (config_.logging.comms_logger)
    progress_->note(training::traffic_table(mesh_, step_ - result_.first_step));
  return result_;
}

}  // namespace

void check_run(const Config& config, int ranks, const TrainOptions& options) {
  trained_names_of(config);
  optimizer_of(config);
  engine_options_of(config, data_ranks(config, ranks));
  check_offload(config, ranks);
  const RunData data = open_data(config);
  const fs::path checkpoint = training::find_start(config, options);
  if (checkpoint.empty()) {
    training::file_values_of(config);
    return;
  }
  training::naming_older(
      checkpoint, [&] { data.train.require_vocabulary(training::read_metadata(checkpoint).vocabulary); });
}

TrainResult train(const Config& config, const Mesh& mesh, const TrainOptions& options) {
  try {
    detail::require_same(mesh, to_json(config), "configuration");
    detail::together(mesh, "configuration", [&] { trained_names_of(config); });
    return Trainer(config, mesh, options).run();
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
}

}  // namespace zero
