#pragma once
// libsentencepiece lives in a plugin: it exports names that LibTorch exports too, with other things behind
// them (FLAGS_minloglevel: a flag object here, an int there), and in one scope its constructors would write
// over LibTorch's. No symbol of ours crosses either: what is passed are these types and those of the standard
// library.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zero::data {

class SentencePieceModel {
 public:
  enum class Kind { Text, Control, Unknown, Byte };

  virtual ~SentencePieceModel() = default;
  virtual int size() const = 0;
  virtual Kind kind(int id) const = 0;
  virtual std::string piece(int id) const = 0;
  /// Appends to `ids`; returns what went wrong, "" where nothing did.
  virtual std::string encode(std::string_view text, std::vector<int>& ids) const = 0;
};

inline constexpr const char* kSentencePiecePlugin = "libzero_sentencepiece.so";
/// The number changes whenever this file does: a plugin of another version is then not taken.
inline constexpr const char* kSentencePieceFactory = "zero_sentencepiece_model_1";

/// The plugin's only function. Of the bytes of a model makes `model`, or says in `problem` why it is none.
using SentencePieceFactory = void(const std::string_view* bytes, std::unique_ptr<SentencePieceModel>* model,
                                  std::string* problem);

}  // namespace zero::data
