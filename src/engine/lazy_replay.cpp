// Runs the recorded operators that some storages need, in their order.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/equal.h>
#include <sys/mman.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/lazy_tape.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// Memory of a value under replay. Large ones come straight from the system and go straight back: a heap that
// has seen one parameter of each size after the other keeps far more than one of them.
c10::Storage fresh_storage(int64_t nbytes) {
  constexpr int64_t kFromSystem = 1 << 16;
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  if (nbytes < kFromSystem)
    return c10::Storage(c10::Storage::use_byte_size_t(), nbytes,
                        allocator->allocate(static_cast<size_t>(nbytes)), allocator, false);
  struct Mapping {
    void* begin;
    size_t bytes;
  };
  const auto bytes = static_cast<size_t>(nbytes);
  void* begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(begin != MAP_FAILED, ErrorKind::Io, "lazily",
          "no memory for a value of " + std::to_string(nbytes) + " bytes");
  c10::DataPtr memory(
      begin, new Mapping{begin, bytes},
      [](void* context) {
        auto* mapping = static_cast<Mapping*>(context);
        ::munmap(mapping->begin, mapping->bytes);
        delete mapping;
      },
      c10::kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, std::move(memory), nullptr, false);
}

// Operators that only allocate: their results get memory when something is written to it.
bool only_allocates(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> kNames{
      "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"};
  return kNames.contains(operator_name(op));
}

}  // namespace

struct Tape::Replay {
  Tape& tape;
  std::vector<char> live;                    // per entry
  std::unordered_map<int64_t, size_t> last;  // storage -> last live entry that touches it
  std::unordered_map<int64_t, c10::Storage> values;

  // Which entries must run for the wanted storages, from last to first: a storage is needed until the
  // operator that defines it, or that overwrites it completely.
  void find_live(const std::set<int64_t>& wanted) {
    const auto& entries = tape.entries_;
    live.assign(entries.size(), 0);
    std::unordered_set<int64_t> needed(wanted.begin(), wanted.end());
    auto touch = [&](int64_t storage, size_t entry) { last.try_emplace(storage, entry); };
    for (size_t i = entries.size(); i-- > 0;) {
      const Entry& entry = entries[i];
      bool runs = false;
      for (int64_t storage : entry.writes) runs |= needed.contains(storage);
      for (const Output& output : entry.defines) runs |= needed.contains(output.storage);
      // A random operator whose result nobody needs still moves the generator; with inputs, how far may
      // depend on them.
      if (entry.random && !entry.reads.empty()) runs = true;
      if (!runs) continue;
      live[i] = 1;
      for (const Output& output : entry.defines) {
        touch(output.storage, i);
        needed.erase(output.storage);
      }
      for (int64_t storage : entry.writes) {
        touch(storage, i);
        if (entry.overwrites)
          needed.erase(storage);
        else
          needed.insert(storage);
      }
      for (int64_t storage : entry.reads) {
        touch(storage, i);
        needed.insert(storage);
      }
    }
  }

  const c10::Storage& storage(int64_t id) {
    auto found = values.find(id);
    if (found != values.end()) return found->second;
    return values.emplace(id, fresh_storage(tape.storage_nbytes_[static_cast<size_t>(id)])).first->second;
  }

  torch::jit::Stack arguments_of(const Entry& entry) {
    torch::jit::Stack stack = entry.constants;
    size_t version = 0;
    auto tensor = [&](const Source& source) {
      if (const auto* ref = std::get_if<TensorRef>(&source)) return geometry_on(*ref, storage(ref->storage));
      const at::Tensor& real = std::get<at::Tensor>(source);
      const uint32_t recorded = entry.versions[version++];
      require(!real.defined() || real.is_inference() || real._version() == recorded, ErrorKind::Usage,
              operator_name(entry.op),
              "a tensor used inside lazily() was changed before the values were computed",
              "pass a clone of it");
      return real;
    };
    for (const Argument& argument : entry.arguments) {
      if (argument.form == Argument::Form::Tensor) {
        stack[argument.index] = tensor(argument.sources.front());
      } else if (argument.form == Argument::Form::List) {
        c10::List<at::Tensor> list;
        for (const Source& source : argument.sources) list.push_back(tensor(source));
        stack[argument.index] = list;
      } else {
        c10::List<std::optional<at::Tensor>> list;
        for (const Source& source : argument.sources) {
          at::Tensor element = tensor(source);
          list.push_back(element.defined() ? std::optional(element) : std::nullopt);
        }
        stack[argument.index] = list;
      }
    }
    return stack;
  }

  void run(const Entry& entry) {
    if (only_allocates(entry.op)) {
      for (const Output& output : entry.defines) storage(output.storage);
      return;
    }
    torch::jit::Stack stack = arguments_of(entry);
    entry.op.callBoxed(&stack);
    for (const Output& output : entry.defines) {
      const at::Tensor result = output.element ? stack[output.index].toTensorVector()[*output.element]
                                               : stack[output.index].toTensor();
      values.insert_or_assign(output.storage, result.storage());
    }
  }
};

void Tape::replay(const std::set<int64_t>& wanted, const Sink& sink) {
  c10::NoGradGuard no_grad;
  BypassIntercept bypass;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor found = generator.get_state();
  generator.set_state(random_state_);

  Replay replay{.tape = *this, .live = {}, .last = {}, .values = {}};
  replay.find_live(wanted);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!replay.live[i] && !entry.random) continue;
    replay.run(entry);
    auto settle = [&](int64_t storage) {
      if (replay.live[i] && replay.last.at(storage) != i) return;  // a later operator needs it
      if (replay.live[i] && wanted.contains(storage)) sink(storage, replay.values.at(storage));
      replay.values.erase(storage);
    };
    for (int64_t storage : entry.reads)
      if (replay.values.contains(storage)) settle(storage);
    for (int64_t storage : entry.writes)
      if (replay.values.contains(storage)) settle(storage);
    for (const Output& output : entry.defines) settle(output.storage);
  }
  if (!at::equal(found, random_state_)) generator.set_state(found);
}

}  // namespace zero::detail
