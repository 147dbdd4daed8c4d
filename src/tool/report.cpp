// zero report RUN... [--out FILE]
#include <filesystem>
#include <iostream>
#include <vector>

#include "base/output_file.h"
#include "report/page.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

bool is_page(std::string_view head) { return head.starts_with("<!doctype html>"); }

// A run whose data or model has moved since is reported without its plan, which says why.
std::string plan_of(const std::filesystem::path& run, int ranks) {
  try {
    PlanRequest request;
    request.config = (run / "config.json").string();
    request.ranks = ranks;
    return answer(request, trained_spec, tensor_part).text;
  } catch (const Error& error) {
    return std::string("not planned: ") + error.what() + "\n";
  }
}

}  // namespace

int run_report(int argc, char** argv) {
  std::vector<std::string> directories;
  std::string out;
  int ranks = 0;
  CLI::App app(
      "zero report RUN... [--out FILE]\n"
      "One HTML file that loads nothing: curves of the runs over each other, what they came to, their "
      "events, "
      "plans and configurations.");
  app.add_option("runs", directories, "run directories")->required();
  app.add_option("-o,--out", out, "the file [RUN/report.html of the first]");
  app.add_option("-n,--ranks", ranks, "ranks to plan for [parallel.ranks, or 1]")->check(at_least_one());
  if (!parse(app, argc, argv)) return 0;
  if (out.empty()) out = (std::filesystem::path(directories.front()) / "report.html").string();
  const OutputKind kind{"a report", is_page};
  require_replaceable(out, kind);
  std::vector<report::RunOnPage> runs;
  for (const std::string& directory : directories)
    runs.push_back({report::read_run(directory), plan_of(directory, ranks)});
  replace_file(out, report::page(runs));
  std::cout << out << ": " << runs.size() << (runs.size() == 1 ? " run" : " runs") << "\n";
  return 0;
}

}  // namespace zero::tool
