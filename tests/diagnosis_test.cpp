// From heartbeats to the sentence that names the rank at fault, and the heartbeats' text.
#include "mesh/diagnosis.h"

#include <gtest/gtest.h>

#include "zero/error.h"

namespace zero::detail {
namespace {

Beat beat_at(std::vector<Issued> recent) {
  Beat beat{7, {GroupLog{"dp", {}}}};
  for (auto& issued : recent) beat.groups[0].add(std::move(issued));
  return beat;
}

Incident incident() {
  Incident incident;
  incident.group = "dp";
  incident.members = {0, 1, 2};
  incident.issued = {12, "all_gather", "h.3", 64};
  incident.peers = {2};
  incident.timed_out = true;
  incident.timeout = std::chrono::milliseconds(2000);
  return incident;
}

TEST(Explain, NamesWhoHasNotArrived) {
  Observation seen;
  seen.ranks[1] = {true, true, beat_at({{12, "all_gather", "h.3", 64}})};
  seen.ranks[2] = {true, true, beat_at({{11, "reduce_scatter", "h.2", 64}})};
  EXPECT_EQ(explain(incident(), seen),
            "timed out after 2000 ms waiting for rank 2; rank 2 has not arrived: it is at reduce_scatter h.2 "
            "(#11)");
}

TEST(Explain, TellsTheDeadFromTheSilent) {
  const auto says = [](const Incident& incident, const Observation& seen, const std::string& words) {
    const std::string text = explain(incident, seen);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  Observation seen;
  seen.ranks[1] = {true, true, beat_at({{12, "all_gather", "h.3", 64}})};
  Sighting& second = seen.ranks[2] = {true, false, beat_at({{12, "all_gather", "h.3", 64}})};
  says(incident(), seen, "rank 2 does not answer (last seen at all_gather h.3 (#12))");
  second.process = ProcessState::Runs;
  says(incident(), seen, "rank 2 does not answer (last seen at all_gather h.3 (#12))");
  second.process = ProcessState::Stopped;
  says(incident(), seen,
       "rank 2 does not answer, its process is stopped (last seen at all_gather h.3 (#12))");
  second.process = ProcessState::Ended;
  says(incident(), seen, "rank 2 is gone (last seen at all_gather h.3 (#12))");
  second.alive = true;  // its last heartbeat was read after it had been looked for
  says(incident(), seen, "rank 2 is gone (last seen at all_gather h.3 (#12))");
  // On another host the connection tells.
  second.alive = false;
  second.process = ProcessState::Unknown;
  Incident broken = incident();
  broken.timed_out = false;
  says(broken, seen, "rank 2 is gone (last seen at all_gather h.3 (#12))");
  second = {};
  says(incident(), seen, "rank 2 does not answer (it was never heard of)");
}

TEST(Explain, TellsWhatBecameOfTheStore) {
  Observation seen;
  seen.store_answers = false;
  seen.ranks[1] = seen.ranks[2] = {};
  const std::string silent = "; the store on rank 0 does not answer: rank 0 ";
  EXPECT_EQ(explain(incident(), seen), headline(incident()) + silent + "does not answer");
  seen.store_broke = true;
  EXPECT_EQ(explain(incident(), seen), headline(incident()) + silent + "is gone");
  seen.store_process = ProcessState::Stopped;
  EXPECT_EQ(explain(incident(), seen),
            headline(incident()) + silent + "does not answer, its process is stopped");
  seen.store_process = ProcessState::Ended;
  seen.ranks[2].process = ProcessState::Ended;
  EXPECT_EQ(explain(incident(), seen),
            headline(incident()) + silent + "is gone; rank 2 is gone (it was never heard of)");
}

TEST(Explain, NamesDivergence) {
  Observation seen;
  seen.ranks[1] = {true, true, beat_at({{12, "all_gather", "h.3", 64}, {13, "all_gather", "h.4", 64}})};
  seen.ranks[2] = {true, true, beat_at({{12, "reduce_scatter", "h.9", 32}, {13, "all_gather", "h.4", 64}})};
  EXPECT_NE(explain(incident(), seen)
                .find("rank 2 issued reduce_scatter h.9 (#12) of 32 elements where this rank issued "
                      "all_gather h.3 (#12) of 64"),
            std::string::npos);
}

TEST(Explain, NamesDivergenceOfARankThatIsGone) {
  Observation seen;
  seen.ranks[2] = {true, false, beat_at({{12, "reduce_scatter", "h.9", 32}})};
  seen.ranks[2].process = ProcessState::Ended;
  EXPECT_NE(explain(incident(), seen)
                .find("rank 2 is gone (last seen at reduce_scatter h.9 (#12)) and issued reduce_scatter h.9 "
                      "(#12) of 32 elements where this rank issued all_gather h.3 (#12) of 64"),
            std::string::npos)
      << explain(incident(), seen);
}

// Ranks that talk along two axes in different orders: what is late here waits there.
TEST(Explain, NamesWhatALateRankWaitsForInAnotherGroup) {
  Observation seen;
  Sighting& second = seen.ranks[2] = {true, true, beat_at({{11, "reduce_scatter", "h.2", 64}})};
  const std::string late = "rank 2 has not arrived: it is at reduce_scatter h.2 (#11)";
  const auto ends_with = [&](const std::string& words) {
    EXPECT_TRUE(explain(incident(), seen).ends_with(words)) << explain(incident(), seen);
  };
  second.beat.waits_in = "dp";
  second.beat.waits_for = {11, "reduce_scatter", "h.2", 64};
  ends_with(late);
  EXPECT_NE(remedy(incident(), seen).find("raise the timeout"), std::string::npos);
  second.beat.waits_in = "tp";
  second.beat.waits_for = {3, "all_reduce", "activations", 8};
  ends_with(late + " and waits in all_reduce activations (#3) of group tp");
  EXPECT_NE(remedy(incident(), seen).find("talk along all axes in the same order"), std::string::npos);
  second.alive = false;  // what it waited for is past
  EXPECT_EQ(remedy(incident(), seen).find("same order"), std::string::npos);
}

TEST(Remedy, IsTheOrderWhereRanksDiverge) {
  Observation seen;
  seen.ranks[2] = {true, true, beat_at({{12, "all_gather", "h.4", 64}})};
  EXPECT_EQ(
      remedy(incident(), seen),
      "make all ranks run the same modules in the same order for the same number of batches (one that is "
      "out of data joins with any batch and Engine::backward_sum(loss, 0))");
  seen.ranks[2] = {true, true, beat_at({{12, "all_gather", "h.3", 64}})};
  EXPECT_NE(remedy(incident(), seen).find("see what that rank is doing"), std::string::npos);
}

TEST(Explain, QuotesTheFirstFailureOfAnother) {
  Observation seen;
  seen.failures = {{2, "disk full"}, {0, "mine"}, {1, "later"}};
  EXPECT_NE(explain(incident(), seen).find("rank 2 reported first: disk full"), std::string::npos);
  EXPECT_EQ(explain(incident(), seen).find("later"), std::string::npos);
  seen.failures = {{0, "mine"}, {1, "later"}};
  EXPECT_EQ(explain(incident(), seen).find("reported"), std::string::npos);
  Incident stopped = incident();
  stopped.aborted = true;
  EXPECT_EQ(explain(stopped, seen), "stopped, another rank has failed");
}

TEST(Explain, TrustsWhatWasCompletedMoreThanAnOldHeartbeat) {
  Incident late = incident();
  late.completed = {11, "reduce_scatter", "h.2", 64};
  Observation seen;
  seen.ranks[2] = {true, false, beat_at({{3, "all_gather", "h.0", 64}})};
  EXPECT_NE(explain(late, seen).find("rank 2 does not answer (last seen at reduce_scatter h.2 (#11))"),
            std::string::npos);
}

TEST(Explain, StaysShortInALargeJob) {
  Observation seen;
  for (int rank = 1; rank < 1000; ++rank) seen.ranks[rank] = {};
  EXPECT_LT(explain(incident(), seen).size(), 400u);
  std::vector<int> many(100, 5);
  EXPECT_EQ(list_ranks(many), "ranks 5, 5, 5, 5, 5, 5, 5, 5 and 92 more");
  EXPECT_EQ(list_ranks({1}), "rank 1");
  EXPECT_EQ(list_ranks({1, 3}), "ranks 1 and 3");
}

TEST(BeatText, SurvivesTheRoundTrip) {
  Beat beat = beat_at({{0, "send", "x", 3}, {1, "all_gather", "odd\tname\n", 5}});
  beat.groups.push_back({"tp", {}});
  EXPECT_EQ(beat_from_text(to_text(beat)).waits_in, "");
  beat.waits_in = "t\tp";
  beat.waits_for = {9, "all_reduce", "x\ny", 4};
  Beat back = beat_from_text(to_text(beat));
  EXPECT_EQ(back.waits_in, "t p");
  EXPECT_EQ(back.waits_for, (Issued{9, "all_reduce", "x y", 4}));
  EXPECT_EQ(back.count, 7u);
  ASSERT_EQ(back.groups.size(), 2u);
  EXPECT_EQ(back.groups[0].recent[1].what, "odd name ");
  EXPECT_EQ(back.group("dp")->last()->sequence, 1u);
  EXPECT_EQ(back.group("tp")->last(), nullptr);
  EXPECT_EQ(back.group("pp"), nullptr);
}

TEST(BeatText, KeepsTheLastOperationsOnly) {
  GroupLog log;
  for (uint64_t i = 1; i <= 40; ++i) log.add({i, "all_gather", "u", 1});
  EXPECT_EQ(log.recent.size(), GroupLog::kRecent);
  EXPECT_EQ(log.at(24), nullptr);
  EXPECT_NE(log.at(25), nullptr);
}

TEST(BeatText, GarbageIsCorrupt) {
  for (const char* bad :
       {"", "x", "1\nH\tdp", "1\nI\t1\tall_gather\t5\tu", "1\nG\tdp\nI\tx\tall_gather\t5\tu", "1\nG"})
    EXPECT_THROW(beat_from_text(bad), Error) << bad;
  EXPECT_TRUE(failures_from_text("garbage\nx\ty\n").empty());
  EXPECT_EQ(failures_from_text(to_text(FailureRecord{3, "a\tb"})).at(0).text, "a b");
}

}  // namespace
}  // namespace zero::detail
