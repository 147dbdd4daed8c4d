#include "data/documents.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "zero/error.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

bool has_extension(std::string_view name, const std::vector<std::string>& extensions) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return extensions.empty() ||
         std::any_of(extensions.begin(), extensions.end(), [&](const auto& e) { return name.ends_with(e); });
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

int64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

void add_folder(const fs::path& folder, const std::vector<std::string>& extensions,
                std::vector<Document>& out) {
  const size_t before = out.size();
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      std::error_code dangling;
      if (!entry.is_regular_file(dangling)) continue;
      std::string name = entry.path().lexically_relative(folder).generic_string();
      if (!has_extension(name, extensions)) continue;
      out.push_back({.path = entry.path(), .name = std::move(name), .bytes = size_of(entry.path())});
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::Io, error.path1().string(), "cannot walk it: " + error.code().message());
  }
  if (out.size() == before) {
    fail(ErrorKind::Config, folder.string(),
         extensions.empty() ? "the folder holds no file"
                            : "the folder holds no file that ends in " + joined(extensions),
         "name another folder, other extensions or the files themselves");
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(),
            [](const Document& a, const Document& b) { return a.name < b.name; });
}

// A number in [0, 1) that depends on the name alone.
double place_of(const Document& document) {
  return static_cast<double>(XXH3_64bits(document.name.data(), document.name.size()) >> 11) * 0x1p-53;
}

}  // namespace

std::vector<Document> find_documents(const std::vector<fs::path>& inputs,
                                     const std::vector<std::string>& extensions) {
  require(!inputs.empty(), ErrorKind::Config, "tokenize", "no text is given", "name files or folders");
  std::vector<Document> documents;
  for (const auto& input : inputs) {
    std::error_code error;
    const auto status = fs::status(input, error);
    require(fs::exists(status), ErrorKind::Io, input.string(), "cannot read it: " + error.message());
    if (fs::is_directory(status)) {
      add_folder(input, extensions, documents);
    } else {
      documents.push_back(
          {.path = input, .name = input.filename().generic_string(), .bytes = size_of(input), .named = true});
    }
  }
  return documents;
}

void hold_out(std::vector<Document>& documents, double fraction) {
  for (auto& document : documents) document.held_out = place_of(document) < fraction;
  if (documents.size() < 2) return;
  const auto held_out = [](const Document& d) { return d.held_out; };
  const auto by_place = [](const Document& a, const Document& b) { return place_of(a) < place_of(b); };
  if (std::none_of(documents.begin(), documents.end(), held_out)) {
    std::min_element(documents.begin(), documents.end(), by_place)->held_out = true;
  } else if (std::all_of(documents.begin(), documents.end(), held_out)) {
    std::max_element(documents.begin(), documents.end(), by_place)->held_out = false;
  }
}

std::vector<int64_t> held_out_bytes(const std::vector<Document>& documents, const std::vector<int64_t>& sizes,
                                    int64_t most_bytes) {
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place_of(documents[a]) < place_of(documents[b]); });
  std::vector<int64_t> held_out(documents.size(), 0);
  int64_t left = most_bytes;
  for (const size_t i : order) {
    if (sizes[i] <= left) {
      held_out[i] = sizes[i];
      left -= sizes[i];
      continue;
    }
    if (left > most_bytes / 2) held_out[i] = left;
    break;
  }
  return held_out;
}

}  // namespace zero::data
