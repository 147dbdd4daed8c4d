#pragma once
// The optimizers whose update is ours, as a table: one struct and one row each. Configuration, checks, plan
// and documentation follow from the rows; the arithmetic is in src/optim/kernels/rules.h. No tensors here.

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace zero {

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), torch::optim::AdamW's
/// arithmetic.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool bias_correction = true;
  bool states_8bit = false;  // moments in 8 bits and a scale for 256 of them (optim/eight_bit.h)
  bool operator==(const AdamW&) const = default;
};
/// Adam with L2 decay added to the gradient (Kingma and Ba, arXiv 1412.6980).
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool states_8bit = false;  // as AdamW's
  bool operator==(const Adam&) const = default;
};
/// Gradient descent with torch::optim::SGD's momentum.
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool operator==(const SGD&) const = default;
};
/// Lion (Chen et al., arXiv 2302.06675).
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  bool operator==(const Lion&) const = default;
};
/// LAMB (You et al., arXiv 1904.00962, algorithm 2). Of a whole parameter w, however it is cut:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g
///   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
///   w -= lr ratio u,  ratio = |w| / |u| within [min_coeff, max_coeff]; 1 where |w| or |u| is 0
/// The moments are corrected before the norm is taken, as in the paper and apex's FusedLAMB; DeepSpeed's
/// FusedLamb, whose bounds of the ratio these are, corrects the step's size instead. apex divides gradients
/// by max(1, their norm) before: EngineOptions::gradient_clipping = 1 does that here. Named variants are in
/// named_rules().
/// The norms have the same bits for any number of ranks (kernels/exact_sum.h).
struct LAMB {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool bias_correction = true;
  double max_coeff = std::numeric_limits<double>::infinity();
  double min_coeff = 0;
  bool undecayed_ratio = true;  // off, as apex without use_nvlamb: the ratio is 1 where weight_decay is 0
  bool operator==(const LAMB&) const = default;
};
/// LARS (You et al., arXiv 1708.03888). Of a whole parameter w of two dimensions or more, however it is cut:
///   g = (g + weight_decay w) ratio,  ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps), 1 where
///   |w| or the divisor is 0;  buffer = momentum buffer + g;  w -= lr (nesterov: g + momentum buffer; else:
///   buffer)
/// Scalars and vectors (biases, norms' weights) have ratio 1 and no decay, as in the paper's runs. Norms as
/// LAMB's.
struct LARS {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double eps = 0;
  bool nesterov = false;
  bool operator==(const LARS&) const = default;
};
/// Adagrad (Duchi et al., 2011), torch::optim::Adagrad's arithmetic.
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double eps = 1e-10;
  double initial_accumulator_value = 0;  // of squares, before the first step
  bool operator==(const Adagrad&) const = default;
};

/// Muon (Jordan et al., 2024; Liu et al., arXiv 2502.16982), torch.optim.Muon's arithmetic, of matrices:
///   buffer += (1 - momentum) (g - buffer);  d = nesterov: g + momentum (buffer - g); else: buffer
///   w = w (1 - lr weight_decay) - lr factor orthogonalised(d)   (optim/muon.h)
/// Parameters of other than two dimensions, and those of groups that say `elementwise` (embeddings and heads,
/// usually), are AdamW's with these betas and lr adamw_lr_scale. Whole matrices are gathered once a step, and
/// each is made orthogonal by one rank, the least busy one: the same bits for any number of ranks. Ranks on
/// CPU only. State "exp_avg" is the buffer; "exp_avg_sq" stays 0 for matrices.
struct Muon {
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  bool match_rms_adamw = false;  // the factor: Moonlight's instead of Keller Jordan's
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double adamw_lr_scale = 1;
  static constexpr bool bias_correction = true;
  bool operator==(const Muon&) const = default;
};

