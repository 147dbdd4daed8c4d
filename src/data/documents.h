#pragma once
// Which files to tokenize, and which of them to hold out.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace zero::data {

struct Document {
  std::filesystem::path path;
  std::string name;    // below the input it was found in, with '/': the same on every machine
  int64_t bytes = 0;   // on disk
  bool named = false;  // given itself, not found in a folder
  bool held_out = false;
};

/// The files of `inputs`, those of a folder sorted by name. Throws Io for an input that is not there, Config
/// for a folder without a fitting file or no input at all.
std::vector<Document> find_documents(const std::vector<std::filesystem::path>& inputs,
                                     const std::vector<std::string>& extensions);

/// Marks about `fraction` of the documents as held out, at least one and never all of two or more.
void hold_out(std::vector<Document>& documents, double fraction);

/// What to hold out of texts of those sizes, at most `most_bytes` in all: whole documents, in the order of
/// hold_out, up to the first that does not fit. Of that one the last bytes are, while less than half is
/// found. Returns how many bytes at each document's end are held out.
std::vector<int64_t> held_out_bytes(const std::vector<Document>& documents, const std::vector<int64_t>& sizes,
                                    int64_t most_bytes);

}  // namespace zero::data
