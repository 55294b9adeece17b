// What native code shares: vectors of this processor, and the tensors that a compiled program hands over.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

namespace {

using Floats = at::vec::Vectorized<float>;
constexpr int64_t LANES = Floats::size();
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

inline float total(Floats sums) {
  return at::vec::vec_reduce_all<float>([](auto a, auto b) { return a + b; }, sums);
}

// Data of a tensor of that dtype, contiguous, and its shape: nothing else is what a program was compiled for.
template <class T>
struct Given {
  T* data = nullptr;
  int64_t dims = 0, *shape = nullptr;

  Given(AtenTensorHandle tensor, int32_t wanted, int64_t least, int64_t most) {
    int32_t dtype = -1;
    int64_t* strides = nullptr;
    void* pointer = nullptr;
    if (aoti_torch_get_dtype(tensor, &dtype) || dtype != wanted || aoti_torch_get_dim(tensor, &dims) ||
        dims < least || dims > most ||
        aoti_torch_get_sizes(tensor, &shape) || aoti_torch_get_strides(tensor, &strides) ||
        aoti_torch_get_data_ptr(tensor, &pointer))
      return;
    int64_t stride = 1;
    for (int64_t d = dims - 1; d >= 0; stride *= shape[d--])
      if (shape[d] != 1 && strides[d] != stride) return;
    data = static_cast<T*>(pointer);
  }
};

}  // namespace
