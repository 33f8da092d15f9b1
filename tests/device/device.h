// An accelerator that every machine has: host memory behind a device type of its own.
#pragma once

#include <ATen/core/Tensor.h>

namespace mock {

constexpr c10::DeviceType TYPE = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex COUNT = 8;

// The memory of a tensor of this device as a CPU tensor.
at::Tensor on_host(const at::Tensor& tensor);

// The generator that operators on a device draw from.
const at::Generator& generator(c10::DeviceIndex index);

c10::DeviceIndex current();
void select(c10::DeviceIndex index);
void install();

} // namespace mock