/// Adafactor (Shazeer and Stern, arXiv 1804.04235), transformers.Adafactor's arithmetic. Of a parameter w in
/// step t, with RMS the root of the mean of squares:
///   rate = (relative_step ? min(lr, 1 / sqrt(t), warmup_init ? 1e-6 t : no bound) : lr)
///          (scale_parameter ? max(min_rms, RMS(w)) : 1)
///   beta2 = 1 - t^-decay_rate;  v = beta2 v + (1 - beta2) (g g + eps)
///   u = g / sqrt(v);  u = rate u / max(1, RMS(u) / clip_threshold)
///   beta1 > 0: m = beta1 m + (1 - beta1) u, and u = m;  w -= weight_decay rate w + u
/// Of the last two dimensions only means over rows and columns are kept: v = row column / mean(row). Scalars
/// and vectors have v of every element. As torch.optim.Adafactor (`torch_form`): v has no eps added but is at
/// least eps^2, as mean(row) is eps; and w decays by weight_decay lr. Each is equal to recorded vectors of
/// those packages. Sums over rows, columns and whole parameters are exact, however they are cut, so every
/// number of ranks gives the same bits; three small all-reduces a step, and no rank gathers a gradient. Every
/// rank keeps all means. Where ranks along another axis than "dp" hold parts of a parameter, all of it
/// between them, they add up too: the bits are those of one process. Ranks on CPU only. States: "exp_avg"
/// (beta1 > 0), and of a parameter "exp_avg_sq_row" and "exp_avg_sq_col", or "exp_avg_sq", of the whole
/// parameter.
struct Adafactor {
  double lr = 1e-2;
  double weight_decay = 0;
  double beta1 = 0;  // 0: no first moment
  double eps = 1e-30;
  double min_rms = 1e-3;
  double clip_threshold = 1;
  double decay_rate = 0.8;
  bool scale_parameter = true, relative_step = true, warmup_init = false;
  bool torch_form = false;
  bool operator==(const Adafactor&) const = default;
};

using OptimizerRule = std::variant<AdamW, Adam, SGD, Lion, LAMB, LARS, Adagrad, Muon, Adafactor>;

/// What values a number may take.
enum class NumberRange {
  NonNegative,  // finite, >= 0
  Positive,     // > 0; infinity too
  BelowOne,     // [0, 1)
  Unit,         // [0, 1]
};

/// One hyperparameter of a rule: a number, a pair of numbers or a switch.
struct Hyperparameter {
  enum class Kind { Number, Pair, Switch };
  std::string_view key;  // optimizer.params.KEY of a configuration
  std::string_view doc;
  Kind kind = Kind::Number;
  NumberRange range = NumberRange::NonNegative;
  std::array<std::string_view, 2> fields = {};  // names in the struct
  double* (*numbers[2])(void* rule) = {};       // where they are in it; null where the kind has none
  bool* (*flag)(void* rule) = nullptr;
};

namespace rule_rows {
template <class T, class Rule>
Rule rule_of(T Rule::*);
template <auto kMember>
constexpr auto at = +[](void* rule) { return &(static_cast<decltype(rule_of(kMember))*>(rule)->*kMember); };

template <auto kMember>
constexpr Hyperparameter number(std::string_view key, NumberRange range, std::string_view doc) {
  return {key, doc, Hyperparameter::Kind::Number, range, {key, {}}, {at<kMember>, nullptr}, nullptr};
}
template <auto kFirst, auto kSecond>
constexpr Hyperparameter pair(std::string_view key, std::string_view first, std::string_view second,
                              NumberRange range, std::string_view doc) {
  return {key, doc, Hyperparameter::Kind::Pair, range, {first, second}, {at<kFirst>, at<kSecond>}, nullptr};
}
template <auto kMember>
constexpr Hyperparameter flag(std::string_view key, std::string_view doc) {
  return {key, doc, Hyperparameter::Kind::Switch, {}, {key, {}}, {nullptr, nullptr}, at<kMember>};
}

// What most rules have.
template <class Rule>
constexpr Hyperparameter rate() {
  return number<&Rule::lr>("lr", NumberRange::NonNegative, "learning rate");
}
template <class Rule>
constexpr Hyperparameter decay() {
  return number<&Rule::weight_decay>("weight_decay", NumberRange::NonNegative, "weight decay");
}
template <class Rule>
constexpr Hyperparameter betas() {
  return pair<&Rule::beta1, &Rule::beta2>("betas", "beta1", "beta2", NumberRange::BelowOne,
                                          "decay of the moments");
}
template <class Rule>
constexpr Hyperparameter eps() {
  return number<&Rule::eps>("eps", NumberRange::NonNegative, "added to the denominator");
}
template <class Rule>
constexpr Hyperparameter correction() {
  return flag<&Rule::bias_correction>("bias_correction", "correct the first steps");
}
template <class Rule>
inline constexpr std::array kAdamHyperparameters{
    rate<Rule>(),
    decay<Rule>(),
    betas<Rule>(),
    eps<Rule>(),
    correction<Rule>(),
    flag<&Rule::states_8bit>("states_8bit", "moments in 8 bits, a quarter of the memory and traffic")};
inline constexpr std::array<std::string_view, 2> kMoments{"exp_avg", "exp_avg_sq"};
}  // namespace rule_rows

