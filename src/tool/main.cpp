// The `zero` program: finds the verb, runs it, and prints an error as one line.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "verbs.h"
#include "zero/error.h"

namespace {

void print_help(std::ostream& out) {
  out << "zero: train models that do not fit on one device\n\nUsage: zero VERB [ARGS...]   (zero VERB "
         "--help)\n\n";
  for (const auto& verb : zero::tool::verbs())
    out << "  " << verb.name << std::string(16 - std::strlen(verb.name), ' ') << verb.help << "\n";
  out << "\n  --help        this list\n  --version     the version\n";
}

// "rank 2: " in a job of several ranks, unless the text names the rank itself. The launcher of `zero` marks
// lines, and shows once what all ranks say.
std::string rank_prefix(const std::string& text) {
  if (std::getenv("ZERO_LAUNCHER")) return "";
  const char* rank = std::getenv("RANK");
  const char* size = std::getenv("WORLD_SIZE");
  if (!rank || !size || std::atoi(size) <= 1) return "";
  std::string name = std::string("rank ") + rank;
  return text.find(name) == std::string::npos ? name + ": " : "";
}

// LibTorch's errors go on with a stack trace, which tells a user nothing; ours have a line for each problem.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int report(const std::string& text, int code) {
  // One write, so that the lines of several ranks do not mix.
  std::string line = "zero: " + rank_prefix(text) + text + "\n";
  std::cout.flush();
  std::cerr << line << std::flush;
  return code;
}

// A full disk shows itself when the last of the output is written, if not before.
void finish_output() {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  zero::require(written, zero::ErrorKind::Io, "standard output", "cannot write all of it" + why);
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  // "zero help VERB" is "zero VERB --help".
  if (name == "help" && argc > 2) {
    std::string verb = argv[2], option = "--help";
    char* words[] = {argv[0], verb.data(), option.data(), nullptr};
    return run(3, words);
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(std::cout);
    finish_output();
    return 0;
  }
  if (name == "--version") {
    std::cout << "zero " << ZERO_VERSION << "\n";
    finish_output();
    return 0;
  }
  for (const auto& verb : zero::tool::verbs())
    if (name == verb.name) {
      const int code = verb.run(argc - 1, argv + 1);
      // What a run of training says is not its result: that lies in its directory.
      if (verb.output == zero::tool::Output::Result) finish_output();
      return code;
    }
  std::vector<std::string> names;
  for (const auto& verb : zero::tool::verbs()) names.emplace_back(verb.name);
  const std::string nearest = zero::nearest_word(name, names);
  const bool is_near = zero::edit_distance(name, nearest) <= std::max<size_t>(2, name.size() / 3);
  zero::fail(zero::ErrorKind::Config, "zero", "unknown verb \"" + name + "\"",
             is_near ? "did you mean \"" + nearest + "\"?" : "see zero --help");
}

}  // namespace

int zero::tool::run_tool(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const zero::Error& error) {
    bool usage = error.kind() == zero::ErrorKind::Config || error.kind() == zero::ErrorKind::Usage;
    return report(error.what(), usage ? 2 : 1);
  } catch (const std::exception& error) {
    return report(first_line(error.what()), 1);
  }
}

int main(int argc, char** argv) { return zero::tool::run_tool(argc, argv); }
