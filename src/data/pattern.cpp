// Translates Oniguruma's (Ruby) syntax to PCRE2's. What both read alike is copied, what differs is rewritten,
// and what cannot be rewritten is refused by name, so that no vocabulary is ever split in another way than it
// was trained with.
#include <cctype>

#include "data/splitter.h"
#include "zero/error.h"

namespace zero::data {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view place) : in_(pattern), place_(place) {}

  std::string run() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          escape();
          break;
        case '[':
          bracket();
          break;
        case '(':
          group();
          break;
        case '{':
          interval();
          break;
        default:
          out_ += in_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorKind::Unsupported, place_,
         "the pattern uses " + std::string(construct) + " at offset " + std::to_string(at_) + ": " +
             std::string(in_));
  }

  bool starts_with(std::string_view what) const { return in_.substr(at_).starts_with(what); }

  void copy(size_t count) {
    out_.append(in_, at_, count);
    at_ += count;
  }

  void replace(size_t count, std::string_view with) {
    out_ += with;
    at_ += count;
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    if (!is_alnum(c)) return copy(2);
    switch (c) {
      // PCRE2's \s also takes U+180E, Oniguruma's is exactly White_Space.
      case 's':
        return replace(2, R"(\p{White_Space})");
      case 'S':
        return replace(2, R"(\P{White_Space})");
      case 'd':
        return replace(2, R"(\p{Nd})");
      case 'D':
        return replace(2, R"(\P{Nd})");
      case 'v':
        return replace(2, R"(\x{0b})");
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      case 'p':
      case 'P':
        return property();
      case 'u':
        return unicode();
      case 'x':
        return hexadecimal();
      default:
        refuse(in_.substr(at_, 2));
    }
  }

  void property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == in_.npos)
      refuse("a property without braces");
    copy(close + 1 - at_);
  }

  void unicode() {
    for (size_t i = at_ + 2; i < at_ + 6; ++i) {
      if (i >= in_.size() || !std::isxdigit(static_cast<unsigned char>(in_[i])))
        refuse("\\u without four digits");
    }
    out_.append("\\x{").append(in_, at_ + 2, 4).append("}");
    at_ += 6;
  }

  void hexadecimal() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 < in_.size() && in_[at_ + 2] == '{' && close != in_.npos) return copy(close + 1 - at_);
    // \xHH is a byte for Oniguruma and a character for PCRE2: the same only in ASCII.
    const bool ascii = at_ + 3 < in_.size() && in_[at_ + 2] >= '0' && in_[at_ + 2] <= '7' &&
                       std::isxdigit(static_cast<unsigned char>(in_[at_ + 3]));
    if (!ascii) refuse("\\x without braces");
    copy(4);
  }

  void bracket() {
    copy(1);
    if (starts_with("^")) copy(1);
    if (starts_with("]")) refuse("an empty class");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse("a class inside a class");
      if (starts_with("&&")) refuse("&& in a class");
      if (in_[at_] == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    if (at_ == in_.size()) refuse("a class without end");
    copy(1);
  }

  void group() {
    for (std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"}) {
      if (starts_with(known)) return copy(known.size());
    }
    if (starts_with("(?")) refuse("the group " + std::string(in_.substr(at_, 4)));
    if (starts_with("(*")) refuse("(*");
    copy(1);
  }

  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    const size_t first_digits = end - at_ - 1;
    if (end < in_.size() && in_[end] == ',') ++end;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    if (end >= in_.size() || in_[end] != '}') return replace(1, "\\{");
    if (first_digits == 0) refuse("an interval without a lower bound");
    // {1,3}+ and {3}? repeat the interval in Ruby, and are possessive or lazy in PCRE2.
    if (end + 1 < in_.size() && (in_[end + 1] == '+' || in_[end + 1] == '?'))
      refuse("a modifier after an interval");
    copy(end + 1 - at_);
  }

  std::string_view in_;
  std::string_view place_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view place) {
  return Translator(pattern, place).run();
}

std::string escape_pattern(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool ascii = static_cast<unsigned char>(c) < 0x80;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      if (ascii && !is_alnum(c)) out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace zero::data
