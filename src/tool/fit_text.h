#pragma once
// Own text made ready for training: split, a vocabulary of its own, token files.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zero::tool {

struct FitTextOptions {
  std::vector<std::filesystem::path> inputs;            // files, and folders with all texts below them
  std::vector<std::string> extensions;                  // that count in folders
  std::optional<std::filesystem::path> tokenizer = {};  // to use; none: a vocabulary is trained
  int64_t most_sequence_length = 128;                   // tokens
};

/// Where it lies, and how much it is.
struct FitText {
  std::string train, held_out;  // token files
  std::string tokenizer;        // directory
  std::string held_out_text;    // the bytes that the held-out tokens stand for, whole samples of them
  int64_t train_bytes = 0, held_out_bytes = 0;
  int64_t train_tokens = 0;
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;  // tokens of a sample
};

/// Texts in memory, split: with 20 documents or more whole ones are held out, otherwise the end of each.
class FitDocuments {
 public:
  /// Reads and checks; writes nothing. Throws Config (nothing to read, an empty or binary file, too little
  /// text), Io, Corrupt (not UTF-8).
  explicit FitDocuments(const FitTextOptions& options);

  /// Trains the vocabulary and writes all files into `directory`, which it makes.
  FitText write(const std::filesystem::path& directory) const;

 private:
  struct Part {
    std::string place, text;
    bool held_out;
  };
  std::string write_tokenizer(const std::filesystem::path& directory) const;

  FitTextOptions options_;
  std::vector<Part> parts_;
  int64_t train_bytes_ = 0;
};

}  // namespace zero::tool
