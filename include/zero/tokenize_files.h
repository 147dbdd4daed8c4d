#pragma once
// Texts to token files: every document's tokens followed by the end-of-text token.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zero/tokenizer.h"

namespace zero {

struct TokenizeProgress {
  int64_t documents_done = 0, documents = 0;
  int64_t bytes_done = 0, bytes = 0;  // on disk, so of packed files the packed size
  int64_t tokens = 0;                 // written so far, to both files
};

struct TokenizeOptions {
  /// In folders, only files whose name ends in one of these, or in one of these and ".gz"; empty: every file.
  /// Files that are named themselves are always read.
  std::vector<std::string> extensions = {".txt", ".md", ".rst"};

  /// Second file for a part of the documents; none when empty.
  std::filesystem::path held_out_file = {};
  /// Share of the documents that goes there, chosen by a hash of their path below the folder given, so that
  /// the choice does not depend on the machine or on other documents. When that leaves one file empty, one
  /// document changes sides; a single document is cut at a line's end, and its last part held out.
  double held_out_fraction = 0;

  /// The token after each document; none: the tokenizer's end-of-text.
  std::optional<int32_t> end_of_text = {};

  /// Longest document, unpacked: it is held in memory while it is tokenized.
  uint64_t most_document_bytes = uint64_t{4} << 30;

  /// Called after each document.
  std::function<void(const TokenizeProgress&)> progress = {};
};

struct TokenizeResult {
  int64_t documents = 0, tokens = 0;                    // in the first file
  int64_t held_out_documents = 0, held_out_tokens = 0;  // in the second
  int64_t empty_documents = 0;                          // found in folders and left out
  int64_t text_bytes = 0;                               // unpacked
};

/// Reads `inputs` (files, or folders with all below them, in order of their paths; gzip is unpacked) and
/// writes one token file, or two. Both appear when everything is done; on an error neither does and old ones
/// stay. Throws Config (nothing to read, an empty file named itself, a fraction outside of [0, 1), no
/// end-of-text token), Io, Corrupt (not UTF-8: names file and byte; broken gzip), Unsupported (a document
/// that is too long).
TokenizeResult tokenize_files(const std::vector<std::filesystem::path>& inputs, const Tokenizer& tokenizer,
                              const std::filesystem::path& out_file, const TokenizeOptions& options = {});

}  // namespace zero
