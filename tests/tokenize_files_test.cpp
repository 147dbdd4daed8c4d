// From texts to token files: what is read, what is held out, and what is refused.
#include "zero/tokenize_files.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>

#include "data/documents.h"
#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"
#include "zero/token_file.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using testing::TemporaryDirectory;

const Tokenizer& tokenizer() {
  static const Tokenizer tiny = Tokenizer::load(ZERO_TEST_DATA "/golden/tokenizer/tiny.json");
  return tiny;
}

std::string gzip(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(packed.data());
  z.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  packed.resize(z.total_out);
  deflateEnd(&z);
  return packed;
}

// What a token file says, documents parted by '|'.
std::string text_of(const fs::path& path) {
  const TokenFile file = TokenFile::open(path);
  file.verify();
  file.require_vocabulary(tokenizer().vocabulary());
  std::vector<int32_t> ids(file.size());
  file.read(0, ids);
  std::string text;
  for (int32_t id : ids)
    text += id == tokenizer().end_of_text() ? "|" : tokenizer().decode(std::span(&id, 1));
  return text;
}

constexpr std::string_view kOld = "ZEROTOK\nold";  // begins as a token file, which may be replaced

class TokenizeFiles : public ::testing::Test {
 protected:
  TokenizeResult run(const std::vector<fs::path>& inputs, const TokenizeOptions& options = {}) {
    return tokenize_files(inputs, tokenizer(), out_, options);
  }
  void refused(ErrorKind kind, const std::vector<std::string>& texts, const std::vector<fs::path>& inputs,
               const TokenizeOptions& options = {}) {
    folder_.write("out/tokens", kOld);
    expect_error(kind, texts, [&] { run(inputs, options); });
    EXPECT_EQ(testing::read_bytes(out_), kOld);
    EXPECT_EQ(std::distance(fs::directory_iterator(out_.parent_path()), {}), 1);
  }

  TemporaryDirectory folder_;
  fs::path out_ = folder_.write("out/tokens", ""), held_out_ = folder_.path() / "out" / "held";
};

TEST_F(TokenizeFiles, ReadsFilesInOrder) {
  const auto b = folder_.write("b.txt", "bee"), a = folder_.write("a.bin", "ay \u00e9");
  const auto result = run({b, a, b});
  EXPECT_EQ(text_of(out_), "bee|ay \u00e9|bee|");
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.tokens, TokenFile::open(out_).size());
  EXPECT_EQ(result.text_bytes, 11);
  EXPECT_EQ(result.held_out_documents, 0);
}

TEST_F(TokenizeFiles, WalksFoldersByNameAndExtension) {
  folder_.write("in/z.txt", "z");
  folder_.write("in/b/two.rst.gz", gzip("two"));
  folder_.write("in/b.md", "md");
  folder_.write("in/b/one.rst", "one");
  folder_.write("in/program.c", "no");
  folder_.write("in/text.gz", gzip("no"));
  folder_.write("in/empty.txt", "");
  fs::create_symlink(folder_.path() / "nowhere", folder_.path() / "in/dangling.txt");
  const auto result = run({folder_.path() / "in"});
  EXPECT_EQ(text_of(out_), "md|one|two|z|");
  EXPECT_EQ(result.empty_documents, 1);
  EXPECT_EQ(run({folder_.path() / "in/"}, {.extensions = {".c"}}).documents, 1);
  EXPECT_EQ(run({folder_.path() / "in"}, {.extensions = {}}).documents, 6);
}

TEST_F(TokenizeFiles, UnpacksGzip) {
  std::string long_text;
  for (int i = 0; i < 300000; ++i) long_text += "line " + std::to_string(i) + "\n";
  run({folder_.write("a", gzip(long_text))});
  EXPECT_EQ(text_of(out_), long_text + "|");
  run({folder_.write("a", gzip("one ") + gzip("two"))});
  EXPECT_EQ(text_of(out_), "one two|");
  const std::string packed = gzip(long_text);
  const auto cut = folder_.write("cut.gz", packed.substr(0, packed.size() / 2));
  refused(ErrorKind::Corrupt, {"cut.gz", "ends too early"}, {cut});
  refused(ErrorKind::Corrupt, {"cut.gz", "ends too early"},
          {folder_.write("cut.gz", packed.substr(0, packed.size() - 1))});
  std::string changed = packed;
  changed[changed.size() - 6] ^= 1;  // in the checksum
  refused(ErrorKind::Corrupt, {"bad.gz", "broken gzip data"}, {folder_.write("bad.gz", changed)});
  refused(ErrorKind::Corrupt, {"bad.gz", "broken gzip data"},
          {folder_.write("bad.gz", gzip("a") + "trailing")});
  refused(ErrorKind::Unsupported, {"big.gz", "more than 1000 bytes"}, {folder_.write("big.gz", packed)},
          {.most_document_bytes = 1000});
}