/// Two values that do not go together: FIELD is VALUE, expected EXPECTED.
struct RuleConflict {
  std::string_view key, value, expected;
};

/// The row of a rule:
///   name             in configurations ("optimizer.type", in any case) and messages
///   configured       the defaults of a configuration: DeepSpeed's
///   hyperparameters  every field of the struct
///   states(rule)     names of its fp32 states, kRuleStateBytes an element each, at most two
///   conflict(rule)   what the ranges do not say
template <class Rule>
struct RuleRow;

template <>
struct RuleRow<AdamW> {
  static constexpr std::string_view name = "AdamW";
  static constexpr AdamW configured{.weight_decay = 0};
  static constexpr auto hyperparameters = rule_rows::kAdamHyperparameters<AdamW>;
  static std::span<const std::string_view> states(const AdamW&) { return rule_rows::kMoments; }
  static std::optional<RuleConflict> conflict(const AdamW&) { return {}; }
};

template <>
struct RuleRow<Adam> {
  static constexpr std::string_view name = "Adam";
  static constexpr Adam configured{};
  static constexpr auto hyperparameters = rule_rows::kAdamHyperparameters<Adam>;
  static std::span<const std::string_view> states(const Adam&) { return rule_rows::kMoments; }
  static std::optional<RuleConflict> conflict(const Adam&) { return {}; }
};

template <>
struct RuleRow<SGD> {
  static constexpr std::string_view name = "SGD";
  static constexpr SGD configured{};
  static constexpr std::array hyperparameters{
      rule_rows::rate<SGD>(), rule_rows::decay<SGD>(),
      rule_rows::number<&SGD::momentum>("momentum", NumberRange::BelowOne, "momentum"),
      rule_rows::number<&SGD::dampening>("dampening", NumberRange::Unit, "dampening of momentum"),
      rule_rows::flag<&SGD::nesterov>("nesterov", "Nesterov momentum; needs momentum > 0 and dampening 0")};
  static constexpr std::array<std::string_view, 1> kBuffer{"momentum_buffer"};
  static std::span<const std::string_view> states(const SGD& rule) {
    return std::span(kBuffer).first(rule.momentum > 0 ? 1 : 0);
  }
  static std::optional<RuleConflict> conflict(const SGD& rule) {
    if (!rule.nesterov || (rule.momentum > 0 && rule.dampening == 0)) return {};
    return RuleConflict{"nesterov", "true", "false unless momentum > 0 and dampening = 0"};
  }
};

template <>
struct RuleRow<Lion> {
  static constexpr std::string_view name = "Lion";
  static constexpr Lion configured{.lr = 1e-3, .beta2 = 0.999};
  static constexpr std::array hyperparameters{rule_rows::rate<Lion>(), rule_rows::decay<Lion>(),
                                              rule_rows::betas<Lion>()};
  static std::span<const std::string_view> states(const Lion&) {
    return std::span(rule_rows::kMoments).first(1);
  }
  static std::optional<RuleConflict> conflict(const Lion&) { return {}; }
};

template <>
struct RuleRow<LAMB> {
  static constexpr std::string_view name = "LAMB";
  static constexpr LAMB configured{.eps = 1e-8, .weight_decay = 0, .max_coeff = 10, .min_coeff = 0.01};
  static constexpr std::array hyperparameters{
      rule_rows::rate<LAMB>(),
      rule_rows::decay<LAMB>(),
      rule_rows::betas<LAMB>(),
      rule_rows::eps<LAMB>(),
      rule_rows::correction<LAMB>(),
      rule_rows::number<&LAMB::max_coeff>("max_coeff", NumberRange::Positive,
                                          "largest ratio of a parameter's norm to its update's"),
      rule_rows::number<&LAMB::min_coeff>("min_coeff", NumberRange::NonNegative, "smallest such ratio"),
      rule_rows::flag<&LAMB::undecayed_ratio>("undecayed_ratio",
                                              "the ratio counts where weight_decay is 0 too")};
  static std::span<const std::string_view> states(const LAMB&) { return rule_rows::kMoments; }
  static std::optional<RuleConflict> conflict(const LAMB& rule) {
    if (rule.min_coeff <= rule.max_coeff) return {};
    return RuleConflict{"min_coeff", "above max_coeff", "at most max_coeff"};
  }
};

