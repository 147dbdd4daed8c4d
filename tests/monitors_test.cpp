// What runs write for programs that draw them: TensorBoard's files, read back here record by record, tables
// in CSV, offline runs of W&B, tables for people.
#include "train/monitors.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "support/expect_error.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/breakdown.h"
#include "train/wandb_run.h"
#include "zero/error.h"

namespace zero::training {
namespace {

namespace fs = std::filesystem;
using testing::SmallRun;
using testing::TemporaryDirectory;
using testing::train_on;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

template <class T>
T number_at(std::string_view bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.substr(offset, sizeof value).data(), sizeof value);
  return value;
}

// Fields of a protocol buffer, by number; bytes of fixed and delimited ones, decimal text of varints.
std::multimap<uint32_t, std::string> fields_of(std::string_view message) {
  std::multimap<uint32_t, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    size_t size = 0;
    if (key % 8 == 0) {
      fields.emplace(key / 8, std::to_string(varint()));
      continue;
    }
    if (key % 8 == 1) size = 8;
    if (key % 8 == 5) size = 4;
    if (key % 8 == 2) size = varint();
    fields.emplace(key / 8, message.substr(at, size));
    at += size;
  }
  return fields;
}

struct Point {
  int64_t step;
  float value;
  bool operator==(const Point&) const = default;
};
struct Events {
  int64_t begins_at = -1;
  std::map<std::string, std::vector<Point>> points;
};

// Checks every length and checksum on the way.
Events read_events(const fs::path& path) {
  const std::string bytes = text_of(path);
  const auto masked = [](std::string_view part) {
    const uint32_t crc = crc32c(part);
    return std::rotr(crc, 15) + 0xa282ead8u;
  };
  Events events;
  size_t records = 0;
  for (size_t at = 0; at < bytes.size(); ++records) {
    const auto size = number_at<uint64_t>(bytes, at);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 8), masked(std::string_view(bytes).substr(at, 8)));
    const std::string_view message = std::string_view(bytes).substr(at + 12, size);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 12 + size), masked(message));
    at += 16 + size;
    const auto event = fields_of(message);
    EXPECT_GT(number_at<double>(event.find(1)->second, 0), 1.7e9) << "seconds since 1970";
    const int64_t step = std::stoll(event.find(2)->second);
    if (records == 0) {
      EXPECT_EQ(event.find(3)->second, "brain.Event:2");
    }
    if (event.contains(7)) events.begins_at = step;
    if (!event.contains(5)) continue;
    for (const auto& [number, value] : fields_of(event.find(5)->second)) {
      const auto scalar = fields_of(value);
      events.points[scalar.find(1)->second].push_back({step, number_at<float>(scalar.find(2)->second, 0)});
    }
  }
  return events;
}

std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Monitors, ChecksumsAreCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u) << "RFC 3720, B.4";
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Monitors, ARunsFiguresArriveInBothAndGoOnAfterAResume) {
  const SmallRun small;
  const std::vector<std::string> on = {"tensorboard.enabled=true", "csv_monitor.enabled=true",
                                       "csv_monitor.job_name=mine", "run.steps=4"};
  const Config config = small.config(1, on, "run");
  train_on(1, config, {.pause_after = 2});
  const fs::path run = config.run.directory;
  const fs::path table = run / "csv_monitor" / "mine" / "Train_Samples_train_loss.csv";
  // A process that was killed after the checkpoint: a row more, and half of one.
  std::ofstream(table, std::ios::app) << 3 * config.train_batch_size << ",99\n7,1";
  train_on(1, config, {.resume = "auto"});

  const auto files = files_in(run / "tensorboard" / "DeepSpeedJobName");
  ASSERT_EQ(files.size(), 2u);
  std::vector<Point> losses;
  for (const fs::path& file : files) {
    const Events events = read_events(file);
    EXPECT_EQ(events.begins_at, static_cast<int64_t>(losses.size()) * config.train_batch_size + 1);
    const auto& points = events.points.at("Train/Samples/train_loss");
    losses.insert(losses.end(), points.begin(), points.end());
    EXPECT_EQ(events.points.at("Train/Samples/lr").size(), 2u);
  }
  const auto metrics = testing::metrics_of(run);
  ASSERT_EQ(losses.size(), 4u);
  std::istringstream rows(text_of(table));
  std::string row;
  std::getline(rows, row);
  EXPECT_EQ(row, "step,train_loss");
  size_t step = 0;
  for (const auto& line : metrics) {
    if (!line.contains("loss")) continue;
    const auto loss = line.at("loss").get<double>();
    const int64_t samples = static_cast<int64_t>(step + 1) * config.train_batch_size;
    EXPECT_EQ(losses.at(step), (Point{samples, static_cast<float>(loss)}));
    ASSERT_TRUE(std::getline(rows, row)) << step;
    EXPECT_EQ(std::stoll(row), samples);
    EXPECT_EQ(std::stod(row.substr(row.find(',') + 1)), loss) << "to the last bit";
    ++step;
  }
  EXPECT_EQ(step, 4u);
  EXPECT_FALSE(std::getline(rows, row)) << row;
}

