#include "support/fake_nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum Result { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4 };
enum Type { kUint8 = 1, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };
struct UniqueId {
  char name[128];
};

constexpr int kMostRanks = 8;
constexpr size_t kBoxBytes = 64 << 10;
constexpr auto kPatience = std::chrono::seconds(60);

/// What one rank has for another, a piece at a time.
struct Box {
  std::atomic<uint32_t> bytes;  // 0: empty
  char data[kBoxBytes];
};
struct Shared {
  std::atomic<int> joined;
  Box boxes[kMostRanks][kMostRanks];  // [from][to]
};
struct Comm {
  Shared* shared;
  int rank, ranks;
};

struct Message {
  Comm* comm;
  bool is_send;
  int peer;
  char* data;
  size_t bytes, done = 0;
};

struct State {
  FakeNcclHooks hooks{};
  std::string log, told, failing;
  int failure = 0, async_error = 0;
  bool in_group = false;
  std::vector<Message> group;
};
State& state() {
  static State own;
  return own;
}

size_t size_of(int type) {
  return type == kFloat32 ? 4 : type == kFloat64 ? 8 : type == kBfloat16 ? 2 : type == kUint8 ? 1 : 0;
}
const char* name_of(int type) {
  return type == kFloat32    ? "float32"
         : type == kFloat64  ? "float64"
         : type == kBfloat16 ? "bfloat16"
                             : "uint8";
}

/// Notes the call; the result that the test wants of it, or success.
int begin(const char* function, const std::string& what) {
  state().log += std::string(function) + what + "\n";
  if (state().failing != function) return kSuccess;
  state().failing.clear();
  return state().failure;
}

std::string counted(size_t count, int type) { return " " + std::to_string(count) + " " + name_of(type); }

char* reach(const void* device, size_t bytes, bool is_write, void* stream, const char* function) {
  const FakeNcclHooks& hooks = state().hooks;
  if (hooks.touches != nullptr) hooks.touches(device, bytes, is_write, stream, function);
  return static_cast<char*>(hooks.bytes_at != nullptr ? hooks.bytes_at(device) : const_cast<void*>(device));
}

// One piece further, if the box allows it.
bool advance(Message& message) {
  auto& boxes = message.comm->shared->boxes;
  const int own = message.comm->rank;
  Box& box = message.is_send ? boxes[own][message.peer] : boxes[message.peer][own];
  const uint32_t there = box.bytes.load(std::memory_order_acquire);
  if (message.is_send != (there == 0)) return false;
  if (message.is_send) {
    const size_t piece = std::min(kBoxBytes, message.bytes - message.done);
    std::memcpy(box.data, message.data + message.done, piece);
    message.done += piece;
    box.bytes.store(static_cast<uint32_t>(piece), std::memory_order_release);
  } else {
    std::memcpy(message.data + message.done, box.data, there);
    message.done += there;
    box.bytes.store(0, std::memory_order_release);
  }
  return true;
}

int move(std::vector<Message> messages) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!messages.empty()) {
    bool has_moved = false;
    for (Message& message : messages) has_moved |= advance(message);
    std::erase_if(messages, [](const Message& message) { return message.done == message.bytes; });
    if (has_moved) continue;
    if (std::chrono::steady_clock::now() > deadline) return kSystemError;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return kSuccess;
}

int move_or_keep(const Message& message) {
  if (!state().in_group) return move({message});
  state().group.push_back(message);
  return kSuccess;
}

float from_bf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
uint16_t to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
void add(char* sum, const char* row, size_t count) {
  for (size_t i = 0; i < count; ++i) reinterpret_cast<T*>(sum)[i] += reinterpret_cast<const T*>(row)[i];
}
void add_rows(char* sum, const char* row, size_t count, int type) {
  if (type == kFloat32) return add<float>(sum, row, count);
  if (type == kFloat64) return add<double>(sum, row, count);
  auto* to = reinterpret_cast<uint16_t*>(sum);
  for (size_t i = 0; i < count; ++i)
    to[i] = to_bf16(from_bf16(to[i]) + from_bf16(reinterpret_cast<const uint16_t*>(row)[i]));
}

}  // namespace

