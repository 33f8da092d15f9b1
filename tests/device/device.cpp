// What torch asks of a device: which one is current, its streams (none), its memory and its generators.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>

namespace mock {
namespace {

thread_local c10::DeviceIndex current_index = 0;

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device next) const override {
    auto before = getDevice();
    setDevice(next);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(TYPE, current_index); }
  void setDevice(c10::Device next) const override {
    if (next.has_index()) select(next.index());
  }
  void uncheckedSetDevice(c10::Device next) const noexcept override { current_index = next.index(); }
  c10::Stream getStream(c10::Device of) const override { return c10::Stream(c10::Stream::DEFAULT, of); }
  c10::Stream getNewStream(c10::Device of, int) const override { return getStream(of); }
  c10::Stream exchangeStream(c10::Stream next) const override { return next; }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  // Work is done when it is asked for: events have passed, and there is nothing to wait for.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {data, data, &c10::free_cpu, c10::Device(TYPE, current_index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

struct Generator final : public at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(TYPE, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex next) const override { select(next); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex next) const override {
    auto before = current_index;
    select(next);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex next) const override {
    return next < 0 ? current_index : exchangeDevice(next);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_index : index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const auto before = current_index;
    current_index = storage.device().index();
    auto data = memory.allocate(bytes);
    current_index = before;
    if (const auto kept = std::min(bytes, storage.nbytes())) std::memcpy(data.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

} // namespace

const at::Generator& generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (c10::DeviceIndex i = 0; i < COUNT; ++i) made->push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all->at(index < 0 ? current_index : index);
}

c10::DeviceIndex current() {
  return current_index;
}

void select(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < COUNT, "there are ", int(COUNT), " devices, and no number ", int(index));
  current_index = index;
}

void install() {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

} // namespace mock