TEST(Monitors, WhatIsNoTableIsNotTouched) {
  const TemporaryDirectory temp;
  std::ofstream(temp.path() / "a_b.csv") << "step,b\nnothing\n";
  CsvTables tables(temp.path(), 0);
  const std::vector<std::pair<std::string, double>> scalars = {{"a/b", 1}};
  EXPECT_ERROR(tables.add(1, scalars), Corrupt, "a_b.csv:2");
  EXPECT_EQ(text_of(temp.path() / "a_b.csv"), "step,b\nnothing\n");
}

TEST(Breakdown, TimesAreMeansAndAddUp) {
  LoggingConfig logging;
  logging.wall_clock_breakdown = true;
  Breakdown breakdown(logging);
  StepReport report;
  report.step_s = 0.1;
  report.forward_s = 0.03;
  report.backward_s = 0.05;
  report.optimizer_s = 0.01;
  breakdown.add(report);
  report.step_s = 0.3;
  breakdown.add(report);
  const std::string text = breakdown.tables(report);
  for (const char* words :
       {"mean of 2", "forward", "30.0 ms", "15.0 %", "backward", "50.0 ms", "110.0 ms", "200.0 ms"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
  EXPECT_EQ(breakdown.tables(report), "") << "nothing since";
}

TEST(Breakdown, MemoryByPurposeAndTier) {
  LoggingConfig logging;
  logging.memory_breakdown = true;
  StepReport report;
  report.memory.purposes = {{"masters", {1000, 0, 2000}}};
  report.resident_bytes = 5'000'000;
  const std::string text = Breakdown(logging).tables(report);
  for (const char* words : {"device", "disk", "masters", "1.00 kB", "2.00 kB", "5.00 MB"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
  EXPECT_EQ(Breakdown(LoggingConfig{}).tables(report), "");
}

// Messages of a W&B file, whose blocks, lengths and checksums it checks.
std::vector<std::string> wandb_messages(const std::string& bytes, size_t begin) {
  constexpr size_t kBlock = 32768, kHeader = 7;
  std::vector<std::string> messages;
  bool is_open = false;
  for (size_t at = begin; at < bytes.size();) {
    const size_t left = kBlock - at % kBlock;
    if (left < kHeader) {
      EXPECT_EQ(bytes.substr(at, left), std::string(left, '\0'));
      at += left;
      continue;
    }
    const auto size = number_at<uint16_t>(bytes, at + 4);
    const auto type = number_at<uint8_t>(bytes, at + 6);
    EXPECT_LE(kHeader + size, left);
    const std::string typed = bytes.substr(at + 6, size_t{1} + size);  // the checksum counts the type
    EXPECT_EQ(number_at<uint32_t>(bytes, at),
              ::crc32(0, reinterpret_cast<const Bytef*>(typed.data()), static_cast<uInt>(typed.size())));
    EXPECT_EQ(is_open, type == 3 || type == 4) << "1 whole, 2 first, 3 middle, 4 last";
    if (!is_open) messages.emplace_back();
    messages.back() += typed.substr(1);
    is_open = type == 2 || type == 3;
    at += kHeader + size;
  }
  EXPECT_FALSE(is_open);
  return messages;
}

// Written by wandb 0.31.0, from byte 7 of a file on.
TEST(Wandb, RecordsAreWandbsOwn) {
  const std::string_view recorded(
      "\x90\xe9\xab\xbf\x4d\x00\x01\x08\x01\xc2\x0c\x0a\x0a\x08mssy15xq\xaa\x01\x3b\x0a\x39\x0a\x2f"
      "0.31.0+15f8cbc581d1c5cfc6e31f68b48bdd13cec2dd2c\x12\x06"
      "0.70.0",
      84);
  EXPECT_EQ(wandb_log_record(recorded.substr(7), 7), recorded);
}

TEST(Wandb, LongRecordsAreCutAtTheEndsOfBlocks) {
  std::string bytes(7, 'h');
  std::vector<std::string> given;
  for (const size_t size : {0u, 5u, 32768u - 7 - 12 - 14 - 3, 40u, 100'000u, 32768u - 7, 1u, 65536u}) {
    given.emplace_back(size, static_cast<char>('a' + given.size()));
    bytes += wandb_log_record(given.back(), bytes.size());
  }
  EXPECT_EQ(wandb_messages(bytes, 7), given);
  for (size_t left = 0; left <= 8; ++left) {
    const size_t begin = 32768 - left;
    EXPECT_EQ(wandb_messages(std::string(begin, 'x') + wandb_log_record("abc", begin), begin),
              std::vector<std::string>{"abc"})
        << left;
  }
}

// A row of a history or a summary by its keys.
std::map<std::string, std::string> wandb_row(const std::string& message) {
  std::map<std::string, std::string> row;
  for (const auto& [number, item] : fields_of(message)) {
    if (number != 1) continue;
    const auto fields = fields_of(item);
    row[fields.find(2)->second] = fields.find(16)->second;
  }
  return row;
}

TEST(Wandb, ARunsFiguresAreRowsOfItsHistory) {
  const SmallRun small;
  const Config config = small.config(
      1,
      {"wandb.enabled=true", "wandb.team=us", "wandb.group=g", "run.steps=4", "run.eval_interval_steps=0",
       "run.eval_batches=1", "data.eval=" + (small.path() / "eval.tokens").string()},
      "run");
  train_on(1, config, {.pause_after = 2});
  train_on(1, config, {.resume = "auto"});
  const fs::path run = config.run.directory;
  const auto directories = files_in(run / "wandb");
  ASSERT_EQ(directories.size(), 2u) << "each start is a run of its own";
  std::map<int64_t, double> losses;
  for (const fs::path& directory : directories) {
    const std::string id = directory.string().substr(directory.string().rfind('-') + 1);
    EXPECT_TRUE(directory.filename().string().starts_with("offline-run-"));
    const std::string bytes = text_of(directory / ("run-" + id + ".wandb"));
    ASSERT_EQ(bytes.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
    const auto messages = wandb_messages(bytes, 7);
    ASSERT_EQ(messages.size(), 7u) << "header, run, two summaries and rows, exit";
    for (size_t i = 0; i < messages.size(); ++i)
      EXPECT_EQ(fields_of(messages[i]).find(1)->second, std::to_string(i + 1));
    EXPECT_TRUE(fields_of(messages[0]).contains(21) && fields_of(messages.back()).contains(18));
    const auto about = fields_of(fields_of(messages[1]).find(17)->second);
    EXPECT_EQ(about.find(1)->second, id);
    EXPECT_EQ(about.find(2)->second, "us");
    EXPECT_EQ(about.find(3)->second, "deepspeed");
    EXPECT_EQ(about.find(6)->second, "g");
    EXPECT_EQ(about.find(8)->second, "run");
    EXPECT_NE(about.find(4)->second.find("train_batch_size"), std::string::npos);
    for (const size_t i : {3u, 5u}) {
      const std::string history = fields_of(messages[i]).find(2)->second;
      const auto row = wandb_row(history);
      EXPECT_EQ(row, wandb_row(fields_of(messages[i - 1]).find(3)->second)) << "the summary";
      const int64_t samples = std::stoll(row.at("_step"));
      EXPECT_EQ(fields_of(fields_of(history).find(2)->second).find(1)->second, row.at("_step"));
      losses[samples] = std::stod(row.at("Train/Samples/train_loss"));
      EXPECT_EQ(row.contains("Eval/Samples/loss"), samples == 4 * config.train_batch_size)
          << "evaluations join the row of their step";
    }
  }
  for (const auto& line : testing::metrics_of(run))
    if (line.contains("loss"))
      EXPECT_EQ(losses.at(line.at("step").get<int64_t>() * config.train_batch_size),
                line.at("loss").get<double>());
  EXPECT_EQ(losses.size(), 4u);
}

}  // namespace
}  // namespace zero::training
