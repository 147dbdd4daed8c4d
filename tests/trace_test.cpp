// The trace file: one row of spans, overlapping collectives, several ranks, names from outside.
#include "zero/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace zero {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

std::vector<Json> events_of(const Json& document, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : document.at("traceEvents"))
    if (event.at("ph") == phase) found.push_back(event);
  return found;
}

TEST(Trace, ShowsSpansOfEveryRankAtTheirTimes) {
  Trace first, second;
  const auto begin = Trace::Clock::now();
  first.span(Trace::Row::Compute, "h.0", begin, begin + milliseconds(3));
  second.span(Trace::Row::Wait, "all_gather h.1", begin + milliseconds(5), begin + milliseconds(6));
  const std::vector<std::string> events{first.events(0), second.events(1)};
  const auto spans = events_of(Json::parse(trace_document(events)), "X");
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].at("name"), "h.0");
  EXPECT_EQ(spans[0].at("pid"), 0);
  EXPECT_NEAR(spans[0].at("dur").get<double>(), 3000, 1);
  EXPECT_EQ(spans[1].at("pid"), 1);
  EXPECT_NE(spans[1].at("tid"), spans[0].at("tid"));
  // Both ranks' clocks are the host's.
  EXPECT_NEAR(spans[1].at("ts").get<double>() - spans[0].at("ts").get<double>(), 5000, 1000);
}

TEST(Trace, CollectivesMayOverlap) {
  Trace trace;
  const auto begin = Trace::Clock::now();
  trace.span(Trace::Row::Collective, "reduce_scatter h.1", begin, begin + milliseconds(4), 100);
  trace.span(Trace::Row::Collective, "reduce_scatter h.0", begin + milliseconds(1), begin + milliseconds(5),
             200);
  const Json document = Json::parse(trace_document(std::vector{trace.events(3)}));
  const auto begins = events_of(document, "b"), ends = events_of(document, "e");
  ASSERT_EQ(begins.size(), 2);
  ASSERT_EQ(ends.size(), 2);
  EXPECT_EQ(begins[0].at("id"), ends[0].at("id"));
  EXPECT_NE(begins[0].at("id"), begins[1].at("id"));
  EXPECT_EQ(begins[1].at("args").at("elements"), 200);
}

TEST(Trace, NamesAreDataNotSyntax) {
  Trace trace;
  const auto now = Trace::Clock::now();
  const std::string name = "a\"b\\\n\x01\xff";
  trace.span(Trace::Row::Compute, name, now, now);
  const auto spans = events_of(Json::parse(trace_document(std::vector{trace.events(0)})), "X");
  EXPECT_EQ(spans.at(0).at("name").get<std::string>().substr(0, 5), name.substr(0, 5));
}

TEST(Trace, SaysHowManySpansItDidNotKeep) {
  Trace trace(2);
  const auto now = Trace::Clock::now();
  for (int i = 0; i < 5; ++i) trace.span(Trace::Row::Compute, "x", now, now);
  EXPECT_EQ(trace.size(), 2);
  EXPECT_EQ(trace.dropped(), 3);
  EXPECT_NE(trace.events(0).find("3 later spans"), std::string::npos);
}

TEST(Trace, ScopesWithoutATraceDoNothing) {
  { const TraceScope scope(nullptr, Trace::Row::Compute, "x"); }
  Trace trace;
  {
    TraceScope scope(&trace, Trace::Row::Optimizer, "x");
    scope.done();
    EXPECT_EQ(trace.size(), 1);
  }
  EXPECT_EQ(trace.size(), 1);
}

}  // namespace
}  // namespace zero
