// A process group's backend for this device alone, as NCCL is for CUDA: gloo on the same memory. Tensors of the CPU raise.
#include "device.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

namespace mock {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Handle = c10::intrusive_ptr<c10d::Work>;
constexpr auto NAME = "mockccl";

struct Done final : public c10d::Work {
  explicit Done(Tensors results) : results_(std::move(results)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<c10::Device> devices;
    for (const auto& each : results_) devices = {each.device()};
    auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(std::move(type), devices);
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  Tensors results_;
};

class MockCCL final : public c10d::Backend {
 public:
  MockCCL(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size, int64_t timeout_ms)
      : Backend(rank, size),
        gloo_(std::move(gloo)),
        options_(c10::make_intrusive<Options>(NAME, std::chrono::milliseconds(timeout_ms))) {}

  const std::string getBackendName() const override { return NAME; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

  Handle broadcast(Tensors& values, const c10d::BroadcastOptions& options) override {
    auto hosts = all(values);
    gloo_->broadcast(hosts, options)->wait();
    return done(values);
  }

  Handle allreduce(Tensors& values, const c10d::AllreduceOptions& options) override {
    for (auto& value : values) sum(host(value), options.reduceOp);
    return done(values);
  }

  Handle allreduce_coalesced(Tensors& values, const c10d::AllreduceCoalescedOptions& options) override {
    for (auto& value : values) sum(host(value), options.reduceOp);
    return done(values);
  }

  Handle allgather(std::vector<Tensors>& results, Tensors& values, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> hosts;
    for (auto& each : results) hosts.push_back(all(each));
    auto given = all(values);
    gloo_->allgather(hosts, given, options)->wait();
    return done(results.at(0));
  }

  Handle _allgather_base(Tensor& result, Tensor& value, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> hosts(1);
    for (const auto& row : host(result).view({getSize(), -1}).unbind(0)) hosts[0].push_back(row.view(value.sizes()));
    Tensors given{host(value).contiguous()};
    gloo_->allgather(hosts, given, options)->wait();
    return done({result});
  }

  Handle allgather_into_tensor_coalesced(Tensors& results, Tensors& values,
                                         const c10d::AllgatherOptions& options) override {
    for (size_t i = 0; i < results.size(); ++i) _allgather_base(results[i], values[i], options);
    return done(results);
  }

  Handle gather(std::vector<Tensors>& results, Tensors& values, const c10d::GatherOptions& options) override {
    std::vector<Tensors> hosts;
    for (auto& each : results) hosts.push_back(all(each));
    auto given = all(values);
    gloo_->gather(hosts, given, options)->wait();
    return done(values);
  }

  Handle scatter(Tensors& results, std::vector<Tensors>& values, const c10d::ScatterOptions& options) override {
    std::vector<Tensors> hosts;
    for (auto& each : values) hosts.push_back(all(each));
    auto received = all(results);
    gloo_->scatter(received, hosts, options)->wait();
    return done(results);
  }

  Handle _reduce_scatter_base(Tensor& result, Tensor& value, const c10d::ReduceScatterOptions& options) override {
    auto whole = host(value).contiguous().clone();
    sum(whole, options.reduceOp);
    host(result).copy_(whole.view({getSize(), -1}).select(0, getRank()).view(result.sizes()));
    return done({result});
  }

  Handle reduce_scatter(Tensors& results, std::vector<Tensors>& values,
                        const c10d::ReduceScatterOptions& options) override {
    for (size_t i = 0; i < results.size(); ++i) {
      auto stacked = at::stack(values[i]);
      _reduce_scatter_base(results[i], stacked, options);
    }
    return done(results);
  }

  Handle reduce_scatter_tensor_coalesced(Tensors& results, Tensors& values,
                                         const c10d::ReduceScatterOptions& options) override {
    for (size_t i = 0; i < results.size(); ++i) _reduce_scatter_base(results[i], values[i], options);
    return done(results);
  }

  Handle alltoall_base(Tensor& result, Tensor& value, std::vector<int64_t>& to, std::vector<int64_t>& from,
                       const c10d::AllToAllOptions& options) override {
    auto received = host(result), given = host(value);
    gloo_->alltoall_base(received, given, to, from, options)->wait();
    return done({result});
  }

  Handle barrier(const c10d::BarrierOptions&) override {
    gloo_->barrier()->wait();
    return done({});
  }

  Handle send(Tensors& values, int to, int tag) override {
    auto hosts = all(values);
    gloo_->send(hosts, to, tag)->wait();
    return done(values);
  }

  Handle recv(Tensors& values, int from, int tag) override {
    auto hosts = all(values);
    gloo_->recv(hosts, from, tag)->wait();
    return done(values);
  }

 private:
  static Tensor host(const Tensor& value) {
    TORCH_CHECK(value.device().type() == TYPE, NAME, " sends tensors of its device, and this one is on ", value.device());
    return on_host(value);
  }

  static Tensors all(const Tensors& values) {
    Tensors hosts;
    for (const auto& value : values) hosts.push_back(host(value));
    return hosts;
  }

  static Handle done(Tensors values) { return c10::make_intrusive<Done>(std::move(values)); }

  // gloo knows no averages.
  void sum(Tensor value, c10d::ReduceOp op) {
    const bool mean = op == c10d::ReduceOp::AVG;
    c10d::AllreduceOptions options;
    options.reduceOp = mean ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
    auto flat = value.contiguous();
    Tensors values{flat};
    gloo_->allreduce(values, options)->wait();
    if (mean) flat.div_(getSize());
    if (!flat.is_same(value)) value.copy_(flat);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<Options> options_;
};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::module_::import("torch._C._distributed_c10d");
  m.def("install", &install);
  m.def("current", [] { return int(current()); });
  m.def("select", [](int index) { select(static_cast<c10::DeviceIndex>(index)); });
  m.def("generator", [](int index) { return generator(static_cast<c10::DeviceIndex>(index)); });
  m.attr("COUNT") = int(COUNT);
  py::class_<MockCCL, c10d::Backend, c10::intrusive_ptr<MockCCL>>(m, "MockCCL")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, int, int, int64_t>());
}

} // namespace mock
