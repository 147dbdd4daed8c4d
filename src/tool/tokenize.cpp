// zero tokenize PATH... --tokenizer DIR --out FILE
#include <unistd.h>

#include <chrono>
#include <iostream>

#include "text.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/tokenize_files.h"

namespace zero::tool {
namespace {

/// A line that is drawn anew on a terminal; in a log one every few seconds.
class ProgressLine {
 public:
  void show(const TokenizeProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const auto wait = std::chrono::milliseconds(terminal_ ? 100 : 5000);
    if (progress.documents_done < progress.documents && now - shown_ < wait) return;
    shown_ = now;
    const int64_t percent = progress.bytes > 0 ? progress.bytes_done * 100 / progress.bytes : 100;
    std::cerr << (terminal_ ? "\r" : "") << "tokenizing: " << percent << "%, " << progress.documents_done
              << " of " << progress.documents << " documents, " << progress.tokens << " tokens"
              << (terminal_ ? "\x1b[K" : "\n") << std::flush;
    drawn_ = terminal_;
  }
  ~ProgressLine() {
    if (drawn_) std::cerr << std::endl;
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

void print(const TokenizeResult& result, const std::string& out, const std::string& held_out) {
  std::cout << out << ": " << result.tokens << " tokens of " << result.documents << " documents\n";
  if (!held_out.empty())
    std::cout << held_out << ": " << result.held_out_tokens << " tokens of " << result.held_out_documents
              << " documents\n";
  if (result.empty_documents > 0) std::cout << "left out " << result.empty_documents << " empty documents\n";
  std::cout.flush();
}

}  // namespace

int run_tokenize(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string tokenizer, out, held_out, extensions;
  TokenizeOptions options;
  CLI::App app(
      "zero tokenize PATH... --tokenizer DIR --out FILE\n"
      "Texts (files, or folders with all below them; gzip is unpacked) to a token file, each document "
      "followed by\n"
      "the tokenizer's end-of-text token.");
  app.add_option("paths", paths, "files and folders")->required();
  app.add_option("--tokenizer", tokenizer,
                 "tokenizer.json, or a directory with it or vocab.json and merges.txt")
      ->required();
  app.add_option("--out", out, "token file to write")->required();
  app.add_option("--held-out", held_out, "second file, for a part of the documents");
  app.add_option("--held-out-fraction", options.held_out_fraction, "that part, 0 to 1 [0]");
  app.add_option("--extensions", extensions,
                 "which files of folders count, with .gz behind too; \"\" for all [.txt,.md,.rst]");
  if (!parse(app, argc, argv)) return 0;

  require(held_out.empty() == (options.held_out_fraction == 0), ErrorKind::Config, "--held-out",
          "--held-out and --held-out-fraction need each other", "give both or none");
  if (app.count("--extensions") > 0) options.extensions = words_of(extensions);
  options.held_out_file = held_out;
  const std::vector<std::filesystem::path> inputs(paths.begin(), paths.end());
  const Tokenizer loaded = Tokenizer::load(tokenizer);
  TokenizeResult result;
  {
    ProgressLine line;
    options.progress = [&](const TokenizeProgress& progress) { line.show(progress); };
    result = tokenize_files(inputs, loaded, out, options);
  }
  print(result, out, held_out);
  return 0;
}

}  // namespace zero::tool
