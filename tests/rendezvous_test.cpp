// What launchers put into the environment, and what becomes of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "mesh/slurm.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {
namespace {

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "ZERO_LAUNCHER",
                             "ZERO_LISTEN_FD",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "PMIX_NAMESPACE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_JOBID",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NODEID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_JOBID",
                             "SLURM_JOB_NODELIST",
                             "SLURM_NODELIST"})
      unsetenv(name);
  }

  static Rendezvous read(const std::map<std::string, std::string>& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return rendezvous_from_environment();
  }

  static void refused(const std::map<std::string, std::string>& variables, const std::string& words) {
    try {
      read(variables);
      ADD_FAILURE() << "accepted; expected " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Config);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
};

using Vars = std::map<std::string, std::string>;

Vars with(Vars variables, const Vars& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

const Vars kTorchrun = {{"RANK", "5"},          {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29511"}};
const Vars kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Vars kSlurm = {{"SLURM_PROCID", "5"},
                     {"SLURM_NTASKS", "7"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_NODEID", "2"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_JOB_ID", "4711"},
                     {"SLURM_STEP_NODELIST", "node[07-09,12]"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};

TEST_F(Environment, NothingIsAWorldOfOne) {
  Rendezvous r = read({});
  EXPECT_EQ(r.size, 1);
  EXPECT_EQ(r.rank, 0);
  EXPECT_EQ(r.launcher, "none");
}

TEST_F(Environment, Torchrun) {
  Rendezvous r = read(kTorchrun);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.size, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_size, 4);
  EXPECT_EQ(r.address, "n01");
  EXPECT_EQ(r.port, 29511);
  EXPECT_FALSE(r.external_store);
  EXPECT_EQ(r.launcher, "torchrun");
  Vars agent = with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_RUN_ID", "job7"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_TRUE(read(agent).external_store);
  EXPECT_EQ(read(agent).attempt, "job7.2");
  // torchrun's variables come first when a job was started inside an MPI or Slurm allocation.
  EXPECT_EQ(read(with(kTorchrun, kSlurm)).rank, 5);
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1);
}

TEST_F(Environment, ZeroLaunch) {
  Vars vars =
      with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"ZERO_LAUNCHER", "1"}, {"ZERO_LISTEN_FD", "3"}});
  Rendezvous r = read(vars);
  EXPECT_EQ(r.launcher, "zero");
  EXPECT_EQ(r.listen_fd, 3);
  EXPECT_EQ(read(with(vars, {{"RANK", "1"}})).listen_fd, -1);
  refused(with(vars, {{"ZERO_LISTEN_FD", "three"}}), "ZERO_LISTEN_FD");
}

TEST_F(Environment, OpenMpi) {
  Rendezvous r = read(kOpenMpi);
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.size, 2);
  EXPECT_EQ(r.address, "127.0.0.1");
  EXPECT_EQ(r.port, 29500);
  EXPECT_EQ(r.launcher, "openmpi");
  int port = read(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "123"}})).port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  EXPECT_NE(port, read(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "124"}})).port);
  EXPECT_EQ(read(with(kOpenMpi, {{"MASTER_PORT", "1234"}, {"MASTER_ADDR", "h"}})).port, 1234);
  refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
          "MASTER_ADDR");
}

TEST_F(Environment, Mpich) {
  Vars vars = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
  Rendezvous r = read(vars);
  EXPECT_EQ(r.rank, 2);
  EXPECT_EQ(r.size, 3);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.launcher, "mpich");
  refused({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, "MASTER_ADDR");
}

TEST_F(Environment, Slurm) {
  Rendezvous r = read(kSlurm);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.size, 7);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_size, 2);
  EXPECT_EQ(r.address, "node07");
  EXPECT_EQ(r.launcher, "slurm");
  EXPECT_EQ(r.port, read(with(kSlurm, {{"SLURM_PROCID", "4"}, {"SLURM_LOCALID", "0"}})).port);
  EXPECT_EQ(read(with(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}})).address, "10.0.0.1");
  Vars one_host = with(
      kSlurm, {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_STEP_TASKS_PER_NODE", "7"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(read(one_host).address, "127.0.0.1");
  // In an allocation, but not a task of a step: one process.
  Vars batch = {{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}};
  EXPECT_EQ(read(batch).size, 1);
  refused(with(kSlurm, {{"SLURM_STEP_NODELIST", "node[07"}}), "node[07");
  refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}}), "2(y3)");
  refused(with(kSlurm, {{"SLURM_NODEID", "9"}}), "tasks per node");
}

TEST_F(Environment, HalfSetOrContradictoryIsRefusedByName) {
  refused({{"RANK", "0"}}, "WORLD_SIZE: is not set, but RANK is");
  refused({{"WORLD_SIZE", "2"}}, "RANK: is not set, but WORLD_SIZE is");
  refused({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE");
  refused({{"PMI_SIZE", "2"}}, "PMI_RANK");
  refused({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}, "SLURM_NTASKS");
  refused(with(kTorchrun, {{"RANK", "8"}}), "RANK: 8 is not below WORLD_SIZE=8");
  refused(with(kTorchrun, {{"RANK", "-1"}}), "RANK: \"-1\"");
  refused(with(kTorchrun, {{"RANK", "1x"}}), "\"1x\" is not a number");
  refused(with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE");
  refused(with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}}), "WORLD_SIZE");
  refused(with(kTorchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT");
  refused(with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT");
  refused(with(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR: is not set");
  refused(with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK");
  refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE");
}

TEST(SlurmLists, Hosts) {
  EXPECT_EQ(detail::slurm_first_host("node[01-04,7]"), "node01");
  EXPECT_EQ(detail::slurm_first_host("login1,node[3-4]"), "login1");
  EXPECT_EQ(detail::slurm_first_host("r[2-3]n[1-4].cluster"), "r2n1.cluster");
  EXPECT_EQ(detail::slurm_host_count("node[01-04,7]"), 5);
  EXPECT_EQ(detail::slurm_host_count("a,b,c[1-2]"), 4);
  EXPECT_EQ(detail::slurm_host_count("r[2-3]n[1-4]"), 8);
  for (const char* bad : {"", "a,", "a[", "a]", "a[[1]]", "a[x-2]", "a[4-2]"})
    EXPECT_THROW(detail::slurm_host_count(bad), Error) << bad;
}

TEST(SlurmLists, Tasks) {
  EXPECT_EQ(detail::slurm_tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(detail::slurm_tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(detail::slurm_tasks_on_node("2(x3),1", 3), 1);
  EXPECT_THROW(detail::slurm_tasks_on_node("2(x3),1", 4), Error);
  EXPECT_THROW(detail::slurm_tasks_on_node("2(x3", 0), Error);
}

}  // namespace
}  // namespace zero
