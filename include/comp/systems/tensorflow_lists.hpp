// SPDX-License-Identifier: Apache-2.0
// TensorFlow's lists of operators for its automatic mixed precision, and TensorFlow's names of ATen's operators.
// Version: TensorFlow 2.21.0. Source: tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h, which its wheel
// contains: AutoMixedPrecisionListsFp16 (CUDA, and oneDNN with FP16) and AutoMixedPrecisionListsMkl (oneDNN with BF16).
// The aliases are comp's. They name the operators that tf.nn and Keras run for the same layer.
#pragma once

#include <string_view>

namespace comp::policy::tensorflow_lists {

/// Allowed with FP16 and BF16. TensorFlow puts batched products and three-dimensional convolutions on CUDA's list only
/// from CUDA 9.1, cuDNN 7.6.2 and cuDNN 8.0 on; all versions in use are newer.
inline constexpr std::string_view allow = R"(Conv2D Conv2DBackpropFilter Conv2DBackpropInput Einsum MatMul
BatchMatMul BatchMatMulV2 Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 DepthwiseConv2dNative
DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput)";

inline constexpr std::string_view fp16_allow = R"(Conv3DBackpropFilter Conv3DBackpropInput)";
inline constexpr std::string_view bf16_allow = R"(FusedPadConv2D)";

/// Allowed with FP16 on CUDA only.
inline constexpr std::string_view cuda_allow = R"(BlockLSTM BlockLSTMV2 BlockLSTMGrad BlockLSTMGradV2 CudnnRNN
CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 FusedConv2DBiasActivation
FusedSparseConvGpuV2 GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad Mha MhaV2 Tmlp TmlpV2 TmlpV3 Pmlp
FastUnsortedSegmentMax VoxelMax)";

inline constexpr std::string_view infer = R"(Add AddN AddV2 AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAdd
BiasAddGrad BiasAddV1 Elu EluGrad Erf Erfc FloorDiv FusedBatchNormV2 FusedBatchNormGradV2 FusedBatchNormV3
FusedBatchNormGradV3 _FusedBatchNormEx Inv LeakyRelu LeakyReluGrad Log Log1p LogSoftmax Mul Prod RealDiv Reciprocal
Selu SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Softsign SoftsignGrad Sqrt Sub Tanh TanhGrad)";

/// Also on the infer list through oneDNN.
inline constexpr std::string_view onednn_infer = R"(Rsqrt Square SquaredDifference)";

inline constexpr std::string_view deny = R"(Exp Expm1 L2Loss Pow SaveV2 SoftmaxCrossEntropyWithLogits
SparseSoftmaxCrossEntropyWithLogits)";

/// On the deny list with FP16, on the infer list with BF16.
inline constexpr std::string_view reductions = R"(Mean Sum)";

inline constexpr std::string_view clear = R"(Abs ArgMax ArgMin BatchToSpace BatchToSpaceND BroadcastTo Ceil
CheckNumerics ClipByValue Concat ConcatV2 DepthToSpace DynamicPartition DynamicStitch Enter EnsureShape Equal Exit
ExpandDims Fill Floor Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN IsFinite IsInf IsNan Less
LessEqual Max MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2
Maximum Merge Min Minimum MirrorPad MirrorPadGrad Neg NextIteration NotEqual OnesLike Pack Pad PadV2 PreventGradient
Rank Relu Relu6 Relu6Grad ReluGrad Reshape ResizeNearestNeighbor ResizeNearestNeighborGrad Reverse ReverseSequence
ReverseV2 Round Select SelectV2 Shape ShapeN Sign Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split
SplitV Squeeze StopGradient StridedSlice StridedSliceGrad Switch Tile TopK TopKV2 Transpose Unpack Where ZerosLike
TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListGather TensorListGetItem TensorListPopBack
TensorListPushBack TensorListPushBackBatch TensorListFromTensor TensorListScatter TensorListScatterV2
TensorListScatterIntoExistingList TensorListSetItem TensorListSplit TensorListStack)";
inline constexpr std::string_view fp16_clear = R"(MaxPool3DGradGrad OneHot Size)";
inline constexpr std::string_view bf16_clear = R"(ResizeBilinear ScatterNd StatelessWhile While)";

/// Keras 3 builds layer norm and group norm from moments, so their alias is Mean; that of a loss is its reduction.
/// TensorFlow's rewrite replaces FusedBatchNorm by its version 2 before it looks at the lists, so that is the alias.
inline constexpr std::string_view aliases = R"(FusedBatchNormV2=FusedBatchNorm
FusedBatchNormGradV2=FusedBatchNormGrad Softmax=_softmax,softmax LogSoftmax=_log_softmax,log_softmax
LSTMBlockCell=_thnn_fused_lstm_cell GRUBlockCell=_thnn_fused_gru_cell Abs=abs
Mean=adaptive_avg_pool1d,adaptive_avg_pool2d,adaptive_avg_pool3d,group_norm,instance_norm,layer_norm
Mean=mean,mse_loss,nll_loss,nll_loss_nd
AddV2=add MatMul=addmm,linear,mm,mv ArgMax=argmax ArgMin=argmin AvgPool=avg_pool2d AvgPool3D=avg_pool3d
BatchMatMulV2=baddbmm,bmm,matmul,scaled_dot_product_attention FusedBatchNormV3=batch_norm ConcatV2=cat Ceil=ceil
Split=chunk,split ClipByValue=clamp Identity=clone,contiguous Conv2D=conv1d,conv2d,convolution Conv3D=conv3d
Conv2DBackpropInput=conv_transpose2d Conv3DBackpropInputV2=conv_transpose3d
SparseSoftmaxCrossEntropyWithLogits=cross_entropy_loss StopGradient=detach RealDiv=div Mul=dropout,mul Einsum=einsum
Elu=elu GatherV2=embedding,index_select Equal=eq Erf=erf,gelu Erfc=erfc Exp=exp BroadcastTo=expand Expm1=expm1
Reshape=flatten,reshape,view Floor=floor GatherNd=gather LeakyRelu=leaky_relu Log=log Log1p=log1p
SelectV2=masked_fill,where Max=max MaxPool=max_pool2d MaxPool3D=max_pool3d Maximum=maximum Min=min Minimum=minimum
Neg=neg Pad=pad Transpose=permute,t,transpose Pow=pow Prod=prod Reciprocal=reciprocal Relu=relu Relu6=relu6
Round=round Rsqrt=rsqrt StridedSlice=select,slice Selu=selu Sigmoid=sigmoid,silu Sign=sign Softplus=softplus
Sqrt=sqrt Square=square Squeeze=squeeze Pack=stack Sub=sub Sum=sum Tanh=tanh TopKV2=topk Unpack=unbind
ExpandDims=unsqueeze ResizeNearestNeighbor=upsample_nearest2d ResizeBilinear=upsample_bilinear2d)";

}  // namespace comp::policy::tensorflow_lists
