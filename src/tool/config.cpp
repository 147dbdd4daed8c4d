// zero config --init [FILE] | --schema | --keys | check FILE
#include "zero/config.h"

#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "base/output_file.h"
#include "verbs.h"
#include "zero/config_help.h"
#include "zero/error.h"

namespace zero::tool {
namespace {

struct Arguments {
  std::string init, file;
  bool all = false, schema = false, keys = false;
  int ranks = 0;
  std::vector<std::string> overrides;
};

void write_template(const std::string& path, bool all) {
  if (path.empty()) {
    std::cout << config_template(all);
    return;
  }
  require(!std::filesystem::exists(path), ErrorKind::Config, path, "something stands there already",
          "name a file that does not exist");
  replace_file(path, config_template(all));
  std::cout << path << ": written; zero config check " << path << " reads it\n";
}

void check(const Arguments& arguments) {
  Config config = load_config(arguments.file, arguments.overrides);
  if (arguments.ranks > 0) config = resolve(std::move(config), arguments.ranks);
  for (const std::string& note : config.origin.notes) std::cerr << "note: " << note << "\n";
  std::cout << to_json(config);
}

}  // namespace

int run_config(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "zero config --init [FILE] [--all]\n"
      "zero config check FILE [--set KEY=VALUE]... [--ranks N]\n"
      "zero config --schema | --keys\n"
      "Writes a commented configuration, checks one and prints what it comes to, or says which keys there "
      "are.");
  CLI::Option* init =
      app.add_option("--init", arguments.init, "a configuration to start from, into FILE if given")
          ->expected(0, 1);
  app.add_flag("--all", arguments.all, "with --init: every other key too, commented out at its default")
      ->needs(init);
  app.add_flag("--schema", arguments.schema, "a JSON schema, for editors (\"$schema\" in the file names it)");
  app.add_flag("--keys", arguments.keys, "the path of every key, a line each");
  CLI::App* checking = app.add_subcommand("check", "check a file and print the effective configuration");
  checking->add_option("FILE", arguments.file)->required();
  checking->add_option("--set", arguments.overrides, "section.key=value, after the file");
  checking->add_option("--ranks", arguments.ranks, "fill in what follows from so many ranks, batch sizes too")
      ->check(at_least_one());
  if (!parse(app, argc, argv)) return 0;
  const int asked = (init->count() > 0) + arguments.schema + arguments.keys + checking->parsed();
  require(asked == 1, ErrorKind::Config, "zero config",
          asked == 0 ? "nothing is asked for" : "several things are asked for at once",
          "give one of --init, --schema, --keys or check FILE");
  if (init->count() > 0) write_template(arguments.init, arguments.all);
  if (arguments.schema) std::cout << config_schema();
  if (arguments.keys)
    for (const ConfigKey& key : config_keys()) std::cout << key.path << "\n";
  if (checking->parsed()) check(arguments);
  return 0;
}

}  // namespace zero::tool
