#include "compute/parallel.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include "zero/error.h"

namespace zero {

void parallel_over(const at::Tensor& flat, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work) {
  if (!flat.is_contiguous()) fail(ErrorKind::Internal, "parallel_over", "its measure is not contiguous");
  // An iterator is made by tens of calls; a small operation would wait for their code to come from memory.
  if (flat.numel() <= grain || at::get_num_threads() == 1) return work(0, flat.numel());
  const int64_t itemsize = flat.element_size();
  const char* const base = static_cast<const char*>(flat.const_data_ptr());
  auto iterator = at::TensorIterator::borrowing_nullary_op(flat);
  iterator.for_each(
      [&](char** data, const int64_t* /*strides*/, int64_t rows, int64_t columns) {
        const int64_t begin = (data[0] - base) / itemsize;
        work(begin, begin + rows * columns);
      },
      grain);
}

}  // namespace zero
