// Every operator of the device: the CPU's kernel on the same memory. Tensors of several devices in one call raise.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/histc.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace mock {
namespace {

using at::Tensor;
using c10::IValue;
using c10::Storage;

// Memory that keeps the storage alive which it is taken from.
c10::DataPtr shared(const Storage& from, c10::Device device) {
  auto drop = [](void* kept) { delete static_cast<Storage*>(kept); };
  return {const_cast<void*>(from.data()), new Storage(from), drop, device};
}

Storage alias(const Storage& from, c10::Device device, c10::Allocator* allocator) {
  return Storage(Storage::use_byte_size_t(), from.nbytes(), shared(from, device), allocator, true);
}

void set_geometry(const Tensor& tensor, const Tensor& like) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
}

Tensor with_storage(Storage storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  set_geometry(made, like);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

// What operators take of the CPU on a GPU too: any indices, and single numbers as operands.
bool takes_of_the_cpu(const c10::OperatorHandle& op, const Tensor& tensor) {
  const auto& name = op.operator_name().name;
  const auto starts = [&](std::initializer_list<const char*> all) {
    return std::any_of(all.begin(), all.end(), [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
  };
  if (starts({"aten::index_put", "aten::_index_put"}) || name == "aten::index") return true;
  if (tensor.dim() != 0) return false;
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() || op.hasTag(at::Tag::pointwise) ||
      starts({"aten::_foreach_", "aten::_fused_", "aten::where", "aten::masked_fill", "aten::fill", "aten::floor_divide"});
}

// One call of an operator: its arguments on the host, and its results back on the device.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {}

  IValue to_host(const IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() ? IValue(host(value.toTensor())) : value;
    if (value.isDevice() && value.toDevice().type() == TYPE) {
      asked_ = value.toDevice();
      return IValue(c10::Device(c10::kCPU));
    }
    if (value.isGenerator()) {
      generator_ = value.toGenerator();
      return IValue();
    }
    return mapped(value, [this](const IValue& each) { return to_host(each); });
  }

  IValue to_device(const IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() ? IValue(back(value.toTensor())) : value;
    return mapped(value, [this](const IValue& each) { return to_device(each); });
  }

  // Where results go: the device of the tensors, else the one that is asked for, else the one that is current.
  c10::Device target() const {
    auto found = device_ ? *device_ : asked_ ? *asked_ : c10::Device(TYPE);
    return found.has_index() ? found : c10::Device(TYPE, current());
  }

  const at::Generator& draws_from() const { return generator_ ? *generator_ : generator(target().index()); }

  // What the kernel did to its arguments: another shape, other memory.
  void write_back() {
    for (auto& [tensor, host] : tensors_) {
      const auto& storage = tensor.storage();
      if (host.storage().data() != storage.data() || host.storage().nbytes() != storage.nbytes()) {
        storage.set_data_ptr_noswap(shared(host.storage(), storage.device()));
        storage.set_nbytes(host.storage().nbytes());
      }
      if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides() ||
          tensor.storage_offset() != host.storage_offset())
        set_geometry(tensor, host);
    }
  }

 private:
  // A list of tensors with each of them changed, anything else as it is.
  template <typename Change>
  static IValue mapped(const IValue& value, const Change& change) {
    if (!value.isList() || !value.toList().elementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) return value;
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, change(list.get(i)));
    return IValue(list);
  }

  Tensor host(const Tensor& tensor) {
    if (tensor.device().type() != TYPE) {
      if (!takes_of_the_cpu(op_, tensor)) meet(tensor.device());
      return tensor;
    }
    meet(tensor.device());
    auto* key = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(key);
    if (found == storages_.end())
      found = storages_.emplace(key, alias(tensor.storage(), c10::kCPU, c10::GetCPUAllocator())).first;
    auto made = with_storage(found->second, c10::DispatchKey::CPU, tensor);
    origins_.emplace(found->second.unsafeGetStorageImpl(), tensor.storage());
    tensors_.emplace_back(tensor, made);
    return made;
  }

  void meet(c10::Device device) {
    if (!device_) device_ = device;
    TORCH_CHECK(*device_ == device, "Expected all tensors to be on the same device, but ", op_.schema().name(),
                " found at least two devices, ", *device_, " and ", device, "!");
  }

  Tensor back(const Tensor& result) {
    for (const auto& [tensor, host] : tensors_)
      if (host.is_same(result)) return tensor;
    auto origin = origins_.find(result.storage().unsafeGetStorageImpl());
    if (origin == origins_.end()) {
      auto made = alias(result.storage(), target(), c10::GetAllocator(TYPE));
      origin = origins_.emplace(result.storage().unsafeGetStorageImpl(), std::move(made)).first;
    }
    return with_storage(origin->second, c10::DispatchKey::PrivateUse1, result);
  }

  const c10::OperatorHandle& op_;
  std::optional<c10::Device> device_, asked_;
  std::optional<at::Generator> generator_;
  std::unordered_map<c10::StorageImpl*, Storage> storages_;
  std::unordered_map<c10::StorageImpl*, Storage> origins_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;
};

