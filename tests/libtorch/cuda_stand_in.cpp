// SPDX-License-Identifier: Apache-2.0
// A CUDA device of LibTorch's without a GPU. Its memory is the host's, and its operators are the CPU's, which
// run at once. Everything above operators is what a GPU has: tensors of device cuda:0, autocast's list for CUDA, a
// generator, events, an allocator with statistics, and a backward in the device's own thread. What it cannot show is
// the order of streams, CUDA's kernels and their times.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "device.hpp"

namespace libtorch_tests {
namespace {

const c10::Device gpu{c10::kCUDA, 0};

/// Memory that stands for the device's: whoever owns it, and its size.
template <class Owner>
struct block {
  Owner owner;
  std::int64_t bytes;
};
std::atomic<std::int64_t> bytes_now = 0, bytes_peak = 0;

template <class Owner>
c10::DataPtr device_memory(void* data, Owner owner, std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  bytes_peak = std::max<std::int64_t>(bytes_peak, bytes_now += size);
  const auto free = [](void* context) {
    auto* freed = static_cast<block<Owner>*>(context);
    bytes_now -= freed->bytes;
    delete freed;
  };
  return {data, new block<Owner>{std::move(owner), size}, free, gpu};
}

struct memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr host = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = host.get();
    return device_memory(data, std::move(host), bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    c10::CachingDeviceAllocator::DeviceStats all;
    auto& allocated = all.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    allocated.current = bytes_now;
    allocated.peak = bytes_peak;
    return all;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override { bytes_peak = bytes_now.load(); }
};
memory& all_memory() {
  static memory only;
  return only;
}
REGISTER_ALLOCATOR(c10::kCUDA, &all_memory())

/// A generator of the device: one of the CPU's, which its operators draw from.
struct generator final : c10::GeneratorImpl {
  generator() : GeneratorImpl{gpu, c10::DispatchKeySet{c10::DispatchKey::CUDA}} {}
  at::Generator drawn_from = at::detail::createCPUGenerator();

