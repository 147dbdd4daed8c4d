#include "tensor/plan.h"

#include <charconv>
#include <numeric>

#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr const char* kWords =
    "words are colwise, rowwise, vocab, kv[HEADS], fused[N], fused[SIZE,...], colwise_t, rowwise_t, fused_t, "
    "gathered, sequence and replicated";

[[noreturn]] void refuse(const TensorParallelRule& rule) {
  fail(ErrorKind::Config, "tensor-parallel plan",
       "\"" + rule.pattern + "\": there is no word \"" + rule.how + "\"", kWords);
}

std::vector<int64_t> numbers_in(const TensorParallelRule& rule, std::string_view text) {
  std::vector<int64_t> numbers;
  while (!text.empty()) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number <= 0) refuse(rule);
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (!text.empty() && (text.front() != ',' || text.size() == 1)) refuse(rule);
    if (!text.empty()) text.remove_prefix(1);
  }
  return numbers;
}

std::vector<int64_t> blocks_of(const PlanWord& word, const std::string& name, int64_t size) {
  if (!word.is_fused) return {size};
  if (word.numbers.size() == 1) {
    const int64_t count = word.numbers.front();
    require(size % count == 0, ErrorKind::Config, name,
            std::to_string(count) + " fused blocks do not fit " + std::to_string(size) + " rows");
    return std::vector<int64_t>(static_cast<size_t>(count), size / count);
  }
  const int64_t sum = std::accumulate(word.numbers.begin(), word.numbers.end(), int64_t{0});
  require(sum == size, ErrorKind::Config, name,
          "fused blocks of " + std::to_string(sum) + " elements do not fit " + std::to_string(size));
  return word.numbers;
}

}  // namespace

PlanWord parse_plan_word(const TensorParallelRule& rule) {
  using Kind = PlanWord::Kind;
  PlanWord word;
  std::string name = rule.how;
  if (const size_t open = name.find('['); open != std::string::npos) {
    if (name.back() != ']') refuse(rule);
    word.numbers = numbers_in(rule, std::string_view(name).substr(open + 1, name.size() - open - 2));
    if (word.numbers.empty()) refuse(rule);
    name.resize(open);
  }
  if (name.ends_with("_t")) {
    word.is_transposed = true;
    name.resize(name.size() - 2);
  }
  word.is_fused = name == "fused";
  if (name == "colwise" || name == "fused")
    word.kind = Kind::Columns;
  else if (name == "rowwise")
    word.kind = Kind::Rows;
  else if (name == "vocab")
    word.kind = Kind::Vocabulary;
  else if (name == "kv")
    word.kind = Kind::Heads;
  else if (name == "gathered")
    word.kind = Kind::Gathered;
  else if (name != "replicated" && name != "replicate" && name != "sequence" && name != "sequence_parallel")
    refuse(rule);
  const bool takes_numbers = word.is_fused || word.kind == Kind::Heads;
  if (takes_numbers == word.numbers.empty() || (word.kind == Kind::Heads && word.numbers.size() != 1))
    refuse(rule);
  if (word.is_transposed && word.kind != Kind::Columns && word.kind != Kind::Rows) refuse(rule);
  return word;
}

std::optional<Cut> cut_of(const PlanWord& word, const std::string& name, const std::vector<int64_t>& shape,
                          int ranks) {
  using Kind = PlanWord::Kind;
  if (word.kind == Kind::Whole) return std::nullopt;
  require(!shape.empty(), ErrorKind::Config, name, "a scalar cannot be cut over ranks");
  const bool is_weight = shape.size() > 1;
  int64_t dim = 0;
  if (word.kind == Kind::Rows) {
    require(is_weight, ErrorKind::Config, name, "a bias of a rowwise layer is added once, and so not cut",
            "leave it out of the plan");
    dim = word.is_transposed ? 0 : 1;
  } else if (word.kind == Kind::Columns && word.is_transposed && is_weight) {
    dim = 1;
  }
  const int64_t size = shape[static_cast<size_t>(dim)];
  if (word.kind == Kind::Heads) {
    const int64_t heads = word.numbers.front();
    require(size % heads == 0, ErrorKind::Config, name,
            std::to_string(heads) + " heads do not fit " + std::to_string(size) + " rows");
    if (heads < ranks && ranks % heads == 0) return std::nullopt;
    require(
        heads % ranks == 0, ErrorKind::Config, name,
        std::to_string(ranks) + " ranks cannot share " + std::to_string(heads) + " heads of keys and values",
        "take a number of ranks that divides them, or that they divide");
  }
  Cut cut{dim, blocks_of(word, name, size), name};
  for (const int64_t block : cut.blocks)
    require(block >= ranks, ErrorKind::Config, name,
            std::to_string(ranks) + " ranks cannot share " + std::to_string(block) + " elements of dim " +
                std::to_string(dim),
            "take at most " + std::to_string(block) + " tensor-parallel ranks, or leave it out of the plan");
  return cut;
}

}  // namespace zero::detail
