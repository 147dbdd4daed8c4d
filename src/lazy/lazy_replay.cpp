// Runs the recorded operators that some storages need, in their order.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/equal.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lazy/lazy_draw.h"
#include "lazy/lazy_tape.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

struct Mapping {
  void* begin = MAP_FAILED;
  size_t bytes = 0;
};

// Memory of values under replay. Large ones come straight from the system and go straight back: a heap that
// has seen one parameter of each size after the other keeps far more than one of them. One mapping of
// moderate size is kept for the next value, which saves that its page faults.
class Mappings : public std::enable_shared_from_this<Mappings> {
 public:
  ~Mappings() { release(spare_); }
  Mappings() = default;
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  c10::DataPtr allocate(size_t bytes) {
    struct Lent {
      Mapping mapping;
      std::weak_ptr<Mappings> owner;  // a value may live longer
    };
    Mapping mapping = spare_.bytes >= bytes ? std::exchange(spare_, Mapping{}) : map(bytes);
    return {mapping.begin, new Lent{mapping, weak_from_this()},
            [](void* context) {
              const std::unique_ptr<Lent> lent(static_cast<Lent*>(context));
              if (const auto owner = lent->owner.lock())
                owner->take_back(lent->mapping);
              else
                release(lent->mapping);
            },
            c10::kCPU};
  }

 private:
  static constexpr size_t kKept = 16 << 20;

  static Mapping map(size_t bytes) {
    Mapping mapping{::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                    bytes};
    require(mapping.begin != MAP_FAILED, ErrorKind::Io, "lazily",
            "no memory for a value of " + std::to_string(bytes) + " bytes");
    ::madvise(mapping.begin, bytes, MADV_HUGEPAGE);  // a wish: systems without huge pages refuse it
    return mapping;
  }
  static void release(const Mapping& mapping) {
    if (mapping.begin != MAP_FAILED) ::munmap(mapping.begin, mapping.bytes);
  }
  void take_back(Mapping mapping) {
    if (mapping.bytes <= kKept && mapping.bytes > spare_.bytes) std::swap(mapping, spare_);
    release(mapping);
  }

  Mapping spare_;
};

c10::Storage fresh_storage(Mappings& mappings, int64_t nbytes) {
  constexpr int64_t kFromSystem = 1 << 16;
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  if (nbytes < kFromSystem)
    return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, allocator->allocate(nbytes), allocator,
                        false);
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, mappings.allocate(nbytes), nullptr, false);
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
  const Wanted& wanted;
  std::vector<char> live;                    // per entry
  std::unordered_map<int64_t, size_t> last;  // storage -> last live entry that touches it
  std::unordered_map<int64_t, c10::Storage> values;
  std::shared_ptr<Mappings> mappings = std::make_shared<Mappings>();

  // Which entries must run for the wanted storages, from last to first: a storage is needed until the
  // operator that defines it, or that overwrites it completely.
  void find_live() {
    const auto& entries = tape.entries_;
    live.assign(entries.size(), 0);
    std::unordered_set<int64_t> needed;
    for (const auto& [storage, part] : wanted) needed.insert(storage);
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
    return values.emplace(id, fresh_storage(*mappings, tape.storage_nbytes_[id])).first->second;
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

  // Draws what is needed of a random operator's result and skips the rest. False where only running it will
  // do.
  bool draw(size_t index) {
    const Entry& entry = tape.entries_[index];
    if (!entry.random || !entry.overwrites || entry.arguments.size() != 1) return false;
    const auto& target = std::get<TensorRef>(entry.arguments.front().sources.front());
    const std::optional<Draw> call = draw_of(entry.op, entry.constants, target);
    if (!call) return false;
    ElementRange part;
    if (live[index]) {
      part.end = call->numel;
      const auto found = wanted.find(target.storage);
      if (found != wanted.end() && last.at(target.storage) == index)
        part = {found->second.begin, std::min(found->second.end, call->numel)};
    }
    at::Tensor flat;
    if (live[index]) flat = geometry_on(target, storage(target.storage)).view({-1});
    draw_part(*call, flat, part.begin, part.end);
    return true;
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

void Tape::replay(const Wanted& wanted, const Sink& sink) {
  c10::NoGradGuard no_grad;
  BypassIntercept bypass;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor found = generator.get_state();
  generator.set_state(random_state_);

  Replay replay{.tape = *this, .wanted = wanted, .live = {}, .last = {}, .values = {}};
  replay.find_live();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!replay.live[i] && !entry.random) continue;
    if (!replay.draw(i)) replay.run(entry);
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