  void set_current_seed(std::uint64_t seed) override { drawn_from.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { drawn_from.set_offset(offset); }
  std::uint64_t get_offset() const override { return drawn_from.get_offset(); }
  std::uint64_t current_seed() const override { return drawn_from.current_seed(); }
  std::uint64_t seed() override { return drawn_from.seed(); }
  void set_state(const c10::TensorImpl& state) override { drawn_from.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return drawn_from.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  generator* clone_impl() const override {
    auto* copy = new generator;
    copy->drawn_from = drawn_from.clone();
    return copy;
  }
};
const at::Generator& default_generator() {
  static const at::Generator only = at::make_generator<generator>();
  return only;
}

struct hooks final : at::CUDAHooksInterface {
  explicit hooks(at::CUDAHooksArgs /*unused*/) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(c10::DeviceIndex /*device*/) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex /*device*/) const override { return at::make_generator<generator>(); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", hooks)

struct guard final : c10::impl::DeviceGuardImplInterface {
  using clock = std::chrono::steady_clock;

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return gpu; }
  c10::Device getDevice() const override { return gpu; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device /*device*/) const override { return c10::Stream{c10::Stream::DEFAULT, gpu}; }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}

  void record(void** event, const c10::Stream& /*stream*/, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new clock::time_point;
    *static_cast<clock::time_point*>(*event) = clock::now();
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*device*/) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<clock::time_point*>(end) -
                                                     *static_cast<clock::time_point*>(begin))
        .count();
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, guard)

/// A call of an operator with the device's tensors, made with tensors of the CPU that have the same memory.
class host_call {
 public:
  c10::IValue to_host(const c10::IValue& given, bool draws) {
    if (given.isTensor()) return alias(given.toTensor());
    if (given.isDevice()) return given.toDevice().is_cuda() ? c10::Device{c10::kCPU} : given.toDevice();
    if (given.isStorage()) return host_storage(given.toStorage());
    if (given.isGenerator()) return drawn_from(given.toGenerator());
    if (given.isNone() && draws) return drawn_from(default_generator());
    if (given.isTensorList()) return mapped(given.toTensorList(), [this](const at::Tensor& t) { return alias(t); });
    if (given.isOptionalTensorList()) {
      return mapped(given.toOptionalTensorList(),
                    [this](const std::optional<at::Tensor>& t) { return t ? std::optional{alias(*t)} : std::nullopt; });
    }
    return given;
  }
  c10::IValue to_device(const c10::IValue& result) {
    if (result.isTensor()) return of_device(result.toTensor());
    if (result.isTensorList())
      return mapped(result.toTensorList(), [this](const at::Tensor& t) { return of_device(t); });
    return result;
  }
  /// Gives the tensors that were resized their new memory and shape.
  void put_back_resized() {
    for (const auto& [host, device] : tensors_) {
      if (!device.is_cuda() || (same_shape(host, device) && host.const_data_ptr() == device.const_data_ptr())) continue;
      auto* to = device.unsafeGetTensorImpl();
      to->set_storage_keep_dtype(device_storage(host.storage()));
      to->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  static at::Generator drawn_from(const at::Generator& of) {
    return of.device().is_cuda() ? static_cast<generator*>(of.unsafeGetGeneratorImpl())->drawn_from : of;
  }
  template <class List, class F>
  static List mapped(const List& from, F&& f) {
    List to;
    for (std::size_t i = 0; i < from.size(); ++i) to.push_back(f(from.get(i)));
    return to;
  }
  static bool same_shape(const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
  }
  static at::Tensor made_of(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet{key}, like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return tensor;
  }

  at::Tensor alias(const at::Tensor& given) {
    if (!given.defined()) return given;
    const at::Tensor host =
        given.is_cuda() ? made_of(host_storage(given.storage()), c10::DispatchKey::CPU, given) : given;
    tensors_.emplace_back(host, given);
    return host;
  }
  c10::Storage host_storage(const c10::Storage& of) {
    if (!of.device().is_cuda()) return of;
    for (const auto& [host, device] : storages_) {
      if (device.unsafeGetStorageImpl() == of.unsafeGetStorageImpl()) return host;
    }
    const auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
    c10::DataPtr data{of.mutable_data(), new c10::Storage{of}, release, c10::Device{c10::kCPU}};
    c10::Storage host{c10::Storage::use_byte_size_t{}, of.nbytes(), std::move(data), c10::GetCPUAllocator(), true};
    storages_.emplace_back(host, of);
    return host;
  }
  c10::Storage device_storage(const c10::Storage& of) {
    for (const auto& [host, device] : storages_) {
      if (host.unsafeGetStorageImpl() == of.unsafeGetStorageImpl() && host.data() == device.data()) return device;
    }
    c10::DataPtr data = device_memory(of.mutable_data(), of, of.nbytes());
    c10::Storage device{c10::Storage::use_byte_size_t{}, of.nbytes(), std::move(data), &all_memory(), true};
    storages_.emplace_back(of, device);
    return device;
  }
  at::Tensor of_device(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [host, given] : tensors_) {
      if (host.is_same(result)) return given;
    }
    return made_of(device_storage(result.storage()), c10::DispatchKey::CUDA, result);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // of the host, given
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // of the host, of the device
};

/// Refuses what cuBLASLt does: other sizes, matrices whose rows (columns of the second) are not one after the other,
/// and a bias with gaps, which it would read as if there were none.
void require_product_in_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const std::int64_t k = a.size(1);
  TORCH_CHECK(k % 16 == 0 && b.size(0) % 16 == 0 && b.size(1) % 16 == 0, "sizes of a product in FP8");
  TORCH_CHECK(a.stride(1) == 1 && a.stride(0) >= k && b.stride(0) == 1 && b.stride(1) >= k, "layouts in FP8");
  TORCH_CHECK(!bias.defined() || (bias.numel() == b.size(1) && bias.is_contiguous()), "the bias of a product in FP8");
}

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  if (op.schema().name() == "aten::_scaled_mm") {
    const auto given = [&](std::size_t i) { return torch::jit::peek(*stack, i, arguments.size()); };
    require_product_in_fp8(given(0).toTensor(), given(1).toTensor(),
                           given(4).isNone() ? at::Tensor{} : given(4).toTensor());
  }
  host_call call;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto& given = torch::jit::peek(*stack, i, arguments.size());
    const auto& type = *arguments[i].type();
    given = call.to_host(given, type.str() == "Generator?");
  }
  op.redispatchBoxed(c10::DispatchKeySet{c10::DispatchKey::CPU}, stack);
  call.put_back_resized();
  const std::size_t results = op.schema().returns().size();
  for (std::size_t i = 0; i < results; ++i) {
    auto& result = torch::jit::peek(*stack, i, results);
    result = call.to_device(result);
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

// Asked for FP32, CUDA's softmax reads FP16 as it is. The CPU's has to be given FP32.
template <auto write>
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool to_fp32) {
  const at::Tensor given = to_fp32 ? x.to(at::kFloat) : x;
  at::Tensor output = at::empty_like(given);
  return write(output, given, dim, false);
}
template <auto write>
at::Tensor softmax_backward(const at::Tensor& gradient, const at::Tensor& result, std::int64_t dim,
                            at::ScalarType input) {
  at::Tensor output = at::empty_like(gradient);
  return write(output, gradient, result, dim, gradient.scalar_type()).to(input);
}

// The CPU has no product in BF16 whose sum stays FP32.
at::Tensor mm_in(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  return at::mm(a.to(type), b.to(type));
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("mm.dtype", TORCH_FN(mm_in));
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());  // LibTorch's own asks for CUDA's kernel
  m.impl("_softmax", TORCH_FN((softmax<at::_softmax_out>)));
  m.impl("_log_softmax", TORCH_FN((softmax<at::_log_softmax_out>)));
  m.impl("_softmax_backward_data", TORCH_FN((softmax_backward<at::_softmax_backward_data_out>)));
  m.impl("_log_softmax_backward_data", TORCH_FN((softmax_backward<at::_log_softmax_backward_data_out>)));
}

}  // namespace

const c10::Device device = gpu;

}  // namespace libtorch_tests
