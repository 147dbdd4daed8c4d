// zero launch --ranks N [--] PROGRAM ARGS...
#include "zero/launch.h"

#include "verbs.h"
#include "zero/error.h"

namespace zero::tool {

int run_launch(int argc, char** argv) {
  LaunchOptions options;
  int grace_seconds = 5;
  CLI::App app(
      "zero launch --ranks N [OPTIONS] [--] PROGRAM ARGS...\n"
      "Starts local ranks of a program. Each finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
      "MASTER_PORT\n"
      "in its environment. Lines that all ranks print appear once, others are marked with their rank.");
  app.add_option("-n,--ranks", options.ranks, "how many ranks to start")->required()->check(at_least_one());
  app.add_option("--grace", grace_seconds, "seconds from asking ranks to end to killing them [5]")
      ->check(CLI::Range(0, 86400));
  app.add_flag("--lead", options.lead_rank_reports,
               "rank 0 writes to the terminal itself, at once and unmarked");
  app.prefix_command();
  if (!parse(app, argc, argv)) return 0;
  options.command = app.remaining();
  if (!options.command.empty() && options.command[0] == "--") options.command.erase(options.command.begin());
  require(!options.command.empty(), ErrorKind::Config, "zero launch", "no program given",
          "name it after the options: zero launch --ranks 2 -- ./program");
  require(options.command[0][0] != '-', ErrorKind::Config, "zero launch",
          "unknown option " + options.command[0], "see zero launch --help");
  options.grace = std::chrono::seconds(grace_seconds);
  return launch(options);
}

}  // namespace zero::tool
