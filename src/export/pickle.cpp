#include "export/pickle.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "zero/error.h"

namespace zero::exporting {
namespace {

// Opcodes of pickle protocol 2.
constexpr const char* kProtocol = "\x80\x02";
constexpr char kStop = '.', kMark = '(', kTuple = 't', kEmptyTuple = ')', kEmptyDict = '}', kSetItems = 'u',
               kReduce = 'R', kPersistentId = 'Q', kFalse = '\x89', kGlobal = 'c', kText = 'X',
               kByteInt = 'K', kInt = 'J', kLong = '\x8a';

const char* storage_class(Dtype dtype, const std::string& name) {
  switch (dtype) {
    case Dtype::f32:
      return "FloatStorage";
    case Dtype::bf16:
      return "BFloat16Storage";
    case Dtype::f16:
      return "HalfStorage";
    case Dtype::f64:
      return "DoubleStorage";
    case Dtype::i64:
      return "LongStorage";
    case Dtype::i32:
      return "IntStorage";
    case Dtype::i16:
      return "ShortStorage";
    case Dtype::i8:
      return "CharStorage";
    case Dtype::u8:
      return "ByteStorage";
    case Dtype::boolean:
      return "BoolStorage";
    default:
      fail(ErrorKind::Unsupported, name, "PyTorch's file has no storage of " + std::string(to_string(dtype)),
           "write safetensors");
  }
}

class Pickler {
 public:
  std::string take() { return std::move(out_); }
  Pickler& op(char code) {
    out_ += code;
    return *this;
  }
  Pickler& global(const std::string& module, const std::string& name) {
    out_ += kGlobal + module + "\n" + name + "\n";
    return *this;
  }
  Pickler& text(const std::string& value) {
    out_ += kText;
    bytes(value.size(), 4);
    out_ += value;
    return *this;
  }
  Pickler& number(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += kByteInt;
      bytes(static_cast<uint64_t>(value), 1);
    } else if (value >= 0 && value <= std::numeric_limits<int32_t>::max()) {
      out_ += kInt;
      bytes(static_cast<uint64_t>(value), 4);
    } else {
      out_ += kLong;
      bytes(8, 1);
      bytes(static_cast<uint64_t>(value), 8);
    }
    return *this;
  }
  Pickler& tuple(const std::vector<int64_t>& values) {
    if (values.empty()) return op(kEmptyTuple);
    op(kMark);
    for (const int64_t value : values) number(value);
    return op(kTuple);
  }

 private:
  void bytes(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string out_ = kProtocol;
};

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(1, shape[i]);
  return strides;
}

// torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks)
void put_tensor(Pickler& out, const hf::NewTensor& tensor, size_t number) {
  out.global("torch._utils", "_rebuild_tensor_v2").op(kMark);
  out.op(kMark).text("storage").global("torch", storage_class(tensor.dtype, tensor.name));
  out.text(std::to_string(number)).text("cpu").number(hf::data_bytes(tensor) / itemsize(tensor.dtype));
  out.op(kTuple).op(kPersistentId);
  out.number(0).tuple(tensor.shape).tuple(strides_of(tensor.shape)).op(kFalse);
  out.global("collections", "OrderedDict").op(kEmptyTuple).op(kReduce);
  out.op(kTuple).op(kReduce);
}

}  // namespace

std::string state_dict_pickle(std::span<const hf::NewTensor> tensors) {
  Pickler out;
  out.op(kEmptyDict).op(kMark);
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.text(tensors[i].name);
    put_tensor(out, tensors[i], i);
  }
  out.op(kSetItems).op(kStop);
  return out.take();
}

}  // namespace zero::exporting
