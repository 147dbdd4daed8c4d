#include "data/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "zero/error.h"

namespace zero::data {
namespace {

constexpr size_t kJitStackStart = 64 << 10, kJitStackMost = 8 << 20;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return "PCRE2 error " + std::to_string(code);
  return reinterpret_cast<const char*>(text);
}

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

}  // namespace

struct Splitter::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  SplitBehavior behavior;
  std::string place;
};

struct Splitter::Matcher::Memory {
  const Compiled* splitter;
  std::unique_ptr<pcre2_match_data, FreeMatch> match;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
  std::unique_ptr<pcre2_jit_stack, FreeStack> stack;
  std::string_view text;
  size_t at = 0;                          // where the search goes on
  size_t found_begin = 0, found_end = 0;  // a match that waits behind the gap before it
};

Splitter::Splitter(std::string_view pattern, SplitBehavior behavior, std::string_view place)
    : compiled_(std::make_unique<Compiled>()) {
  const std::string translated = translate_pattern(pattern, place);
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  require(context != nullptr, ErrorKind::Internal, place, "PCRE2 has no memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset,
                                      context.get()));
  require(compiled_->code != nullptr, ErrorKind::Unsupported, place,
          "PCRE2 refuses the pattern at offset " + std::to_string(offset) + " (" + pcre2_message(error) +
              "): " + translated);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  require(matches_empty == 0, ErrorKind::Unsupported, place,
          "the pattern can match the empty string: " + translated);
  // Where the system forbids just-in-time code PCRE2 interprets the pattern, with the same result.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
  compiled_->behavior = behavior;
  compiled_->place = place;
}

Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

Splitter::Matcher::Matcher(const Splitter& splitter) : memory_(std::make_unique<Memory>()) {
  Memory& m = *memory_;
  m.splitter = splitter.compiled_.get();
  m.match.reset(pcre2_match_data_create_from_pattern(m.splitter->code.get(), nullptr));
  m.context.reset(pcre2_match_context_create(nullptr));
  m.stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr));
  require(m.match && m.context && m.stack, ErrorKind::Internal, m.splitter->place, "PCRE2 has no memory");
  pcre2_jit_stack_assign(m.context.get(), nullptr, m.stack.get());
}

Splitter::Matcher::~Matcher() = default;
Splitter::Matcher::Matcher(Matcher&&) noexcept = default;

void Splitter::Matcher::start(std::string_view text) {
  memory_->text = text;
  memory_->at = memory_->found_begin = memory_->found_end = 0;
}

// The next match from `at` on; false when there is none.
bool Splitter::Matcher::find(size_t& begin, size_t& end) {
  Memory& m = *memory_;
  const int rc = pcre2_match(m.splitter->code.get(), reinterpret_cast<PCRE2_SPTR>(m.text.data()),
                             m.text.size(), m.at, PCRE2_NO_UTF_CHECK, m.match.get(), m.context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc <= 0) {
    fail(ErrorKind::Unsupported, m.splitter->place,
         "splitting gave up at byte " + std::to_string(m.at) + " of a text (" + pcre2_message(rc) + ")");
  }
  const size_t* bounds = pcre2_get_ovector_pointer(m.match.get());
  begin = bounds[0];
  end = bounds[1];
  require(end > begin && begin >= m.at, ErrorKind::Internal, m.splitter->place,
          "the pattern matched nothing");
  return true;
}

std::string_view Splitter::Matcher::next() {
  Memory& m = *memory_;
  const bool keep_gaps = m.splitter->behavior != SplitBehavior::KeepMatch;
  const bool keep_matches = m.splitter->behavior != SplitBehavior::RemoveMatch;
  for (;;) {
    if (m.found_end > m.at) {  // the gap before it was handed out, now the match itself
      m.at = m.found_end;
      if (keep_matches) return m.text.substr(m.found_begin, m.found_end - m.found_begin);
    }
    if (m.at >= m.text.size()) return {};
    const size_t gap_begin = m.at;
    size_t gap_end = m.text.size();
    if (find(m.found_begin, m.found_end)) {
      gap_end = m.found_begin;
    } else {
      m.at = m.text.size();
    }
    if (gap_end > gap_begin && keep_gaps) return m.text.substr(gap_begin, gap_end - gap_begin);
  }
}

}  // namespace zero::data
