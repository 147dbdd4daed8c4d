// Writing and reading a checkpoint beside the disk's own speed: a file written front to back with fsync, and
// read front to back when nothing of it is in memory. No tensors, one rank.
//
//   checkpoint_bench DIRECTORY [MEBIBYTES] [ROUNDS]     prints a line of JSON: medians, all speeds, and our
//   shares of
//                                                      the plain ones
#include "zero/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "median.h"
#include "zero/error.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr size_t kBlock = size_t{4} << 20;  // dd bs=4M

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

[[noreturn]] void die(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

// dd if=/dev/zero conv=fsync, with bytes that no disk can compress away.
void write_plain(const fs::path& path, const std::vector<char>& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) die(path);
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    const size_t count = std::min(kBlock, bytes.size() - at);
    if (::write(file, bytes.data() + at, count) != static_cast<ssize_t>(count)) die(path);
  }
  if (::fsync(file) != 0 || ::close(file) != 0) die(path);
}

void read_plain(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0) die(path);
  std::vector<char> block(kBlock);
  while (::read(file, block.data(), kBlock) > 0) {
  }
  ::close(file);
}

void forget(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0 || ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0) die(path);
  ::close(file);
}

// A transformer's sizes: large matrices, each with a small vector beside it.
std::vector<zero::TensorPiece> pieces_of(const std::vector<char>& bytes) {
  std::vector<zero::TensorPiece> pieces;
  const auto total = static_cast<int64_t>(bytes.size() / 4);
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  for (int64_t at = 0; at < total;) {
    for (const int64_t wanted : {int64_t{768} * 3072, int64_t{3072}}) {
      const int64_t numel = std::min(wanted, total - at);
      if (numel == 0) break;
      pieces.push_back({"model/" + std::to_string(pieces.size()),
                        zero::Dtype::f32,
                        {numel},
                        zero::BoxRange::whole({{numel}}),
                        values + at});
      at += numel;
    }
  }
  return pieces;
}

void write_checkpoint(const fs::path& directory, const std::vector<zero::TensorPiece>& pieces) {
  const fs::path temporary = zero::CheckpointWriter::begin(directory, 1);
  const zero::ShardManifest manifest = zero::CheckpointWriter::write_shard(temporary, 0, pieces);
  zero::CheckpointWriter::publish(temporary, directory, 1, std::span(&manifest, 1), "{}", 0);
}

void read_checkpoint(const fs::path& checkpoint, std::vector<char>& into) {
  const zero::CheckpointReader reader(checkpoint);
  // As the engine loads: in the order of the file.
  std::vector<std::string> names;
  for (const auto& [name, tensor] : reader.tensors()) names.push_back(name);
  const auto& tensors = reader.tensors();
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return tensors.at(a).pieces[0].offset_bytes < tensors.at(b).pieces[0].offset_bytes;
  });
  for (const std::string& name : names)
    reader.read(name, zero::BoxRange::whole(tensors.at(name).shape), into.data());
}

Json rounded(const std::vector<double>& values, double mebibytes) {
  Json speeds = Json::array();
  for (const double value : values) speeds.push_back(std::round(mebibytes / value));
  return speeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: checkpoint_bench DIRECTORY [MEBIBYTES] [ROUNDS]\n";
    return 2;
  }
  const fs::path directory = fs::path(argv[1]) / "checkpoint-bench";
  const auto mebibytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  try {
    fs::create_directories(directory);
    std::vector<char> bytes(mebibytes << 20), into(size_t{768} * 3072 * 4);
    uint64_t state = 1;
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(bytes.data() + i, &state, 8);
    }
    const auto pieces = pieces_of(bytes);
    const fs::path plain = directory / "plain", checkpoint = directory / "step-00000001";
    std::map<std::string, std::vector<double>> taken;
    // Turn by turn, so that a disk whose speed changes does so for all.
    for (int round = 0; round < rounds; ++round) {
      fs::remove(plain);
      fs::remove_all(checkpoint);
      ::sync();
      taken["write_plain"].push_back(seconds([&] { write_plain(plain, bytes); }));
      taken["write_checkpoint"].push_back(seconds([&] { write_checkpoint(directory, pieces); }));
      auto forget_all = [&] {
        forget(plain);
        for (const auto& entry : fs::directory_iterator(checkpoint)) forget(entry.path());
      };
      forget_all();
      taken["read_plain"].push_back(seconds([&] { read_plain(plain); }));
      taken["read_checkpoint"].push_back(seconds([&] { read_checkpoint(checkpoint, into); }));
      forget_all();
      taken["verify_checkpoint"].push_back(seconds([&] { zero::CheckpointReader(checkpoint).verify(); }));
    }
    const auto size = static_cast<double>(mebibytes);
    Json result = {{"mebibytes", mebibytes}, {"rounds", rounds}, {"tensors", pieces.size()}};
    for (const auto& [name, values] : taken) {
      result[name + "_mib_s"] = std::round(size / zero::bench::median(values));
      result[name + "_all_mib_s"] = rounded(values, size);
    }
    result["write_share"] =
        zero::bench::median(taken["write_plain"]) / zero::bench::median(taken["write_checkpoint"]);
    result["read_share"] =
        zero::bench::median(taken["read_plain"]) / zero::bench::median(taken["read_checkpoint"]);
    std::cout << result.dump() << "\n";
    fs::remove_all(directory);
  } catch (const std::exception& error) {
    std::cerr << "checkpoint_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
