// The kinds of plugins, by name and by type.
#pragma once

#include <string>
#include <string_view>
#include <tuple>

#include <ditto/cache.h>
#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/guidance.h>
#include <ditto/kernels.h>
#include <ditto/model.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/parallel/strategy.h>
#include <ditto/parallel/transport.h>
#include <ditto/sampler.h>
#include <ditto/scheduler.h>
#include <ditto/video_decoder.h>

namespace ditto {

template <class Interface>
struct KindTag {
  using type = Interface;
};

// Calls `visit(KindTag<I>{})` for every interface I, in the order in which kinds are listed.
template <class Visit>
void for_each_kind(Visit&& visit) {
  const auto all = [&]<class... I>(std::type_identity<std::tuple<I...>>) { (visit(KindTag<I>{}), ...); };
  all(std::type_identity<std::tuple<Model, Scheduler, Sampler, Guidance, Cache, Objective, ParallelStrategy, Optimizer,
                                    KernelSet, Encoder, Source, VideoDecoder, Transport>>{});
}

inline bool is_kind(std::string_view kind) {
  bool found = false;
  for_each_kind([&](auto tag) { found = found || kind == decltype(tag)::type::kKind; });
  return found;
}

// The ABI number that this program has for a kind; 0: it does not know the kind.
inline std::uint32_t abi_of(std::string_view kind) {
  std::uint32_t abi = 0;
  for_each_kind([&](auto tag) {
    using Interface = typename decltype(tag)::type;
    if (kind == Interface::kKind) abi = Interface::kAbi;
  });
  return abi;
}

// "model, scheduler, …"
inline std::string kind_list() {
  std::string list;
  for_each_kind([&](auto tag) { list += (list.empty() ? "" : ", ") + std::string(decltype(tag)::type::kKind); });
  return list;
}

}  // namespace ditto
