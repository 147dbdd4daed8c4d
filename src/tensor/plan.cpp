#include "tensor/plan.h"

#include <charconv>
#include <utility>

#include "zero/error.h"

namespace zero::detail {

const char* const kPlanWords =
    "words are colwise, colwise[HEADS], rowwise, rowwise[HEADS], vocab, kv[HEADS], fused[N], fused[N:HEADS], "
    "fused[SIZE:HEADS,...], colwise_t, rowwise_t, fused_t, gathered, sequence, replicated, and of Hugging "
    "Face "
    "colwise_rep, colwise_gather_output, rowwise_rep, rowwise_split_input, packed_colwise, packed_rowwise, "
    "embedding_rowwise, embedding_colwise, sequence_parallel, replicate and replicated_with_grad_allreduce";

namespace {

using Kind = PlanWord::Kind;

[[noreturn]] void refuse(const TensorParallelRule& rule) {
  fail(ErrorKind::Config, "tensor-parallel plan",
       "\"" + rule.pattern + "\": there is no word \"" + rule.how + "\"", kPlanWords);
}

int64_t number_at(const TensorParallelRule& rule, std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) refuse(rule);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// "768:12,64:2"
std::vector<PlanWord::Entry> entries_in(const TensorParallelRule& rule, std::string_view text) {
  std::vector<PlanWord::Entry> entries;
  for (;;) {
    PlanWord::Entry& entry = entries.emplace_back();
    entry.number = number_at(rule, text);
    if (text.starts_with(':')) {
      text.remove_prefix(1);
      entry.heads = number_at(rule, text);
    }
    if (text.empty()) return entries;
    if (!text.starts_with(',')) refuse(rule);
    text.remove_prefix(1);
  }
}

// What a word without brackets and "_t" says; nothing: it is none.
std::optional<PlanWord> word_named(std::string_view name) {
  struct Named {
    std::string_view name;
    Kind kind;
    bool is_transposed = false;
    int64_t fused = 0;
  };
  static constexpr Named kNamed[] = {{"colwise", Kind::Columns},
                                     {"fused", Kind::Columns},
                                     {"rowwise", Kind::Rows},
                                     {"vocab", Kind::Vocabulary},
                                     {"kv", Kind::Heads},
                                     {"gathered", Kind::Gathered},
                                     {"replicated", Kind::Whole},
                                     {"sequence", Kind::Whole},
                                     // Hugging Face's. What comes out of a cut layer is gathered, and what
                                     // goes into one cut, where it is read.
                                     {"colwise_rep", Kind::Columns},
                                     {"colwise_gather_output", Kind::Columns},
                                     {"rowwise_rep", Kind::Rows},
                                     {"rowwise_split_input", Kind::Rows},
                                     {"packed_colwise", Kind::Columns, false, 2},
                                     {"packed_rowwise", Kind::Rows, false, 2},
                                     {"embedding_rowwise", Kind::Vocabulary},
                                     {"embedding_colwise", Kind::Columns, true},
                                     {"replicate", Kind::Whole},
                                     {"sequence_parallel", Kind::Whole},
                                     {"replicated_with_grad_allreduce", Kind::Whole}};
  for (const Named& named : kNamed) {
    if (named.name != name) continue;
    PlanWord word{.kind = named.kind, .is_transposed = named.is_transposed, .fused = {}};
    if (named.fused > 0) word.fused = {{.number = named.fused}};
    return word;
  }
  return std::nullopt;
}

std::vector<Block> blocks_of(const PlanWord& word, const std::string& name, int64_t size) {
  const auto block = [&](int64_t elements, int64_t heads) {
    require(heads == 0 || elements % heads == 0, ErrorKind::Config, name,
            std::to_string(heads) + " heads do not fit " + std::to_string(elements) + " rows");
    return Block{elements, heads == 0 ? elements : heads};
  };
  if (word.fused.empty()) return {block(size, word.heads)};
  if (word.fused.size() == 1) {
    const auto& [count, heads] = word.fused.front();
    require(size % count == 0, ErrorKind::Config, name,
            std::to_string(count) + " fused blocks do not fit " + std::to_string(size) + " rows");
    return std::vector<Block>(static_cast<size_t>(count), block(size / count, heads));
  }
  std::vector<Block> blocks;
  int64_t sum = 0;
  for (const auto& [number, heads] : word.fused) {
    blocks.push_back(block(number, heads));
    sum += number;
  }
  require(sum == size, ErrorKind::Config, name,
          "fused blocks of " + std::to_string(sum) + " elements do not fit " + std::to_string(size));
  return blocks;
}

}  // namespace

PlanWord parse_plan_word(const TensorParallelRule& rule) {
  std::string name = rule.how;
  std::vector<PlanWord::Entry> entries;
  if (const size_t open = name.find('['); open != std::string::npos) {
    if (name.back() != ']') refuse(rule);
    entries = entries_in(rule, std::string_view(name).substr(open + 1, name.size() - open - 2));
    name.resize(open);
  }
  bool is_transposed = false;
  if (name == "colwise_t" || name == "rowwise_t" || name == "fused_t") {
    is_transposed = true;
    name.resize(name.size() - 2);
  }
  std::optional<PlanWord> word = word_named(name);
  if (!word) refuse(rule);
  word->is_transposed = word->is_transposed || is_transposed;
  const bool is_fused = name == "fused";
  const bool must = is_fused || word->kind == Kind::Heads,
             may = must || name == "colwise" || name == "rowwise";
  if ((must && entries.empty()) || (!may && !entries.empty())) refuse(rule);
  if (is_fused) {
    word->fused = std::move(entries);
  } else if (!entries.empty()) {
    if (entries.size() != 1 || entries.front().heads != 0) refuse(rule);
    word->heads = entries.front().number;
  }
  return *word;
}

std::optional<Cut> cut_of(const PlanWord& word, const std::string& name, const std::vector<int64_t>& shape,
                          int ranks) {
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
  Cut cut{dim, blocks_of(word, name, shape[static_cast<size_t>(dim)]), name};
  if (word.kind == Kind::Heads && word.heads < ranks) return std::nullopt;
  for (const Block& block : cut.blocks) {
    const bool by_heads = block.parts < block.size;
    require(block.parts >= ranks, ErrorKind::Config, name,
            std::to_string(ranks) + " ranks cannot share " + std::to_string(block.parts) +
                (by_heads ? " heads" : " elements of dim " + std::to_string(dim)),
            "take at most " + std::to_string(block.parts) +
                " tensor-parallel ranks, or leave it out of the plan");
  }
  return cut;
}

}  // namespace zero::detail
