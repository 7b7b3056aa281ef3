// SPDX-License-Identifier: Apache-2.0
// Stands in for cuDNN's header of this name: the calls that the backend makes, with documented results, strict checks
// of arguments, and work that runs on the CPU when somebody waits for its stream. FP32 accumulation; operands are
// rounded to TF32 if the arithmetic that was set allows it.
#pragma once

#include "cudnn_norm_extended.hpp"
#include "cudnn_passes.hpp"
#include "cudnn_pooling.hpp"

inline const char* cudnnGetErrorString(cudnnStatus_t s) {
  switch (s) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "another cudnnStatus";
  }
}
/// Cut to the room there is, with a 0 at the end; the next call tells nothing.
inline void cudnnGetLastErrorString(char* to, std::size_t room) {
  const std::string all = std::exchange(simt::dnn.said, {});
  if (room > 0) to[all.copy(to, room - 1)] = 0;
}
inline std::size_t cudnnGetVersion() { return 91900; }
inline cudnnStatus_t cudnnCreate(cudnnHandle_t* to) {
  return simt::dnn_call([=] { return simt::make_dnn_object(to); });
}
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return simt::destroy_dnn_object(handle); }
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return simt::dnn_call([=] {
    if (!simt::alive(handle)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (!known_stream(stream)) return CUDNN_STATUS_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
  });
}
