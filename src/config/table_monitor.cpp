// What a run shows beside its metrics, by DeepSpeed's keys: monitors and tables.

#include "config/rows.h"

// See table_own.cpp.
#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

Row off_monitor(std::string name, std::vector<std::string> others, std::string doc) {
  return off(OffSection{std::move(name), "enabled", {false}, std::move(others), std::move(doc), true});
}

// null is DeepSpeed's word for a section that is not there.
Row or_absent(Row row) {
  row.read = [read = row.read](Reader& reader, const Value& value, const std::string& path, Config& config) {
    if (value.kind != Value::Kind::Null) read(reader, value, path, config);
  };
  return row;
}

// DeepSpeed switches it on when the section stands there, unless it says enabled: false.
Row on_by_presence(Row row, bool& (*at)(Config&)) {
  row.read = [read = row.read, at](Reader& reader, const Value& value, const std::string& path,
                                   Config& config) {
    at(config) = true;
    read(reader, value, path, config);
  };
  return or_absent(std::move(row));
}

Rows file_monitor_rows() {
  const std::string path_doc =
      "directory; \"\": of that name in the run's (DeepSpeed: in the home directory)";
  return {or_absent(section<Config>(
              "tensorboard",
              {field("enabled", ZERO_AT(logging.tensorboard.enabled), boolean(),
                     "event files that TensorBoard opens"),
               field("output_path", ZERO_AT(logging.tensorboard.output_path), text(), path_doc),
               field("job_name", ZERO_AT(logging.tensorboard.job_name), text(), "directory in it")},
              true)),
          or_absent(section<Config>(
              "csv_monitor",
              {field("enabled", ZERO_AT(logging.csv.enabled), boolean(), "a table for each figure"),
               field("output_path", ZERO_AT(logging.csv.output_path), text(), path_doc),
               field("job_name", ZERO_AT(logging.csv.job_name), text(), "directory in it")},
              true))};
}

Rows table_rows() {
  return {
      on_by_presence(
          section<Config>("comms_logger",
                          {field("enabled", ZERO_AT(logging.comms_logger), boolean(),
                                 "at the end, what each axis sent by each operation"),
                           hint("verbose", boolean(), false, "collectives are counted, not listed"),
                           hint("prof_all", boolean(), true, "all operations are counted"),
                           hint("debug", boolean(), false, "a trace shows every call (zero train --trace)")},
                          true),
          ZERO_AT(logging.comms_logger)),
      field("wall_clock_breakdown", ZERO_AT(logging.wall_clock_breakdown), boolean(),
            "with each line of progress, where the time of its steps went"),
      field("memory_breakdown", ZERO_AT(logging.memory_breakdown), boolean(),
            "with each line of progress, memory by purpose and tier"),
      field("dump_state", ZERO_AT(logging.dump_state), boolean(),
            "the effective configuration, at the start"),
      hint<std::string>("log_level", text(), "", "there is one level")};
}

Rows off_rows() {
  return {off(OffSection{"flops_profiler",
                         "enabled",
                         {false},
                         {"recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed",
                          "output_file"},
                         "no FLOPs profiler"}),
          off_monitor("wandb", {"group", "team", "project"}, "`wandb sync` takes what tensorboard writes"),
          off_monitor("comet",
                      {"samples_log_interval", "project", "workspace", "api_key", "experiment_name",
                       "experiment_key", "online", "mode"},
                      "metrics go to logging.metrics_file")};
}

}  // namespace

Rows monitor_rows() {
  Rows rows;
  for (Rows part : {file_monitor_rows(), table_rows(), off_rows()})
    for (Row& row : part) rows.push_back(std::move(row));
  return rows;
}

}  // namespace zero::config