template <>
struct RuleRow<LARS> {
  static constexpr std::string_view name = "LARS";
  static constexpr LARS configured{};
  static constexpr std::array hyperparameters{
      rule_rows::rate<LARS>(),
      rule_rows::decay<LARS>(),
      rule_rows::number<&LARS::momentum>("momentum", NumberRange::BelowOne, "momentum"),
      rule_rows::number<&LARS::trust_coefficient>("trust_coefficient", NumberRange::NonNegative,
                                                  "times the ratio of a parameter's norm to its gradient's"),
      rule_rows::eps<LARS>(),
      rule_rows::flag<&LARS::nesterov>("nesterov", "Nesterov momentum; needs momentum > 0 and dampening 0")};
  static constexpr std::array<std::string_view, 1> kBuffer{"momentum_buffer"};
  static std::span<const std::string_view> states(const LARS& rule) {
    return std::span(kBuffer).first(rule.momentum > 0 ? 1 : 0);
  }
  static std::optional<RuleConflict> conflict(const LARS& rule) {
    if (!rule.nesterov || rule.momentum > 0) return {};
    return RuleConflict{"nesterov", "true", "false unless momentum > 0"};
  }
};

template <>
struct RuleRow<Adagrad> {
  static constexpr std::string_view name = "Adagrad";
  static constexpr Adagrad configured{};
  static constexpr std::array hyperparameters{
      rule_rows::rate<Adagrad>(), rule_rows::decay<Adagrad>(),
      rule_rows::number<&Adagrad::lr_decay>("lr_decay", NumberRange::NonNegative,
                                            "lr is divided by 1 + lr_decay * steps before"),
      rule_rows::eps<Adagrad>(),
      rule_rows::number<&Adagrad::initial_accumulator_value>(
          "initial_accumulator_value", NumberRange::NonNegative, "of the sums of squares")};
  static constexpr std::array<std::string_view, 1> kSum{"sum"};
  static std::span<const std::string_view> states(const Adagrad&) { return kSum; }
  static std::optional<RuleConflict> conflict(const Adagrad&) { return {}; }
};

template <>
struct RuleRow<Muon> {
  static constexpr std::string_view name = "Muon";
  static constexpr Muon configured{};
  static constexpr std::array hyperparameters{
      rule_rows::rate<Muon>(),
      rule_rows::decay<Muon>(),
      rule_rows::number<&Muon::momentum>("momentum", NumberRange::BelowOne, "momentum"),
      rule_rows::flag<&Muon::nesterov>("nesterov", "Nesterov momentum; needs momentum > 0 and dampening 0"),
      rule_rows::flag<&Muon::match_rms_adamw>(
          "match_rms_adamw", "updates of AdamW's size, as Moonlight; false: Keller Jordan's"),
      rule_rows::betas<Muon>(),
      rule_rows::eps<Muon>(),
      rule_rows::number<&Muon::adamw_lr_scale>("adamw_lr_scale", NumberRange::NonNegative,
                                               "times lr, of what is not a matrix: AdamW's")};
  static std::span<const std::string_view> states(const Muon&) { return rule_rows::kMoments; }
  static std::optional<RuleConflict> conflict(const Muon&) { return {}; }
};

