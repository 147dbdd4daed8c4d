#pragma once
// The pickle of a state dict as torch.save() writes it, for tensors that are each a storage of their own.
// Nothing in this library reads a pickle.

#include <span>
#include <string>

#include "hf/safetensors.h"

namespace zero::exporting {

/// The contents of data.pkl; tensor i is storage "i". Throws Unsupported for a type that torch has no storage
/// class for.
std::string state_dict_pickle(std::span<const hf::NewTensor> tensors);

}  // namespace zero::exporting