extern "C" {

void fake_nccl_hook(FakeNcclHooks hooks) { state().hooks = hooks; }
const char* fake_nccl_log() {
  state().told = std::exchange(state().log, {});
  return state().told.c_str();
}
void fake_nccl_fail(const char* function, int result) {
  state().failing = function;
  state().failure = result;
}
void fake_nccl_async_error(int result) { state().async_error = result; }

int ncclGetVersion(int* version) {
  *version = 2'28'09;
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidArgument ? "invalid argument" : "failed";
}

int ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  *id = {};
  std::snprintf(id->name, sizeof id->name, "/zero-fake-nccl-%d-%d", static_cast<int>(getpid()), made++);
  const int file = shm_open(id->name, O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kSystemError;
  close(file);
  return begin("GetUniqueId", "");
}

int ncclCommInitRank(Comm** comm, int ranks, UniqueId id, int rank) {
  if (ranks > kMostRanks) return kInvalidArgument;
  if (const int result = begin("CommInitRank", " " + std::to_string(rank) + " of " + std::to_string(ranks)))
    return result;
  const int file = shm_open(id.name, O_RDWR, 0600);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kSystemError;
  *comm = new Comm{static_cast<Shared*>(memory), rank, ranks};
  (*comm)->shared->joined.fetch_add(1);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((*comm)->shared->joined < ranks) {
    if (std::chrono::steady_clock::now() > deadline) return kSystemError;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (rank == 0) shm_unlink(id.name);
  return kSuccess;
}

int ncclCommAbort(Comm* comm) {
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return begin("CommAbort", "");
}

int ncclCommGetAsyncError(Comm*, int* error) {
  *error = state().async_error;
  return kSuccess;
}

int ncclGroupStart() {
  state().in_group = true;
  return begin("GroupStart", "");
}
int ncclGroupEnd() {
  state().in_group = false;
  if (const int result = begin("GroupEnd", "")) return result;
  return move(std::exchange(state().group, {}));
}

int ncclSend(const void* in, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (const int result = begin("Send", counted(count, type) + " to " + std::to_string(peer))) return result;
  const size_t bytes = count * size_of(type);
  return move_or_keep({comm, true, peer, reach(in, bytes, false, stream, "ncclSend"), bytes});
}
int ncclRecv(void* out, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (const int result = begin("Recv", counted(count, type) + " from " + std::to_string(peer))) return result;
  const size_t bytes = count * size_of(type);
  return move_or_keep({comm, false, peer, reach(out, bytes, true, stream, "ncclRecv"), bytes});
}

int ncclAllGather(const void* in, void* out, size_t count, int type, Comm* comm, void* stream) {
  if (const int result = begin("AllGather", counted(count, type))) return result;
  const size_t bytes = count * size_of(type);
  char* const from = reach(in, bytes, false, stream, "ncclAllGather");
  char* const to = reach(out, bytes * static_cast<size_t>(comm->ranks), true, stream, "ncclAllGather");
  std::vector<Message> messages;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (peer == comm->rank) continue;
    messages.push_back({comm, true, peer, from, bytes});
    messages.push_back({comm, false, peer, to + static_cast<size_t>(peer) * bytes, bytes});
  }
  std::memmove(to + static_cast<size_t>(comm->rank) * bytes, from, bytes);
  return move(std::move(messages));
}

int ncclReduceScatter(const void* in, void* out, size_t count, int type, int sum, Comm* comm, void* stream) {
  if (const int result = begin("ReduceScatter", counted(count, type))) return result;
  if (sum != 0 || type == kUint8 || size_of(type) == 0) return kInvalidArgument;
  const size_t bytes = count * size_of(type), ranks = static_cast<size_t>(comm->ranks);
  char* const from = reach(in, bytes * ranks, false, stream, "ncclReduceScatter");
  char* const to = reach(out, bytes, true, stream, "ncclReduceScatter");
  std::vector<std::vector<char>> rows(ranks, std::vector<char>(bytes));
  std::vector<Message> messages;
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (static_cast<int>(peer) == comm->rank) continue;
    messages.push_back({comm, true, static_cast<int>(peer), from + peer * bytes, bytes});
    messages.push_back({comm, false, static_cast<int>(peer), rows[peer].data(), bytes});
  }
  const auto own = static_cast<size_t>(comm->rank);
  std::memcpy(rows[own].data(), from + own * bytes, bytes);
  if (const int result = move(std::move(messages))) return result;
  std::memcpy(to, rows[ranks - 1].data(), bytes);
  for (size_t row = ranks - 1; row-- > 0;) add_rows(to, rows[row].data(), count, type);
  return kSuccess;
}

int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, Comm* comm, void* stream) {
  if (const int result = begin("Broadcast", counted(count, type) + " from " + std::to_string(root)))
    return result;
  const size_t bytes = count * size_of(type);
  const bool is_root = root == comm->rank;
  char* const data = is_root ? reach(in, bytes, false, stream, "ncclBroadcast")
                             : reach(out, bytes, true, stream, "ncclBroadcast");
  std::vector<Message> messages;
  if (!is_root) messages.push_back({comm, false, root, data, bytes});
  for (int peer = 0; is_root && peer < comm->ranks; ++peer)
    if (peer != root) messages.push_back({comm, true, peer, data, bytes});
  return move(std::move(messages));
}
}