// Lets kernels of the CPU, which draw from its default generator, draw from another one.
class DrawFrom {
 public:
  explicit DrawFrom(at::Generator own) : own_(std::move(own)), lock_(mutex()), before_(cpu().get_state()) {
    cpu().set_state(own_.get_state());
  }
  ~DrawFrom() {
    own_.set_state(cpu().get_state());
    cpu().set_state(before_);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static at::Generator cpu() { return at::detail::getDefaultCPUGenerator(); }

  at::Generator own_;
  std::lock_guard<std::mutex> lock_;
  Tensor before_;
};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op);
  const auto count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) (*stack)[i] = call.to_host((*stack)[i]);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard uncast(c10::DispatchKey::AutocastCPU);
    std::optional<DrawFrom> drawing;
    if (op.hasTag(at::Tag::nondeterministic_seeded)) drawing.emplace(call.draws_from());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.write_back();
  const auto results = op.schema().returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = call.to_device((*stack)[i]);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, c10::GetAllocator(TYPE), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(TYPE),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor& set_storage(Tensor& self, Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

Tensor& set_whole_storage(Tensor& self, Storage storage) {
  const auto length = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {length}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(Tensor&, c10::Stream) {}

Tensor on_device(const Tensor& host, c10::Device device) {
  if (!host.defined()) return host;
  return with_storage(alias(host.storage(), device, c10::GetAllocator(TYPE)), c10::DispatchKey::PrivateUse1, host);
}

// torch calls these two where it knows no kernel for a device's convolutions.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  const auto added = bias && bias->defined() ? std::make_optional(on_host(*bias)) : std::nullopt;
  const auto result = at::convolution(on_host(input), on_host(weight), added, stride, padding, dilation, transposed,
                                      output_padding, groups);
  return on_device(result, input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias{gradient.size(1)};
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), bias, stride, padding, dilation,
                               transposed, output_padding, groups, wanted);
  const auto device = input.device();
  return {on_device(of_input, device), on_device(of_weight, device), on_device(of_bias, device)};
}

// The CPU has no kernel for whole numbers, which GPUs have.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  const auto result = at::histc(on_host(self).to(at::kDouble), bins, low, high);
  return on_device(result.to(self.scalar_type()), self.device());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("histc", TORCH_FN(histc));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

// Conjugates that nobody has computed yet are copied as such; torch would copy them to compute them, and so on.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define NARROW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(NARROW)
#define WIDE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(WIDE)
}

} // namespace

Tensor on_host(const Tensor& tensor) {
  if (tensor.device().type() != TYPE) return tensor;
  return with_storage(alias(tensor.storage(), c10::kCPU, c10::GetCPUAllocator()), c10::DispatchKey::CPU, tensor);
}

} // namespace mock
