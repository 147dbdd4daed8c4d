#include "zero/tokenize_files.h"

#include <algorithm>

#include "base/utf8.h"
#include "data/documents.h"
#include "data/text_reader.h"
#include "zero/error.h"
#include "zero/token_file.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

int32_t end_token(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  const auto id = options.end_of_text ? options.end_of_text : tokenizer.end_of_text();
  require(id.has_value(), ErrorKind::Config, "tokenize",
          "the vocabulary has no end-of-text token that is known by name", "say which token ends a document");
  require(*id >= 0 && *id < tokenizer.vocab_size(), ErrorKind::Config, "tokenize",
          "the end-of-text token " + std::to_string(*id) + " is not in the vocabulary of " +
              std::to_string(tokenizer.vocab_size()));
  return *id;
}

bool same_file(const fs::path& a, const fs::path& b) {
  return fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal();
}

void check(const fs::path& out_file, const TokenizeOptions& options) {
  require(options.held_out_fraction >= 0 && options.held_out_fraction < 1, ErrorKind::Config, "tokenize",
          "a held-out fraction of " + std::to_string(options.held_out_fraction) +
              ", expected 0 or more and below 1");
  require((options.held_out_fraction > 0) == !options.held_out_file.empty(), ErrorKind::Config, "tokenize",
          "a held-out file and a fraction above 0 go together", "give both or none");
  require(options.held_out_file.empty() || !same_file(out_file, options.held_out_file), ErrorKind::Config,
          out_file.string(), "it cannot be both the token file and the held-out file");
}

// Where to cut a single document: after a line's end near 1 - fraction, or between characters when there is
// none.
size_t cut_of(std::string_view text, double fraction) {
  const auto aim = static_cast<size_t>(static_cast<double>(text.size()) * (1 - fraction));
  size_t cut = text.find('\n', aim);
  if (cut != text.npos && cut + 1 < text.size()) return cut + 1;
  cut = std::clamp<size_t>(aim, 1, text.size() - 1);
  while (cut < text.size() && (static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) ++cut;
  return cut;
}

class Job {
 public:
  Job(const Tokenizer& tokenizer, const fs::path& out_file, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options), end_(end_token(tokenizer, options)) {
    train_ = std::make_unique<TokenFileWriter>(out_file, tokenizer.vocabulary());
    if (!options.held_out_file.empty()) {
      held_out_ = std::make_unique<TokenFileWriter>(options.held_out_file, tokenizer.vocabulary());
    }
  }

  TokenizeResult run(const std::vector<data::Document>& documents) {
    progress_.documents = std::ssize(documents);
    for (const auto& document : documents) progress_.bytes += document.bytes;
    const bool cut = held_out_ != nullptr && documents.size() == 1;
    for (const auto& document : documents) {
      add(document, cut);
      ++progress_.documents_done;
      progress_.bytes_done += document.bytes;
      progress_.tokens = train_->size() + (held_out_ ? held_out_->size() : 0);
      if (options_.progress) options_.progress(progress_);
    }
    return finish(documents.front());
  }

 private:
  void add(const data::Document& document, bool cut) {
    const std::string text = data::read_text(document.path, options_.most_document_bytes);
    if (text.empty()) {
      require(!document.named, ErrorKind::Config, document.path.string(), "the text is empty");
      ++result_.empty_documents;
      return;
    }
    result_.text_bytes += std::ssize(text);
    if (!cut) return add_text(text, document.path, document.held_out);
    require(text.size() > 1, ErrorKind::Config, document.path.string(),
            "the text is too short to hold a part out");
    require_utf8(text, document.path.string());  // offsets are of the whole text
    const size_t at = cut_of(text, options_.held_out_fraction);
    add_text(std::string_view(text).substr(0, at), document.path, false);
    add_text(std::string_view(text).substr(at), document.path, true);
  }

  void add_text(std::string_view text, const fs::path& path, bool held_out) {
    TokenFileWriter& writer = held_out ? *held_out_ : *train_;
    tokenizer_.encode_to([&](std::span<const int32_t> ids) { writer.append(ids); }, text, path.string());
    writer.append({&end_, 1});
    ++(held_out ? result_.held_out_documents : result_.documents);
  }

  TokenizeResult finish(const data::Document& first) {
    const bool both = result_.documents > 0 && (held_out_ == nullptr || result_.held_out_documents > 0);
    require(
        both, ErrorKind::Config, first.path.string(),
        result_.text_bytes == 0 ? "all texts are empty" : "too many of the texts are empty to hold some out");
    result_.tokens = train_->size();
    result_.held_out_tokens = held_out_ ? held_out_->size() : 0;
    // Whatever can fail for lack of space does so before the first file gets its name.
    train_->finish();
    if (held_out_) held_out_->finish();
    train_->publish();
    if (held_out_) held_out_->publish();
    return result_;
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  int32_t end_;
  std::unique_ptr<TokenFileWriter> train_, held_out_;
  TokenizeProgress progress_;
  TokenizeResult result_;
};

}  // namespace

TokenizeResult tokenize_files(const std::vector<fs::path>& inputs, const Tokenizer& tokenizer,
                              const fs::path& out_file, const TokenizeOptions& options) {
  check(out_file, options);
  auto documents = data::find_documents(inputs, options.extensions);
  if (options.held_out_fraction > 0) data::hold_out(documents, options.held_out_fraction);
  return Job(tokenizer, out_file, options).run(documents);
}

}  // namespace zero
