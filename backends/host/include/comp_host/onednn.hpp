// SPDX-License-Identifier: Apache-2.0
// The differences between oneDNN 2 and oneDNN 3, so that one source compiles with both: Debian 12 has
// 2.6, later releases have 3.x. oneDNN 3 dropped operation descriptors, hid the inside of memory descriptors and made
// scales arguments. The functions here have the form of oneDNN 3; the rest of this backend does not know which one it
// is compiled with.
// Source: oneDNN's "Transition from v2.x to v3.x".
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 6)
#error "comp needs oneDNN 2.6 or newer: install your distribution's libdnnl-dev, or the wheel that ./run names"
#endif

namespace comp::host::onednn {

using dnnl::memory;

/// Returns how many arguments a primitive reads. In oneDNN 2 the backward of both norms asks for the shift, although it
/// has no use for it; in oneDNN 3 that of a layer norm still does, and that of a batch norm refuses it.
int inputs_of(const auto& description) {
  int count = 0;
  dnnl::error::wrap_c_api(dnnl_primitive_desc_query(description.get(), dnnl_query_num_of_inputs_s32, 0, &count),
                          "oneDNN does not say what a primitive reads");
  return count;
}

#if DNNL_VERSION_MAJOR == 2

template <class Op, class... Ops>
inline constexpr bool is_one_of = (std::is_same_v<Op, Ops> || ...);
/// The place of the argument that oneDNN 3's descriptions have and oneDNN 2's do not: the second of two equal layouts,
/// or pooling's dilation.
template <class Op>
inline constexpr std::size_t not_in_2 =
    is_one_of<Op, dnnl::eltwise_forward>    ? 3
    : is_one_of<Op, dnnl::pooling_forward>  ? 6
    : is_one_of<Op, dnnl::pooling_backward> ? 5
    : is_one_of<Op, dnnl::eltwise_backward, dnnl::batch_normalization_forward, dnnl::batch_normalization_backward,
                dnnl::layer_normalization_forward, dnnl::layer_normalization_backward>
        ? 2
        : 99;

template <class Op, class... Arguments>
typename Op::desc operation(const Arguments&... arguments) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto kept = [&]<std::size_t At>(const auto& argument) {
      if constexpr (At == not_in_2<Op>) {
        return std::tuple<>{};
      } else {
        return std::tie(argument);
      }
    };
    return std::make_from_tuple<typename Op::desc>(std::tuple_cat(kept.template operator()<I>(arguments)...));
  }
  (std::index_sequence_for<Arguments...>{});
}
template <class Op, class... Arguments>
typename Op::primitive_desc described(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                      const Arguments&... arguments) {
  return {operation<Op>(arguments...), attributes, engine};
}
template <class Op, class Forward, class... Arguments>
typename Op::primitive_desc described_backward(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                               const Forward& forward, const Arguments&... arguments) {
  return {operation<Op>(arguments...), attributes, engine, forward};
}

inline memory::data_type type_of(const memory::desc& d) { return d.data_type(); }
inline memory::dims extents_of(const memory::desc& d) { return d.dims(); }
inline memory::dims padded_extents_of(const memory::desc& d) {
  return {d.data.padded_dims, d.data.padded_dims + d.data.ndims};
}
inline bool is_blocked(const memory::desc& d) { return d.data.format_kind == dnnl_blocked; }
inline int inner_blocks(const memory::desc& d) { return d.data.format_desc.blocking.inner_nblks; }
inline memory::dim inner_size(const memory::desc& d, int i) { return d.data.format_desc.blocking.inner_blks[i]; }
inline memory::dim inner_axis(const memory::desc& d, int i) { return d.data.format_desc.blocking.inner_idxs[i]; }
inline memory::dims strides_of(const memory::desc& d) {
  const auto& strides = d.data.format_desc.blocking.strides;
  return {strides, strides + d.data.ndims};
}
inline std::optional<memory::desc> with_type(memory::desc d, memory::data_type type) {
  d.data.data_type = static_cast<dnnl_data_type_t>(type);
  return d;
}
inline void scale_result(dnnl::primitive_attr& attributes, float by) { attributes.set_output_scales(0, {by}); }

#else