TEST_F(TokenizeFiles, HoldsOutDocumentsByTheirPath) {
  for (int i = 0; i < 400; ++i)
    folder_.write("in/" + std::to_string(i) + ".txt", "document" + std::to_string(i));
  const TokenizeOptions options{.held_out_file = held_out_, .held_out_fraction = 0.1};
  const auto result = run({folder_.path() / "in"}, options);
  EXPECT_EQ(result.documents + result.held_out_documents, 400);
  EXPECT_GT(result.held_out_documents, 15);
  EXPECT_LT(result.held_out_documents, 75);
  EXPECT_EQ(result.held_out_tokens, TokenFile::open(held_out_).size());
  const std::string held = text_of(held_out_), kept = text_of(out_);
  // The choice is the same for the same paths elsewhere, and for fewer of them.
  fs::rename(folder_.path() / "in", folder_.path() / "moved");
  run({folder_.path() / "moved"}, options);
  EXPECT_EQ(text_of(held_out_), held);
  for (int i = 200; i < 400; ++i) fs::remove(folder_.path() / ("moved/" + std::to_string(i) + ".txt"));
  run({folder_.path() / "moved"}, options);
  for (int i = 0; i < 200; ++i) {
    const std::string document = "document" + std::to_string(i) + "|";
    EXPECT_EQ(held.find(document) == held.npos, text_of(held_out_).find(document) == std::string::npos) << i;
  }
}

TEST_F(TokenizeFiles, BothFilesGetADocument) {
  std::vector<fs::path> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(folder_.write(std::to_string(i) + ".txt", "text"));
  for (double fraction : {1e-9, 1 - 1e-9}) {
    const auto result = run(inputs, {.held_out_file = held_out_, .held_out_fraction = fraction});
    EXPECT_EQ(result.held_out_documents, fraction < 0.5 ? 1 : 2);
    EXPECT_EQ(result.documents, fraction < 0.5 ? 2 : 1);
  }
}

TEST_F(TokenizeFiles, CutsASingleDocumentAtALine) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line number " + std::to_string(i) + "\n";
  run({folder_.write("book.txt", text)}, {.held_out_file = held_out_, .held_out_fraction = 0.2});
  const std::string kept = text_of(out_), held = text_of(held_out_);
  EXPECT_EQ(kept.substr(0, kept.size() - 1) + held.substr(0, held.size() - 1), text);
  EXPECT_TRUE(held.starts_with("line number 8")) << held;
  // Without a line's end, between two characters.
  run({folder_.write("one.txt", "\u00e9\u00e9\u00e9")},
      {.held_out_file = held_out_, .held_out_fraction = 0.5});
  EXPECT_EQ(text_of(out_), "\u00e9\u00e9|");
  EXPECT_EQ(text_of(held_out_), "\u00e9|");
}

TEST_F(TokenizeFiles, TellsItsProgress) {
  const auto a = folder_.write("a.txt", "first text"), b = folder_.write("b.txt", "second");
  std::vector<TokenizeProgress> told;
  const auto result = run({a, b}, {.progress = [&](const TokenizeProgress& p) { told.push_back(p); }});
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].documents_done, 1);
  EXPECT_EQ(told[0].bytes_done, 10);
  EXPECT_EQ(told[1].documents_done, told[1].documents);
  EXPECT_EQ(told[1].bytes_done, told[1].bytes);
  EXPECT_EQ(told[1].tokens, result.tokens);
}

TEST_F(TokenizeFiles, EndsDocumentsAsTold) {
  run({folder_.write("a.txt", "ab")}, {.end_of_text = tokenizer().id_of("!")});
  EXPECT_EQ(text_of(out_), "ab!");
  refused(ErrorKind::Config, {"end-of-text token 2000", "vocabulary of 2000"}, {folder_.path() / "a.txt"},
          {.end_of_text = 2000});
}

