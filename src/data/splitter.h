#pragma once
// One step of a pre-tokenizer: cuts text into pieces with a regular expression, run by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace zero::data {

/// What happens to the text of a match; text between matches is kept in pieces of its own in both cases.
enum class SplitBehavior {
  Isolated,     // each match is a piece
  RemoveMatch,  // matches are dropped
  KeepMatch,    // only matches are kept: text between them is dropped
};

/// The splitting pattern of GPT-2's tokenizer.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A pattern in the syntax of Oniguruma (which Hugging Face's tokenizers use) as PCRE2 with UTF and MULTILINE
/// reads it. Throws Unsupported, naming the construct, for one that the two engines read differently.
std::string translate_pattern(std::string_view pattern, std::string_view place);

/// `text` as a pattern that matches just that.
std::string escape_pattern(std::string_view text);

/// Compiled once, used by many threads; each thread brings its own Matcher.
class Splitter {
 public:
  /// `place` names file and entry in errors. Throws Unsupported for a pattern that PCRE2 cannot run or that
  /// can match the empty string.
  Splitter(std::string_view pattern, SplitBehavior behavior, std::string_view place);
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// Working memory of one thread.
  class Matcher {
   public:
    explicit Matcher(const Splitter& splitter);
    ~Matcher();
    Matcher(Matcher&&) noexcept;

    /// Starts over with `text`, which must be valid UTF-8 and outlive the calls of next().
    void start(std::string_view text);

    /// The next piece, never empty; an empty view at the end. Throws Unsupported when the engine's limits are
    /// hit.
    std::string_view next();

   private:
    bool find(size_t& begin, size_t& end);
    struct Memory;
    std::unique_ptr<Memory> memory_;
  };

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace zero::data
