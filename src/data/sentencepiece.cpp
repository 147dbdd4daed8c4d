// SentencePiece models through libsentencepiece, which a plugin keeps from LibTorch.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/plugin.h"
#include "data/sentencepiece/plugin.h"
#include "data/text_reader.h"
#include "data/tokenizer_impl.h"
#include "data/tokenizer_spec.h"
#include "zero/error.h"

namespace zero::data {
namespace {

constexpr uint64_t kMostModelBytes = uint64_t{1} << 28;
constexpr std::string_view kSpace = "\xe2\x96\x81";          // as models spell a space
constexpr std::string_view kUnknownText = " \xe2\x81\x87 ";  // as the library decodes what is unknown

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

using Kind = SentencePieceModel::Kind;

std::unique_ptr<SentencePieceModel> make_model(std::string_view bytes, const std::string& place) {
  // Looked for once; a process that could not find it then will not later.
  static const detail::PluginFunction plugin =
      detail::load_plugin(kSentencePiecePlugin, kSentencePieceFactory, detail::PluginScope::Own);
  require(
      plugin.function, ErrorKind::Unsupported, place, "a SentencePiece model: " + plugin.problem,
      "install libsentencepiece, and put libzero_sentencepiece.so beside libzero.so or name its folder in "
      "ZERO_PLUGIN_DIR");
  std::unique_ptr<SentencePieceModel> model;
  std::string problem;
  reinterpret_cast<SentencePieceFactory*>(plugin.function)(&bytes, &model, &problem);
  require(model && model->size() > 0, ErrorKind::Corrupt, place,
          "it is no SentencePiece model: " + one_line(problem));
  return model;
}

class SentencePiece : public Tokenizer::Impl {
 public:
  explicit SentencePiece(const std::filesystem::path& path) : place_(path.string()) {
    model_ = make_model(read_file(path, kMostModelBytes), place_);
    require(model_->size() <= kMostTokens, ErrorKind::Corrupt, place_, "more tokens than a model can have");
    std::vector<std::optional<std::string>> spellings;
    for (int id = 0; id < model_->size(); ++id) {
      spellings.emplace_back(model_->piece(id));
      bytes_.push_back(text_of(id, *spellings.back()));
      const std::string& key = model_->kind(id) == Kind::Control ? *spellings.back() : bytes_.back();
      ids_.emplace(key, id);
    }
    vocabulary_ = vocabulary_of(spellings);
  }

  void encode(std::string_view text, const Sink& sink) const override {
    std::vector<int> ids;
    const std::string problem = model_->encode(text, ids);
    require(problem.empty(), ErrorKind::Internal, place_, one_line(problem));
    const std::vector<int32_t> found(ids.begin(), ids.end());
    sink(found);
  }

  const std::string* bytes_of(int32_t id) const override {
    return id < 0 || id >= std::ssize(bytes_) ? nullptr : &bytes_[id];
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  std::optional<int32_t> id_of(std::string_view bytes) const override {
    const auto found = ids_.find(std::string(bytes));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::string text_of(int id, const std::string& piece) const {
    const Kind kind = model_->kind(id);
    if (kind == Kind::Control) return {};
    if (kind == Kind::Unknown) return std::string(kUnknownText);
    if (kind == Kind::Byte) return byte_of(piece);
    std::string text;
    for (size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpace.size(), kSpace) == 0;
      text += space ? ' ' : piece[at];
      at += space ? kSpace.size() : 1;
    }
    return text;
  }

  // "<0x1F>"
  std::string byte_of(const std::string& piece) const {
    unsigned value = 0;
    const char* end = piece.data() + piece.size();
    const bool fits = piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>') &&
                      std::from_chars(piece.data() + 3, end - 1, value, 16).ptr == end - 1;
    require(fits, ErrorKind::Corrupt, place_, "a byte spelled \"" + one_line(piece) + "\"");
    return std::string(1, static_cast<char>(value));
  }

  std::string place_;
  std::unique_ptr<SentencePieceModel> model_;
  std::vector<std::string> bytes_;  // by id
  std::unordered_map<std::string, int32_t> ids_;
  Vocabulary vocabulary_;
};

}  // namespace

std::shared_ptr<Tokenizer::Impl> load_sentencepiece(const std::filesystem::path& path) {
  return std::make_shared<SentencePiece>(path);
}

}  // namespace zero::data
