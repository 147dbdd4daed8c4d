#include "sharding/replica_reducer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "compute/memory_purpose.h"
#include "compute/wait_place.h"

namespace zero::detail {
namespace {
constexpr size_t kInFlight = 2;  // enough to overlap one sum with the next, at twice a unit's memory
}

void ReplicaReducer::start(const at::Tensor& tensor, const std::string& what,
                           const std::shared_ptr<const void>& loan) {
  if (replicas_.size() == 1) return;
  for (int64_t begin = 0; begin < tensor.numel(); begin += bucket_numel_)
    start_piece(tensor.narrow(0, begin, std::min(bucket_numel_, tensor.numel() - begin)), what, loan);
}

void ReplicaReducer::start_piece(const at::Tensor& tensor, const std::string& what,
                                 const std::shared_ptr<const void>& loan) {
  const MemoryPurposeScope purpose(MemoryPurpose::Buckets);
  const int64_t ranks = replicas_.size();
  if (in_flight_.size() == kInFlight) finish_oldest();
  const int64_t part = (tensor.numel() + ranks - 1) / ranks;
  Sum sum{.loan = loan,
          .tensor = tensor,
          .sent = at::empty({ranks * part}, tensor.options().dtype(dtype_)),
          .part = at::empty({part}, tensor.options().dtype(at::kFloat)),
          .what = what,
          .work = {}};
  sum.sent.narrow(0, 0, tensor.numel()).copy_(tensor);
  sum.sent.narrow(0, tensor.numel(), ranks * part - tensor.numel()).zero_();
  sum.work = replicas_.reduce_scatter(sum.part, sum.sent, /*accumulate=*/false, what);
  elements_ += 2 * ranks * part;
  in_flight_.push_back(std::move(sum));
}

void ReplicaReducer::finish_oldest() {
  const MemoryPurposeScope purpose(MemoryPurpose::Buckets);
  Sum sum = std::move(in_flight_.front());
  in_flight_.pop_front();
  {
    const WaitPlace place("replicas' sum");
    sum.work.wait();
  }
  at::Tensor whole = at::empty({replicas_.size() * sum.part.numel()}, sum.part.options());
  const WaitPlace place("replicas' parts");
  replicas_.all_gather(whole, sum.part, sum.what).wait();
  sum.tensor.copy_(whole.narrow(0, 0, sum.tensor.numel()));
}

void ReplicaReducer::finish() {
  while (!in_flight_.empty()) finish_oldest();
}

}  // namespace zero::detail