/// Returns the description from which a primitive of `Op` is made. `arguments` are those of the operation, in the order
/// of oneDNN 3.
/// Throws: `dnnl::error` if oneDNN has no implementation.
template <class Op, class... Arguments>
typename Op::primitive_desc described(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                      const Arguments&... arguments) {
  return {engine, arguments..., attributes};
}
/// The same for the backward of the operation that `forward` describes.
template <class Op, class Forward, class... Arguments>
typename Op::primitive_desc described_backward(const dnnl::engine& engine, const dnnl::primitive_attr& attributes,
                                               const Forward& forward, const Arguments&... arguments) {
  return {engine, arguments..., forward, attributes};
}

inline memory::data_type type_of(const memory::desc& d) { return d.get_data_type(); }
inline memory::dims extents_of(const memory::desc& d) { return d.get_dims(); }
inline memory::dims padded_extents_of(const memory::desc& d) { return d.get_padded_dims(); }
inline bool is_blocked(const memory::desc& d) { return d.get_format_kind() == memory::format_kind::blocked; }
inline int inner_blocks(const memory::desc& d) { return d.get_inner_nblks(); }
inline memory::dim inner_size(const memory::desc& d, int i) { return d.get_inner_blks()[static_cast<std::size_t>(i)]; }
inline memory::dim inner_axis(const memory::desc& d, int i) { return d.get_inner_idxs()[static_cast<std::size_t>(i)]; }
inline memory::dims strides_of(const memory::desc& d) { return d.get_strides(); }
/// Returns: the layout of `d` for values of another type; nothing if oneDNN has no name for it. Blocked layouts can
/// only be made by their names, and a layout does not tell its name, so all names are tried. That takes a millisecond,
/// once for each layout.
inline std::optional<memory::desc> with_type(const memory::desc& d, memory::data_type type) {
  if (type_of(d) == type) return d;
  if (!is_blocked(d)) return {};
  const memory::dims extents = extents_of(d);
  if (inner_blocks(d) == 0) return memory::desc{extents, type, strides_of(d)};
  for (int tag = dnnl_format_tag_any + 1; tag < dnnl_format_tag_last; ++tag) {
    const auto name = static_cast<memory::format_tag>(tag);
    const memory::desc candidate{extents, type_of(d), name, true};
    if (candidate && candidate == d) return memory::desc{extents, type, name};
  }
  return {};
}
/// Multiplies the result of a matrix product. oneDNN 3 takes scales as arguments in memory at each call; a linear
/// function behind the product is a constant.
inline void scale_result(dnnl::primitive_attr& attributes, float by) {
  dnnl::post_ops after;
  after.append_eltwise(dnnl::algorithm::eltwise_linear, by, 0.0F);
  attributes.set_post_ops(after);
}

#endif

/// A number of steps along one axis.
struct stretch {
  memory::dim axis = 0, steps = 1;
  friend bool operator==(const stretch&, const stretch&) = default;
};
/// Returns in which order a blocked layout without gaps goes through its axes, the fastest first. Two layouts with the
/// same order put each element in the same place.
inline std::vector<stretch> order_of(const memory::desc& d) {
  memory::dims left = padded_extents_of(d);
  const memory::dims strides = strides_of(d);
  std::vector<stretch> order;
  const auto add = [&order](stretch next) {
    if (next.steps == 1) return;
    if (!order.empty() && order.back().axis == next.axis) {
      order.back().steps *= next.steps;
    } else {
      order.push_back(next);
    }
  };
  for (int i = inner_blocks(d); i-- > 0;) {
    add({inner_axis(d, i), inner_size(d, i)});
    left[static_cast<std::size_t>(inner_axis(d, i))] /= inner_size(d, i);
  }
  std::vector<std::size_t> axes(left.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::ranges::stable_sort(axes, {}, [&](std::size_t axis) { return strides[axis]; });
  for (const std::size_t axis : axes) add({static_cast<memory::dim>(axis), left[axis]});
  return order;
}
/// True if oneDNN computes this in AVX-512 code of its own. Its alternatives are older vector code, matrix products on
/// copies, and scalar reference code.
bool uses_avx512(const auto& description) {
  return std::string_view{description.impl_info_str()}.find("avx512") != std::string_view::npos;
}

}  // namespace comp::host::onednn
