// What a run shows beside its metrics, by DeepSpeed's keys: monitors and tables.

#include "config/rows.h"

// See table_own.cpp.
#define ZERO_AT(path) (+[](Config & config) -> auto& { return config.path; })

namespace zero::config {

namespace {

Row off_monitor(std::string name, std::vector<std::string> others, std::string doc, std::string instead) {
  return off(OffSection{.name = std::move(name),
                        .switch_key = "enabled",
                        .accepted = {false},
                        .others = std::move(others),
                        .doc = std::move(doc),
                        .auto_is_default = true,
                        .instead = std::move(instead)});
}

Format<std::string> text_or_null() { return null_as(std::string(), text()); }

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
              true)),
          or_absent(
              section<Config>("wandb",
                              {field("enabled", ZERO_AT(logging.wandb.enabled), boolean(),
                                     "an offline run of W&B in the run's directory, for `wandb sync`"),
                               field("team", ZERO_AT(logging.wandb.team), text_or_null(), "the run's entity"),
                               field("group", ZERO_AT(logging.wandb.group), text_or_null(), "of runs"),
                               field("project", ZERO_AT(logging.wandb.project), nonempty_text(), "project")},
                              true))};
}

Row flops_profiler_row() {
  return or_absent(section<Config>(
      "flops_profiler",
      {field("enabled", ZERO_AT(logging.flops.enabled), boolean(),
             "floating-point operations, parameters and time of one step by module, of rank 0"),
       hint("recompute_fwd_factor", number_at_least(0), 0.0, "what is computed again is counted"),
       field("profile_step", ZERO_AT(logging.flops.profile_step), integer(1), "1 is the first"),
       field("module_depth", ZERO_AT(logging.flops.module_depth), integer(-1),
             "rows of modules down to it; 0: the model; -1: all"),
       field("top_modules", ZERO_AT(logging.flops.top_modules), integer(1),
             "modules of each depth that have the most"),
       field("detailed", ZERO_AT(logging.flops.detailed), boolean(), "a row for each module"),
       field("output_file", ZERO_AT(logging.flops.output_file), text_or_null(),
             "a file for it; null: with the lines of progress")},
      true));
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
      flops_profiler_row(),
      hint<std::string>("log_level", text(), "", "there is one level")};
}

Rows off_rows() {
  return {off_monitor("comet",
                      {"samples_log_interval", "project", "workspace", "api_key", "experiment_name",
                       "experiment_key", "online", "mode"},
                      "metrics go to logging.metrics_file",
                      "tensorboard, csv_monitor or wandb with enabled: true")};
}

}  // namespace

Rows monitor_rows() {
  Rows rows;
  for (Rows part : {file_monitor_rows(), table_rows(), off_rows()})
    for (Row& row : part) rows.push_back(std::move(row));
  return rows;
}

}  // namespace zero::config
