#include "fit_text.h"

#include <algorithm>
#include <bit>
#include <span>

#include "base/output_file.h"
#include "base/utf8.h"
#include "data/documents.h"
#include "data/text_reader.h"
#include "zero/bpe_trainer.h"
#include "zero/error.h"
#include "zero/token_file.h"
#include "zero/tokenizer.h"

namespace zero::tool {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFewestBytes = 2000;
constexpr int64_t kFewestHeldOutBytes = 200'000;  // as far as a tenth of the text has so many
constexpr int64_t kMostDocumentBytes = int64_t{2} << 30;
constexpr size_t kWholeDocuments = 20;    // from so many on, whole documents are held out
constexpr int64_t kBytesPerToken = 4000;  // of text, for each token of the vocabulary
constexpr int64_t kShortestSequence = 8;

std::string read_document(const data::Document& document) {
  std::string text = data::read_text(document.path, kMostDocumentBytes);
  const std::string place = document.path.string();
  require(!text.empty() || !document.named, ErrorKind::Config, place, "the text is empty");
  const size_t zero = text.find('\0');
  require(zero == text.npos, ErrorKind::Config, place,
          "it is no text: byte " + std::to_string(zero) + " is zero", "give text files");
  require_utf8(text, place);
  return text;
}

double fraction_held_out(int64_t bytes) {
  return std::clamp(static_cast<double>(kFewestHeldOutBytes) / static_cast<double>(bytes), 0.01, 0.1);
}

// After a line's end near `aim`, or between two characters where no line ends behind it.
size_t cut_near(std::string_view text, size_t aim) {
  const size_t line = text.find('\n', aim);
  if (line != text.npos && line + 1 < text.size()) return line + 1;
  while (aim < text.size() && (static_cast<uint8_t>(text[aim]) & 0xc0) == 0x80) ++aim;
  return aim;
}

// What the samples predict: their first token is given. The end of a document stands for no byte.
std::string predicted_text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t length) {
  const int64_t samples = (std::ssize(ids) - 1) / length;
  std::string text;
  for (int64_t at = 1; at <= samples * length; ++at)
    if (ids[at] != tokenizer.end_of_text()) text += tokenizer.decode({&ids[at], 1});
  return text;
}

// Tokens of a vocabulary that suits so many bytes of text: a power of two.
int64_t suitable_vocabulary(int64_t text_bytes) {
  const auto tokens = static_cast<uint64_t>(std::max<int64_t>(1, text_bytes / kBytesPerToken));
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(tokens)), 512, 2048);
}

}  // namespace

FitDocuments::FitDocuments(const FitTextOptions& options) : options_(options) {
  auto documents = data::find_documents(options.inputs, options.extensions);
  std::vector<std::string> texts;
  int64_t bytes = 0;
  for (const auto& document : documents) bytes += std::ssize(texts.emplace_back(read_document(document)));
  require(bytes >= kFewestBytes, ErrorKind::Config, documents.front().path.string(),
          "expected at least " + std::to_string(kFewestBytes) + " bytes of text in all, got " +
              std::to_string(bytes),
          "give more text");
  const double fraction = fraction_held_out(bytes);
  std::vector<int64_t> held_out;
  if (documents.size() >= kWholeDocuments) {
    std::vector<int64_t> sizes;
    for (const std::string& text : texts) sizes.push_back(std::ssize(text));
    held_out =
        data::held_out_bytes(documents, sizes, static_cast<int64_t>(fraction * static_cast<double>(bytes)));
  } else {
    for (const std::string& text : texts)
      held_out.push_back(static_cast<int64_t>(fraction * static_cast<double>(text.size())));
  }
  for (size_t i = 0; i < documents.size(); ++i) {
    const std::string place = documents[i].path.string();
    const std::string& text = texts[i];
    const size_t aim = text.size() - static_cast<size_t>(held_out[i]),
                 cut = aim > 0 ? cut_near(text, aim) : 0;
    if (cut > 0) parts_.push_back({place, text.substr(0, cut), false});
    if (cut < text.size()) parts_.push_back({place, text.substr(cut), true});
  }
  for (const Part& part : parts_)
    if (!part.held_out) train_bytes_ += std::ssize(part.text);
}

std::string FitDocuments::write_tokenizer(const fs::path& directory) const {
  if (options_.tokenizer) return options_.tokenizer->string();
  BpeTrainer trainer;
  for (const Part& part : parts_)
    if (!part.held_out) trainer.add(part.text, part.place);
  fs::create_directories(directory);
  replace_file(directory / "tokenizer.json", trainer.train(suitable_vocabulary(train_bytes_)));
  return directory.string();
}

FitText FitDocuments::write(const fs::path& directory) const {
  fs::create_directories(directory);
  FitText made{.train = (directory / "train.tokens").string(),
               .held_out = (directory / "held_out.tokens").string(),
               .tokenizer = write_tokenizer(directory / "tokenizer"),
               .held_out_text = (directory / "held_out.txt").string(),
               .train_bytes = train_bytes_};
  const Tokenizer tokenizer = Tokenizer::load(made.tokenizer);
  const auto end = tokenizer.end_of_text();
  require(end.has_value(), ErrorKind::Config, made.tokenizer,
          "the vocabulary has no end-of-text token that is known by name");
  TokenFileWriter train(made.train, tokenizer.vocabulary()), held_out(made.held_out, tokenizer.vocabulary());
  std::vector<int32_t> held_out_ids;
  for (const Part& part : parts_) {
    std::vector<int32_t> ids = tokenizer.encode(part.text, part.place);
    ids.push_back(*end);
    (part.held_out ? held_out : train).append(ids);
    if (part.held_out) held_out_ids.insert(held_out_ids.end(), ids.begin(), ids.end());
  }
  made.train_tokens = train.size();
  made.vocab_size = tokenizer.vocab_size();
  made.sequence_length =
      std::min({options_.most_sequence_length, std::ssize(held_out_ids) - 1, (made.train_tokens - 1) / 8});
  require(made.sequence_length >= kShortestSequence, ErrorKind::Config, parts_.front().place,
          "the text has too few tokens to train and to evaluate: " + std::to_string(made.train_tokens) +
              " and " + std::to_string(held_out_ids.size()),
          "give more text");
  const std::string predicted = predicted_text(tokenizer, held_out_ids, made.sequence_length);
  made.held_out_bytes = std::ssize(predicted);
  replace_file(made.held_out_text, predicted);
  train.publish();
  held_out.publish();
  return made;
}

}  // namespace zero::tool
