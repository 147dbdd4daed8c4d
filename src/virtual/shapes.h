#pragma once
// Operators of devices with shapes only: what they would give out, without computing it.
//
// Results have the CPU's sizes, strides and types, so a program that looks at no values takes the same way,
// holds the same memory and takes the same simulated time as with values. Small tensors keep values all the
// same, for what ranks agree on travels in them: an operator all of whose tensors have values is computed.
// Where one has none, the small ones of its results are all ones.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <string>

#include "virtual/machine.h"

namespace zero::virtual_device {

/// Memory of up to so many bytes always has values: scalars, partial sums, biases, states of agreement.
constexpr size_t kAlwaysValuesBytes = size_t{64} << 10;
/// Of up to so many bytes, of fp64 or integers, also where all of it is written from memory that has some:
/// ranks agree in these types, and parameters are of others.
constexpr size_t kMostValuesBytes = size_t{64} << 20;

/// Replaces the operator's arguments, tensors of LibTorch's device "meta", by its results: by LibTorch's own
/// meta kernel, else by a rule of ours. Throws Unsupported, naming the operator, where there is neither, or
/// where shapes follow from values.
void run_on_shapes(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack& stack);

/// Whether all device tensors of stack[base, end) have values; without any, too.
bool have_values(const torch::jit::Stack& stack, size_t base);
/// False also for a view that is expanded far beyond its memory.
bool has_values(const at::Tensor& tensor);
/// Whether a tensor will have values once it is written from some.
bool takes_values(const at::Tensor& tensor);

/// The tensor was written from what has no values, or, with `from_values`, from what has: all of it.
void note_contents(const at::Tensor& tensor, bool from_values);

}  // namespace zero::virtual_device
