#include "config/parse.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/utf8.h"
#include "zero/error.h"

namespace zero::config {

namespace {

using nlohmann::json;

int count_lines(const char* from, const char* to) { return static_cast<int>(std::count(from, to, '\n')); }

Place at(const Place& start, std::string_view text, size_t offset) {
  Place place = start;
  if (place.line > 0) place.line += count_lines(text.data(), text.data() + offset);
  return place;
}

[[noreturn]] void syntax(const Place& place, std::string_view problem, std::string_view remedy = {}) {
  fail(ErrorKind::Config, place.text(), problem, remedy);
}

// End of the string literal that starts at `i`: the index of its closing quote, or of the end of the text.
size_t skip_string(std::string_view text, size_t i) {
  for (i++; i < text.size() && text[i] != '"'; i++) {
    if (text[i] == '\\') i++;
  }
  return std::min(i, text.size());
}

// Blanks the comment at `i` (newlines stay) and returns the index of its last character.
size_t blank_comment(std::string& text, size_t i, const Place& start) {
  size_t end;
  if (text[i + 1] == '/') {
    end = std::min(text.find('\n', i), text.size());
  } else {
    end = text.find("*/", i + 2);
    if (end == std::string::npos)
      syntax(at(start, text, i), "expected \"*/\" after \"/*\", got the end of the text");
    end += 2;
  }
  std::replace_if(
      text.begin() + i, text.begin() + end, [](char c) { return c != '\n'; }, ' ');
  return end - 1;
}

// Turns comments and trailing commas into spaces, so that what is left is plain JSON with the same line
// numbers.
std::string to_plain_json(std::string_view input, const Place& start) {
  std::string text(input);
  if (text.starts_with("\xEF\xBB\xBF")) std::fill_n(text.begin(), 3, ' ');
  char before_last = 0, last = 0;  // the last two characters that are neither space nor comment
  size_t last_index = 0;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (c == '/' && i + 1 < text.size() && (text[i + 1] == '/' || text[i + 1] == '*')) {
      i = blank_comment(text, i, start);
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    if ((c == '}' || c == ']') && last == ',' && before_last != ',' && before_last != '{' &&
        before_last != '[') {
      text[last_index] = ' ';
    }
    before_last = last;
    last = c;
    last_index = i;
    if (c == '"') i = skip_string(text, i);
  }
  return text;
}

// Tells a shared cursor which character was read last: the parser keeps its own copy of the iterator.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* position, const char** last_read)
      : position_(position), last_read_(last_read) {}
  reference operator*() const {
    *last_read_ = position_;
    return *position_;
  }
  TrackedIterator& operator++() {
    ++position_;
    return *this;
  }
  bool operator==(const TrackedIterator& other) const { return position_ == other.position_; }
  bool operator!=(const TrackedIterator& other) const { return position_ != other.position_; }

 private:
  const char* position_;
  const char** last_read_;
};

// Builds the tree. Events come right after their token was read; only a number reads one character more, and
// a newline there still belongs to the number's line.
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  TreeBuilder(std::string_view text, const Place& start)
      : counted_(text.data()), last_read_(text.data()), here_(start) {}

  const char** last_read() { return &last_read_; }
  Value take() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override {
    Value v;
    v.kind = Value::Kind::Bool;
    v.boolean = value;
    return add(std::move(v));
  }
  bool number_integer(number_integer_t value) override {
    Value v;
    v.kind = Value::Kind::Integer;
    v.integer = value;
    v.real = static_cast<double>(value);
    v.text = std::to_string(value);
    return add(std::move(v));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX))
      return number_integer(static_cast<int64_t>(value));
    return number_float(static_cast<double>(value), std::to_string(value));
  }
  bool number_float(number_float_t value, const string_t& written) override {
    Value v;
    v.kind = Value::Kind::Real;
    v.real = value;
    v.text = written;
    return add(std::move(v));
  }
  bool string(string_t& value) override {
    Value v;
    v.kind = Value::Kind::String;
    v.text = std::move(value);
    return add(std::move(v));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Value::Kind::Object); }
  bool start_array(std::size_t) override { return open(Value::Kind::Array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Value& object = *stack_.back();
    const Place place = here();
    if (!keys_.back().insert(name).second) {
      syntax(place,
             path() + name + ": expected the key once, got it again (first at " +
                 object.find(name)->place.text() + ")",
             "remove one of the two");
    }
    object.members.push_back({std::move(name), place, {}});
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string message =
        error.what();  // "[json.exception...] parse error at line 1, column 2: syntax error ..."
    if (auto bracket = message.find("] "); bracket != std::string::npos) message.erase(0, bracket + 2);
    if (message.starts_with("parse error at")) message.erase(0, message.find(": ") + 2);
    syntax(here(), "expected JSON, got a " + message);
  }

 private:
  Place here() {
    if (here_.line > 0 && last_read_ > counted_) {
      here_.line += count_lines(counted_, last_read_);
      counted_ = last_read_;
    }
    return here_;
  }

  // "a.b." of the objects that are open; array items as "[]".
  std::string path() const {
    std::string text;
    for (const Value* v : stack_) {
      if (v == stack_.back()) break;
      text += v->is_object() ? v->members.back().key + "." : "[].";
    }
    return text;
  }

  Value* add_value(Value value) {
    value.place = here();
    if (stack_.empty()) return &(root_ = std::move(value));
    Value& parent = *stack_.back();
    if (parent.is_object()) return &(parent.members.back().value = std::move(value));
    parent.items.push_back(std::move(value));
    return &parent.items.back();
  }

  bool add(Value value) {
    add_value(std::move(value));
    return true;
  }

  // Pointers in stack_ stay good: a parent's vector only grows after the child above it was closed.
  bool open(Value::Kind kind) {
    if (stack_.size() >= kMaxDepth) {
      syntax(here(),
             "expected at most " + std::to_string(kMaxDepth) + " nested objects and arrays, got more");
    }
    Value value;
    value.kind = kind;
    stack_.push_back(add_value(std::move(value)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  const char* counted_;    // newlines before this are in here_.line
  const char* last_read_;  // the character the lexer read last
  Place here_;
  Value root_;
  std::vector<Value*> stack_;                          // the open objects and arrays
  std::vector<std::unordered_set<std::string>> keys_;  // their keys so far
};

}  // namespace

Value parse_json(std::string_view text, const Place& place) {
  if (text.size() > kMaxTextBytes) {
    syntax(place,
           "expected at most " + std::to_string(kMaxTextBytes) + " bytes, got " + std::to_string(text.size()),
           "is this a configuration file?");
  }
  if (const auto bad = find_invalid_utf8(text)) {
    syntax(at(place, text, *bad), "expected UTF-8, got an invalid byte at offset " + std::to_string(*bad),
           "save the file as UTF-8");
  }
  // The lexer would take a zero byte for the end of the text and ignore what follows.
  if (size_t zero_byte = text.find('\0'); zero_byte != std::string_view::npos) {
    syntax(at(place, text, zero_byte),
           "expected text, got a zero byte at offset " + std::to_string(zero_byte));
  }
  const std::string plain = to_plain_json(text, place);
  TreeBuilder builder(plain, place);
  const char* begin = plain.data();
  json::sax_parse(TrackedIterator(begin, builder.last_read()),
                  TrackedIterator(begin + plain.size(), builder.last_read()), &builder);
  return builder.take();
}

}  // namespace zero::config
