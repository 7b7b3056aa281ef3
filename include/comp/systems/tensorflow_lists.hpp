// SPDX-License-Identifier: Apache-2.0
// TensorFlow's lists of operators for its automatic mixed precision, and TensorFlow's names of ATen's operators.
// Version: TensorFlow 2.21.0. Source: tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h, which its wheel
// contains: AutoMixedPrecisionListsFp16 (CUDA, and oneDNN with FP16) and AutoMixedPrecisionListsMkl (oneDNN with BF16).
// The aliases are comp's. They name the operators that tf.nn and Keras run for the same layer.
#pragma once

#include <comp/systems/kind_lists.hpp>
#include <string_view>

namespace comp::policy::tensorflow_lists {

// One operator per line would be 500 lines:
// clang-format off
/// Allowed with FP16 and BF16. TensorFlow puts batched products and three-dimensional convolutions on CUDA's list only
/// from CUDA 9.1, cuDNN 7.6.2 and cuDNN 8.0 on; all versions in use are newer.
inline constexpr std::string_view allow[] = {
    "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Einsum", "MatMul", "BatchMatMul", "BatchMatMulV2",
    "Conv3D", "Conv3DBackpropFilterV2", "Conv3DBackpropInputV2", "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"};

inline constexpr std::string_view fp16_allow[] = {
    "Conv3DBackpropFilter", "Conv3DBackpropInput"};
inline constexpr std::string_view bf16_allow[] = {
    "FusedPadConv2D"};

/// Allowed with FP16 on CUDA only.
inline constexpr std::string_view cuda_allow[] = {
    "BlockLSTM", "BlockLSTMV2", "BlockLSTMGrad", "BlockLSTMGradV2", "CudnnRNN", "CudnnRNNBackprop",
    "CudnnRNNBackpropV2", "CudnnRNNBackpropV3", "CudnnRNNV2", "CudnnRNNV3", "FusedConv2DBiasActivation",
    "FusedSparseConvGpuV2", "GRUBlockCell", "GRUBlockCellGrad", "LSTMBlockCell", "LSTMBlockCellGrad", "Mha",
    "MhaV2", "Tmlp", "TmlpV2", "TmlpV3", "Pmlp", "FastUnsortedSegmentMax", "VoxelMax"};

inline constexpr std::string_view infer[] = {
    "Add", "AddN", "AddV2", "AvgPool", "AvgPool3D", "AvgPool3DGrad", "AvgPoolGrad", "BiasAdd", "BiasAddGrad",
    "BiasAddV1", "Elu", "EluGrad", "Erf", "Erfc", "FloorDiv", "FusedBatchNormV2", "FusedBatchNormGradV2",
    "FusedBatchNormV3", "FusedBatchNormGradV3", "_FusedBatchNormEx", "Inv", "LeakyRelu", "LeakyReluGrad", "Log",
    "Log1p", "LogSoftmax", "Mul", "Prod", "RealDiv", "Reciprocal", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad",
    "Softmax", "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "Sub", "Tanh", "TanhGrad"};

/// Also on the infer list through oneDNN.
inline constexpr std::string_view onednn_infer[] = {
    "Rsqrt", "Square", "SquaredDifference"};

inline constexpr std::string_view deny[] = {
    "Exp", "Expm1", "L2Loss", "Pow", "SaveV2", "SoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogits"};

/// On the deny list with FP16, on the infer list with BF16.
inline constexpr std::string_view reductions[] = {
    "Mean", "Sum"};

inline constexpr std::string_view clear[] = {
    "Abs", "ArgMax", "ArgMin", "BatchToSpace", "BatchToSpaceND", "BroadcastTo", "Ceil", "CheckNumerics",
    "ClipByValue", "Concat", "ConcatV2", "DepthToSpace", "DynamicPartition", "DynamicStitch", "Enter",
    "EnsureShape", "Equal", "Exit", "ExpandDims", "Fill", "Floor", "Gather", "GatherNd", "GatherV2", "Greater",
    "GreaterEqual", "Identity", "IdentityN", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "Max", "MaxPool",
    "MaxPool3D", "MaxPool3DGrad", "MaxPoolGrad", "MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPoolGradV2",
    "MaxPoolV2", "Maximum", "Merge", "Min", "Minimum", "MirrorPad", "MirrorPadGrad", "Neg", "NextIteration",
    "NotEqual", "OnesLike", "Pack", "Pad", "PadV2", "PreventGradient", "Rank", "Relu", "Relu6", "Relu6Grad",
    "ReluGrad", "Reshape", "ResizeNearestNeighbor", "ResizeNearestNeighborGrad", "Reverse", "ReverseSequence",
    "ReverseV2", "Round", "Select", "SelectV2", "Shape", "ShapeN", "Sign", "Slice", "Snapshot", "SpaceToBatch",
    "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Squeeze", "StopGradient", "StridedSlice",
    "StridedSliceGrad", "Switch", "Tile", "TopK", "TopKV2", "Transpose", "Unpack", "Where", "ZerosLike"};
inline constexpr std::string_view fp16_clear[] = {
    "MaxPool3DGradGrad", "OneHot", "Size"};
inline constexpr std::string_view bf16_clear[] = {
    "ResizeBilinear", "ScatterNd", "StatelessWhile", "While"};

/// On the clear list with FP16 and BF16.
inline constexpr std::string_view tensor_lists[] = {
    "TensorListConcat", "TensorListConcatLists", "TensorListConcatV2", "TensorListGather", "TensorListGetItem",
    "TensorListPopBack", "TensorListPushBack", "TensorListPushBackBatch", "TensorListFromTensor", "TensorListScatter",
    "TensorListScatterV2", "TensorListScatterIntoExistingList", "TensorListSetItem", "TensorListSplit",
    "TensorListStack"};

/// Keras 3 builds layer norm and group norm from moments, so their alias is Mean; that of a loss is its reduction.
/// TensorFlow's rewrite replaces FusedBatchNorm by its version 2 before it looks at the lists, so that is the alias.
inline constexpr kind_alias aliases[] = {
    {"FusedBatchNorm", "FusedBatchNormV2"}, {"FusedBatchNormGrad", "FusedBatchNormGradV2"}, {"_softmax", "Softmax"}, {"_log_softmax", "LogSoftmax"}, {"_thnn_fused_lstm_cell", "LSTMBlockCell"},
    {"_thnn_fused_gru_cell", "GRUBlockCell"}, {"abs", "Abs"}, {"adaptive_avg_pool1d", "Mean"},
    {"adaptive_avg_pool2d", "Mean"}, {"adaptive_avg_pool3d", "Mean"}, {"add", "AddV2"}, {"addmm", "MatMul"},
    {"argmax", "ArgMax"}, {"argmin", "ArgMin"}, {"avg_pool2d", "AvgPool"}, {"avg_pool3d", "AvgPool3D"},
    {"baddbmm", "BatchMatMulV2"}, {"batch_norm", "FusedBatchNormV3"}, {"bmm", "BatchMatMulV2"}, {"cat", "ConcatV2"},
    {"ceil", "Ceil"}, {"chunk", "Split"}, {"clamp", "ClipByValue"}, {"clone", "Identity"}, {"contiguous", "Identity"},
    {"conv1d", "Conv2D"}, {"conv2d", "Conv2D"}, {"conv3d", "Conv3D"}, {"conv_transpose2d", "Conv2DBackpropInput"},
    {"conv_transpose3d", "Conv3DBackpropInputV2"}, {"convolution", "Conv2D"},
    {"cross_entropy_loss", "SparseSoftmaxCrossEntropyWithLogits"}, {"detach", "StopGradient"}, {"div", "RealDiv"},
    {"dropout", "Mul"}, {"einsum", "Einsum"}, {"elu", "Elu"}, {"embedding", "GatherV2"}, {"eq", "Equal"},
    {"erf", "Erf"}, {"erfc", "Erfc"}, {"exp", "Exp"}, {"expand", "BroadcastTo"}, {"expm1", "Expm1"},
    {"flatten", "Reshape"}, {"floor", "Floor"}, {"gather", "GatherNd"}, {"gelu", "Erf"}, {"group_norm", "Mean"},
    {"index_select", "GatherV2"}, {"instance_norm", "Mean"}, {"layer_norm", "Mean"}, {"leaky_relu", "LeakyRelu"},
    {"linear", "MatMul"}, {"log", "Log"}, {"log1p", "Log1p"}, {"log_softmax", "LogSoftmax"},
    {"masked_fill", "SelectV2"}, {"matmul", "BatchMatMulV2"}, {"max", "Max"}, {"max_pool2d", "MaxPool"},
    {"max_pool3d", "MaxPool3D"}, {"maximum", "Maximum"}, {"mean", "Mean"}, {"min", "Min"}, {"minimum", "Minimum"},
    {"mm", "MatMul"}, {"mse_loss", "Mean"}, {"mul", "Mul"}, {"mv", "MatMul"}, {"neg", "Neg"}, {"nll_loss", "Mean"},
    {"nll_loss_nd", "Mean"}, {"pad", "Pad"}, {"permute", "Transpose"}, {"pow", "Pow"}, {"prod", "Prod"},
    {"reciprocal", "Reciprocal"}, {"relu", "Relu"}, {"relu6", "Relu6"}, {"reshape", "Reshape"}, {"round", "Round"},
    {"rsqrt", "Rsqrt"}, {"scaled_dot_product_attention", "BatchMatMulV2"}, {"select", "StridedSlice"}, {"selu", "Selu"},
    {"sigmoid", "Sigmoid"}, {"sign", "Sign"}, {"silu", "Sigmoid"}, {"slice", "StridedSlice"}, {"softmax", "Softmax"},
    {"softplus", "Softplus"}, {"split", "Split"}, {"sqrt", "Sqrt"}, {"square", "Square"}, {"squeeze", "Squeeze"},
    {"stack", "Pack"}, {"sub", "Sub"}, {"sum", "Sum"}, {"t", "Transpose"}, {"tanh", "Tanh"}, {"topk", "TopKV2"},
    {"transpose", "Transpose"}, {"unbind", "Unpack"}, {"unsqueeze", "ExpandDims"},
    {"upsample_nearest2d", "ResizeNearestNeighbor"}, {"upsample_bilinear2d", "ResizeBilinear"}, {"view", "Reshape"},
    {"where", "SelectV2"}};
// clang-format on

}  // namespace comp::policy::tensorflow_lists