TEST_F(TokenizeFiles, RefusesBadTextAndLeavesWhatWasThere) {
  const auto good = folder_.write("good.txt", "good"), empty = folder_.write("empty.txt", "");
  refused(ErrorKind::Config, {"no text"}, {});
  refused(ErrorKind::Io, {"missing.txt", "No such file"}, {good, folder_.path() / "missing.txt"});
  refused(ErrorKind::Config, {"empty.txt", "empty"}, {good, empty});
  refused(ErrorKind::Corrupt, {"latin1.txt", "byte 4", "UTF-8"},
          {good, folder_.write("latin1.txt", "caf \xe9 x")});
  refused(ErrorKind::Corrupt, {"latin1.txt", "byte 4"}, {folder_.path() / "latin1.txt"},
          {.held_out_file = held_out_, .held_out_fraction = 0.5});
  fs::create_directory(folder_.path() / "void");
  refused(ErrorKind::Config, {"void", ".txt"}, {folder_.path() / "void"});
  folder_.write("empties/a.txt", ""), folder_.write("empties/b.txt", "");
  refused(ErrorKind::Config, {"all texts are empty"}, {folder_.path() / "empties"});
  refused(ErrorKind::Unsupported, {"good.txt", "more than 3 bytes"}, {good}, {.most_document_bytes = 3});
}

TEST_F(TokenizeFiles, NeverReplacesAnythingButTokenFiles) {
  const auto text = folder_.write("text.txt", "a text");
  const auto json = folder_.write("tokenizer.json", "{}");
  for (const auto& path : {text, json})
    expect_error(ErrorKind::Config, {path.string(), "it exists and is not a token file"},
                 [&] { tokenize_files({text}, tokenizer(), path); });
  expect_error(ErrorKind::Config, {"tokenizer.json", "it exists and is not a token file"}, [&] {
    tokenize_files({text}, tokenizer(), out_, {.held_out_file = json, .held_out_fraction = 0.5});
  });
  EXPECT_EQ(testing::read_bytes(text), "a text");
  EXPECT_EQ(testing::read_bytes(json), "{}");
  run({text});
  run({text});
  EXPECT_EQ(text_of(out_), "a text|");
}

TEST_F(TokenizeFiles, RefusesContradictoryOptions) {
  const std::vector<fs::path> good{folder_.write("good.txt", "good")};
  refused(ErrorKind::Config, {"fraction of 1.0"}, good, {.held_out_file = held_out_, .held_out_fraction = 1});
  refused(ErrorKind::Config, {"fraction of -"}, good,
          {.held_out_file = held_out_, .held_out_fraction = -0.1});
  refused(ErrorKind::Config, {"nan, expected"}, good,
          {.held_out_file = held_out_, .held_out_fraction = 0.0 / 0.0});
  refused(ErrorKind::Config, {"go together"}, good, {.held_out_fraction = 0.1});
  refused(ErrorKind::Config, {"go together"}, good, {.held_out_file = held_out_});
  refused(ErrorKind::Config, {"both the token file"}, good,
          {.held_out_file = out_, .held_out_fraction = 0.1});
}

// A few large files among many small ones take no more than was asked for, whichever are drawn.
TEST(HeldOutBytes, AreBoundedWhateverTheSizes) {
  for (int first_large = 0; first_large < 40; ++first_large) {
    std::vector<data::Document> documents;
    std::vector<int64_t> sizes;
    for (int i = 0; i < 40; ++i) {
      documents.push_back({.path = {}, .name = std::to_string(i) + ".txt"});
      sizes.push_back(i == first_large || i == (first_large + 7) % 40 ? 1'000'000 : 1000 + i);
    }
    for (const int64_t most : {300, 20'000, 200'000}) {
      const auto held_out = data::held_out_bytes(documents, sizes, most);
      int64_t all = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_GE(held_out[i], 0);
        EXPECT_LE(held_out[i], sizes[i]);
        all += held_out[i];
      }
      EXPECT_LE(all, most);
      EXPECT_GE(all, most / 2);
    }
  }
  // Whole documents where they fit.
  const std::vector<data::Document> three = {
      {.path = {}, .name = "a"}, {.path = {}, .name = "b"}, {.path = {}, .name = "c"}};
  const auto whole = data::held_out_bytes(three, {100, 100, 100}, 220);
  EXPECT_EQ(std::ranges::count(whole, 100), 2);
  EXPECT_EQ(std::ranges::count(whole, 0), 1);
}

}  // namespace
}  // namespace zero
