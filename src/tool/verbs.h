#pragma once
// The verbs of `zero`: one file each, and one line in verbs.cpp.

#include <CLI/CLI.hpp>
#include <chrono>
#include <span>
#include <string>

namespace zero::tool {

/// Gets the arguments after the verb and returns the exit code. Errors are thrown: main() prints them.
using VerbFunction = int (*)(int argc, char** argv);

/// What a verb writes to standard output: what was asked for, which must be written, or how it is getting on.
enum class Output { Result, Progress };

struct Verb {
  const char* name;
  const char* help;  // one line, for `zero --help`
  VerbFunction run;
  Output output = Output::Result;
};

std::span<const Verb> verbs();

/// Finds the verb that argv[1] names, runs it, and prints what it throws as one line; the exit code.
int run_tool(int argc, char** argv);

// Keep this list and the table in verbs.cpp in the order of a user's work.
int run_fit(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_config(int argc, char** argv);
int run_convert_config(int argc, char** argv);
int run_plan(int argc, char** argv);
int run_simulate(int argc, char** argv);
int run_pipeline(int argc, char** argv);
int run_train(int argc, char** argv);
int run_report(int argc, char** argv);
int run_eval(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_verify(int argc, char** argv);
int run_consolidate(int argc, char** argv);
int run_launch(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_completion(int argc, char** argv);

/// For CLI::Option::check: a whole number from 1 on.
const CLI::Validator& at_least_one();

/// Parses a verb's arguments (argv[0] is the verb). False: help was asked for and printed, the verb is done.
/// Throws Config, with where help is to be had, for arguments that do not fit.
bool parse(CLI::App& app, int argc, char** argv);

/// Runs the same verb with the same arguments on `ranks` ranks, for verbs that take --ranks; rank 0 alone
/// reports. The ranks are copies of this process, which has LibTorch's third of a second behind it, or run
/// the program anew where a CUDA driver may be in use, which does not survive a fork. `argc` and `argv` as
/// run() got them; `grace`: from asking ranks to end to killing them. Call only where started_by_launcher()
/// is false.
int launch_self(int ranks, int argc, char** argv, std::chrono::milliseconds grace = std::chrono::seconds(5));

/// True in a rank that some launcher has started: it joins instead of starting others.
bool started_by_launcher();

}  // namespace zero::tool