template <>
struct RuleRow<Adafactor> {
  static constexpr std::string_view name = "Adafactor";
  static constexpr Adafactor configured{};
  static constexpr std::array hyperparameters{
      rule_rows::rate<Adafactor>(),
      rule_rows::decay<Adafactor>(),
      rule_rows::number<&Adafactor::beta1>("beta1", NumberRange::BelowOne,
                                           "decay of the first moment; 0: none"),
      rule_rows::eps<Adafactor>(),
      rule_rows::number<&Adafactor::min_rms>("min_rms", NumberRange::NonNegative,
                                             "least size of a parameter that its rate is scaled by"),
      rule_rows::number<&Adafactor::clip_threshold>("clip_threshold", NumberRange::Positive,
                                                    "largest root mean square of an update"),
      rule_rows::number<&Adafactor::decay_rate>("decay_rate", NumberRange::NonNegative,
                                                "the second moment's decay is 1 - step^-decay_rate"),
      rule_rows::flag<&Adafactor::scale_parameter>("scale_parameter",
                                                   "the rate is times the parameter's root mean square"),
      rule_rows::flag<&Adafactor::relative_step>("relative_step", "the rate is at most 1 / sqrt(step)"),
      rule_rows::flag<&Adafactor::warmup_init>("warmup_init", "and at most 1e-6 * step; needs relative_step"),
      rule_rows::flag<&Adafactor::torch_form>("torch_form", "eps and decay as in torch.optim.Adafactor")};
  static std::span<const std::string_view> states(const Adafactor& rule) {
    return std::span(rule_rows::kMoments).first(rule.beta1 > 0 ? 1 : 0);
  }
  static std::optional<RuleConflict> conflict(const Adafactor& rule) {
    if (!rule.warmup_init || rule.relative_step) return {};
    return RuleConflict{"warmup_init", "true", "false unless relative_step"};
  }
};

inline constexpr int64_t kRuleStateBytes = 4;

/// `f(rule)` for the default of every rule, in the order of the table.
template <class F>
void for_each_rule(F f) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (f(RuleRow<std::variant_alternative_t<kIndex, OptimizerRule>>::configured), ...);
  }
  (std::make_index_sequence<std::variant_size_v<OptimizerRule>>());
}

/// Names in configurations beside the rows': of other programs' types that are a rule with certain numbers.
struct NamedRule {
  std::string_view name;
  OptimizerRule rule;
};
std::span<const NamedRule> named_rules();

std::string_view rule_name(const OptimizerRule& rule);
std::span<const Hyperparameter> hyperparameters_of(const OptimizerRule& rule);
/// Null for a key that the rule does not have.
const Hyperparameter* hyperparameter(const OptimizerRule& rule, std::string_view key);
/// Names of the state tensors, in the order of the kernels' buffers.
std::span<const std::string_view> rule_state_names(const OptimizerRule& rule);
/// Bytes of state per element beyond master and gradient, without scales of blocks.
int64_t rule_state_bytes(const OptimizerRule& rule);
/// Whether the states are kept in 8 bits, in blocks of kStateBlockNumel elements with an fp32 scale each.
bool has_8bit_states(const OptimizerRule& rule);
inline constexpr int64_t kStateBlockNumel = 256;
/// Whether a step needs norms of whole parameters. They are added up in blocks of kStateBlockNumel elements,
/// so that no border of a shard may part one.
bool sums_parameters(const OptimizerRule& rule);
/// Whether every element is updated from its own gradient and states alone, so that a part of a parameter may
/// be updated before the rest: not where norms or whole matrices are needed (LAMB, LARS, Muon, Adafactor).
bool updates_by_element(const OptimizerRule& rule);
/// Whether second moments are means over rows and columns (Adafactor): then every rank keeps, beside states
/// of elements, factored_numel() fp32 numbers for each parameter.
bool is_factored(const OptimizerRule& rule);
/// Numbers that stand for the squares of a parameter: one for each row of the last two dimensions and for
/// each column; of less than two dimensions one for each element.
int64_t factored_numel(std::span<const int64_t> shape);
double rule_lr(const OptimizerRule& rule);
std::optional<RuleConflict> conflict_of(const OptimizerRule& rule);

/// The values of a hyperparameter: a number's first is it.
std::array<double, 2> numbers_of(const OptimizerRule& rule, const Hyperparameter& of);
bool flag_of(const OptimizerRule& rule, const Hyperparameter& of);
void set_numbers(OptimizerRule& rule, const Hyperparameter& of, std::array<double, 2> values);
void set_flag(OptimizerRule& rule, const Hyperparameter& of, bool value);

bool is_within(double value, NumberRange range);
/// "a finite number >= 0".
std::string_view to_string(NumberRange range);

/// Throws Config for values out of range (lr < 0, a beta outside [0, 1), nesterov without momentum ...),
/// naming each.
void validate_rule(const OptimizerRule& rule);

}  // namespace zero
